"""The site of the documentation and the course: for the longer suite."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from escala.experiment import load
from escala.probes import PROBES
from escala.report.tables.base import dtypes
from tests.conftest import ROOT

pytestmark = pytest.mark.sweep
DOCS = ROOT / "docs"
EXERCISES = sorted((DOCS / "course").glob("[0-9]-*.md"))
EXPERIMENTS = sorted((ROOT / "experiments" / "course").glob("*.yaml"))


@pytest.mark.docs
def test_the_site_is_built_without_a_broken_link_and_loads_nothing_from_elsewhere(tmp_path):
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    build = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    loaded = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(https?:[^\s\">]+)")
    found = {u for page in tmp_path.rglob("*.html") for u in loaded.findall(page.read_text())}
    assert found == set()


def in_pytorch(file: Path, folder: Path) -> Path:
    """Return the experiment of an exercise in PyTorch, as the course makes it."""
    made = folder / file.name.replace(".yaml", "-torch.yaml")
    call = ["sed", "-f", ROOT / "experiments/course/torch.sed", file]
    made.write_text(subprocess.run(call, capture_output=True, text=True, check=True).stdout)
    return made


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_exercise_trains_as_often_in_pytorch_and_as_its_page_says(file, tmp_path):
    [page] = [each for each in EXERCISES if f"{file.stem}.yaml" in each.read_text()]
    both = [load(file), load(in_pytorch(file, tmp_path))]
    assert [each.name for each in both] == [file.stem, f"{file.stem}-torch"]
    strategies = [{run.strategy for run in each.runs} for each in both]
    assert strategies[0] <= {"single", "horovod-mpi", "hybrid"}
    assert strategies[1] <= {"torch-single", "ddp-gloo", "ddp-hybrid"}
    counts = [
        len(each.runs) + sum(len(each.probe_runs(probe)) for probe in PROBES) for each in both
    ]
    if times := re.search(r"trains (\d+) times", page.read_text()):
        assert counts == [int(times[1])] * 2
    for name, path in re.findall(r"results/([\w-]+)/runs/([^*\s]*)/run\.json", page.read_text()):
        *configuration, probe = path.split("/")
        {each.name: each for each in both}[name].run(*configuration, None, probe)


@pytest.mark.parametrize("page", EXERCISES, ids=lambda path: path.stem)
def test_tables_that_an_exercise_reads_have_its_columns(page):
    read = r"tables/(\w+)\.csv'\)[^\n]*\n(.*?)(?:\n\w+ = pandas|\"$)"
    for table, columns in re.findall(read, page.read_text(), re.M | re.S):
        # A value that a column is compared with is no column.
        names = re.sub(r"[!=]= '[^']*'", "", columns)
        assert set(re.findall(r"'(\w+)'", names)) <= set(dtypes(table))
