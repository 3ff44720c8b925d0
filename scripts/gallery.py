"""Draw the thumbnails of the gallery, and check that its pages answer their questions.

Each thumbnail is the first screen of a page of docs/gallery in Chromium, 1280 pixels wide. All of
them are views of one file, docs/gallery/thumbnails.svg. An answer in the table of the gallery must
stand on the first screen of its page.
"""

from __future__ import annotations

import base64
import html
import io
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from escala import cli
from escala.core.arguments import Parser
from escala.core.errors import InputError
from escala.core.files import write_text
from escala.report.study import BROWSERS

GALLERY = Path(__file__).resolve().parent.parent / "docs" / "gallery"
THUMBNAILS = "thumbnails.svg"
#: Width and height of a first screen and of its thumbnail, in pixels.
_SCREEN, _SMALL = (1280, 800), (480, 300)
_COLOURS = 32
#: A row of the table: the page that the thumbnail leads to, and the answer.
_ROW = re.compile(r"^\| \[!.*?\]\((\w[\w-]*)\.html\) \|.*?\| ([^|]*) \|$", re.MULTILINE)


def main() -> None:
    parser = Parser(description=__doc__, prog="gallery")
    parser.add_argument(
        "--results", type=Path, metavar="DIR",
        help="first copy the pages of experiments whose results are in this folder",
    )  # fmt: skip
    arguments = parser.parse_args()
    for name, _ in answers() if arguments.results else ():
        page = arguments.results / name / "index.html"
        if page.exists():
            shutil.copy(page, GALLERY / f"{name}.html")
            print(f"{name}: page copied")
    write_text(GALLERY / THUMBNAILS, thumbnails())
    if missing := [name for name, answer in answers() if words(answer) not in first_screen(name)]:
        raise InputError(
            str(GALLERY / "index.md"), ", ".join(missing),
            "the answer is not on the first screen of the page", "write what the page says",
        )  # fmt: skip


def answers() -> Iterator[tuple[str, str]]:
    """Yield the name of each page of the gallery's table, and its answer."""
    yield from _ROW.findall((GALLERY / "index.md").read_text(encoding="utf-8"))


def words(text: str) -> str:
    """Return the words and numbers of a text, without marks between them."""
    return " ".join(re.findall(r"\w+", text.lower()))


def first_screen(name: str) -> str:
    """Return the words of the first section of a page."""
    _, first, *_ = (GALLERY / f"{name}.html").read_text(encoding="utf-8").split("<section")
    return words(html.unescape(re.sub(r"<[^>]*>", " ", first)))


def thumbnails() -> str:
    """Return an SVG with a view of each page's first screen, named like the page."""
    width, height = _SMALL
    parts = []
    for place, (name, _) in enumerate(answers()):
        top = place * height
        picture = base64.b64encode(_thumbnail(GALLERY / f"{name}.html")).decode()
        parts.append(
            f'<view id="{name}" viewBox="0 {top} {width} {height}"/>\n'
            f'<image y="{top}" width="{width}" height="{height}" '
            f'href="data:image/png;base64,{picture}"/>\n'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">\n{"".join(parts)}</svg>\n'
    )


def _thumbnail(page: Path) -> bytes:
    """Return the first screen of a page as a small PNG.

    Raises
    ------
    InputError : there is no Chromium, or it draws nothing.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "screen.png")
        if browser:
            command = [
                browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                f"--user-data-dir={folder}", f"--screenshot={file}",
                "--window-size={},{}".format(*_SCREEN), page.as_uri(),
            ]  # fmt: skip
            subprocess.run(command, capture_output=True, timeout=60)
        if not file.exists():
            raise InputError(
                "chromium", str(browser), "drew no page", "install it: apt-get install chromium"
            )
        with Image.open(file) as screen:
            small = screen.convert("RGB").resize(_SMALL, Image.Resampling.LANCZOS)
    written = io.BytesIO()
    small.quantize(_COLOURS).save(written, "PNG", optimize=True)
    return written.getvalue()


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
