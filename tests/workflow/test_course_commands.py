"""Every command of the course that measures, as a dry run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = sorted((ROOT / "docs" / "course").glob("[0-9]-*.md"))
OF_PROJECT = ("experiments/", "profiles/")


def commands(page: Path) -> list[list[str]]:
    """Return the arguments of each call of Snakemake on a page, with the project's own paths."""
    joined = page.read_text().replace("\\\n", " ")
    found = re.findall(r"^uv run snakemake (.*)$", joined, re.MULTILINE)
    return [
        [str(ROOT / word) if word.startswith(OF_PROJECT) else word for word in shlex.split(line)]
        for line in found
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_commands_of_an_exercise_are_understood(page, tmp_path):
    """Where a page tells how often it trains, it tells this of its first command."""
    text, given = page.read_text(), commands(page)
    assert given
    for number, arguments in enumerate(given):
        done = subprocess.run(
            [
                Path(sys.executable).parent / "snakemake",
                *arguments,
                # A worker of the tests has one core.
                "--config", "oversubscribe=True",
                "--snakefile", ROOT / "Snakefile",
                "--directory", tmp_path,
                "--dry-run",
            ],
            cwd=ROOT,
            env=os.environ | {"ESCALA_STORE": str(tmp_path / "store")},
            capture_output=True,
            text=True,
            timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        if number == 0 and (times := re.search(r"trains (\d+) times", text)):
            trained = re.findall(r"(?:Train|Capture the clocks of) ", done.stdout)
            assert len(trained) == int(times[1])
