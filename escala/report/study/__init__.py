"""Write the document of a scaling study, to hand in with a proposal for compute time.

The document uses measured runs only, from the table `scaling`. It compares predictions, if there
are any, with measured times. It names unknown values as unknown.

This module writes HTML, Markdown and LaTeX, and a PDF if Chromium is installed.

| module | content |
|---|---|
| `content` | what the document says: tables of text, notes, and how it was measured |
| `statement` | a paragraph to paste, and the largest size that passes its rule |
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from escala.core.files import atomic
from escala.core.readable import with_noun
from escala.report.figures import DECLARED
from escala.report.page import Inliner, digest, templates
from escala.report.study.content import Study, study

__all__ = ["Study", "html", "latex", "markdown", "pdf", "study", "write"]

_PAGE = Path(__file__).parents[1] / "page"
#: Names of Chromium, in the order in which they are tried.
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_PDF_SECONDS = 120


def write(study: Study, page: Path, figure: str, links: Sequence[str]) -> None:
    """Write the document in all formats. Print its statements, and the files to hand in.

    Parameters
    ----------
    page : the HTML file; files of other formats have its name and another suffix.
    figure, links : as in `html`.
    """
    texts = {
        page: html(study, figure, links),
        page.with_suffix(".md"): "\n".join(markdown(study)) + "\n",
        page.with_suffix(".tex"): "\n".join(latex(study)),
    }
    for path, text in texts.items():
        with atomic(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    printed = page.with_suffix(".pdf")
    reason = pdf(page, printed)
    print("\n".join(f"{series.heading}\n{series.statement}\n" for series in study.series))
    if study.missing:
        print(f"Missing for the site, as its top says: {with_noun(len(study.missing), 'thing')}.")
    print(f"No PDF: {reason}. To hand in: {page}" if reason else f"To hand in: {printed}")


def html(study: Study, figure: str, links: Sequence[str] = ()) -> str:
    """Return the document as one page that loads nothing.

    Parameters
    ----------
    figure : the SVG file of the figure `scaling`, as Matplotlib writes it.
    links : addresses of files to link to, relative to the page.
    """
    caption = DECLARED["scaling"].caption.replace("``", "`")
    inliner = Inliner()
    svg = inliner.inline(figure, "figure-scaling", "Scaling.", caption)
    style = (_PAGE / "page.css").read_text(encoding="utf-8") + inliner.rules
    template = templates(Path(__file__).parent).get_template("study.html")
    return template.render(
        study=study, style=style, style_digest=digest(style), svg=svg, caption=caption, links=links
    )


def markdown(study: Study) -> Iterator[str]:
    """Yield the lines of the document without its figure, as Markdown."""
    yield from (f"# {study.title}", "", study.kind)
    if study.missing:
        yield from ("", "**Missing for the site:**", "")
        yield from (f"- {what} Key: `{key}`" for what, key in study.missing)
    for series in study.series:
        yield from ("", f"## {series.heading}", "", series.statement)
        for caption, table in series.tables.items():
            yield from ("", f"**{caption}**", "")
            dashes = ["---"] * len(table.columns)
            for row in [list(table.columns), dashes, *table.to_numpy().tolist()]:
                yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
        if series.notes:
            yield from ("", *(f"- {note}" for note in series.notes))
    for heading, entries in (
        ("For the site", study.proposal),
        ("How it was measured", study.about),
    ):
        if entries:
            yield from ("", f"## {heading}", "")
            yield from (f"- **{name}:** {value}" for name, value in entries)
    for heading, text in study.files.items():
        # A fence has more backticks than any sequence of backticks in the text.
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
        yield from ("", f"## {heading}", "", f"{fence}bash", *text.splitlines(), fence)


def latex(study: Study) -> Iterator[str]:
    """Yield the tables of the document as LaTeX, with its paragraphs as comments before them.

    They need the package `booktabs`.
    """
    yield f"% {study.kind}"
    for series in study.series:
        yield from (f"% {series.heading}", f"% {series.statement}")
        for caption, table in series.tables.items():
            styled = table.style.hide(axis="index").format(escape="latex")
            styled = styled.format_index(escape="latex", axis="columns")
            text = styled.to_latex(hrules=True, caption=f"{caption}.", position_float="centering")
            # A dash between numbers, and characters that text fonts lack.
            yield text.replace("–", "--").replace("≥", r"$\geq$")


def pdf(page: Path, output: Path) -> str | None:
    """Print a page as PDF by Chromium. Return None, or the reason why that failed.

    Parameters
    ----------
    page : the HTML document.
    output : the file to write.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return "Chromium is not installed: print the page from a browser instead"
    # Chromium refuses its sandbox to root, as in containers; the page loads nothing.
    no_sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as profile:
        printed = Path(profile) / "page.pdf"
        call = [
            browser, "--headless", *no_sandbox, "--disable-gpu", "--disable-dev-shm-usage",
            f"--user-data-dir={profile}", "--no-pdf-header-footer", f"--print-to-pdf={printed}",
            page.resolve().as_uri(),
        ]  # fmt: skip
        try:
            done = subprocess.run(call, capture_output=True, text=True, timeout=_PDF_SECONDS)
        except subprocess.TimeoutExpired:
            return f"{browser} took more than {_PDF_SECONDS} s"
        if not printed.exists():
            lines = done.stderr.strip().splitlines() or ["it gave no reason"]
            return f"{browser} wrote no PDF: {lines[-1]}"
        with atomic(output) as temporary:
            shutil.copyfile(printed, temporary)
    return None
