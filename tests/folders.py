"""Copies of what `examples/` holds, in a folder of a test."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.conftest import ROOT

#: The page that brings a workload, and shows two of its files.
GUIDE = ROOT / "docs" / "how-to" / "bring-your-own-workload.md"


def copied(folder: Path, *names: str) -> None:
    """Copy files and folders of `examples/`."""
    for name in names:
        example = ROOT / "examples" / name
        if example.is_dir():
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(example, folder / name, ignore=unwanted)
        else:
            shutil.copy(example, folder / name)


def changed(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{old} in {file}"
    file.write_text(text.replace(old, new))
