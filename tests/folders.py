"""The workload that docs/how-to/bring-your-own-workload.md brings, in a folder of its own."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import ROOT

GUIDE = ROOT / "docs" / "how-to" / "bring-your-own-workload.md"


def files_of(guide: Path, folder: Path, prefix: str = "") -> None:
    """Write the files of a page of the documentation into a folder, without a prefix."""
    matches = re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```$", guide.read_text(), re.M | re.S)
    assert len(matches) == 4, guide
    for name, text in matches:
        path = folder / name.removeprefix(prefix)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def changed(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{old} in {file}"
    file.write_text(text.replace(old, new))
