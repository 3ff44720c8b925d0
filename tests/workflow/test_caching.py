"""The store under a real workflow: what is asked for again is served, and only that."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from escala.core.files import sha256_file
from tests.conftest import copy_project
from tests.workflow.conftest import SIMULATED, experiment_of

#: On other cores than before a run is measured again.
pytestmark = pytest.mark.all_cores

RUN = "results/small/runs/small/majority/single/1x1/tuned/native/rep1/run.json"
FIGURE = "results/small/figures/splits.svg"
#: Tables, and the figures drawn from them.
MADE = ("results/small/tables/runs.csv", "results/small/figures")


def fits_only(**dataset: object) -> dict:
    """An experiment without a network: its runs take a second."""
    plain = {"oversample": {"method": "none"}}
    experiment = experiment_of("small", SIMULATED, dataset=plain | dataset)
    experiment["configurations"] = experiment["configurations"][:1]
    experiment["workloads"] = {"majority": {}}
    return experiment


class Workflow:
    """A copy of the project, whose code can be changed, and a folder it works in."""

    def __init__(self, folder: Path, store: Path):
        self.folder, self.code, self.store = folder, folder / "project", store
        if not self.code.exists():
            copy_project(self.code)

    def copy(self, folder: Path) -> Workflow:
        """Return this workflow, with what it has made and stored, in a new folder."""
        # It needs no PyTorch, whose environment is a link to 43 000 files.
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns(".venv-torch"))
        return Workflow(folder, folder / self.store.relative_to(self.folder))

    def start(self, experiment: dict, *targets: str) -> subprocess.Popen:
        settings = self.folder / "experiment.yaml"
        settings.write_text(yaml.safe_dump(experiment))
        return subprocess.Popen(
            [
                Path(sys.executable).parent / "snakemake",
                *targets,
                "--snakefile", self.code / "Snakefile",
                "--directory", self.folder,
                "--cores", "2",
                "--configfile", settings,
            ],
            env=os.environ | {"ESCALA_STORE": str(self.store)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, experiment: dict, *targets: str) -> tuple[Counter, Counter]:
        """Return how often each rule ran, and how often each step was served."""
        workflow = self.start(experiment, *targets)
        said, _ = workflow.communicate(timeout=300)
        assert workflow.returncode == 0, said
        self.said = said
        planned = re.search(r"^job +count\n-.*\n((?:\w+ +\d+\n)+)", said, re.MULTILINE)[1]
        ran = Counter({rule: int(count) for rule, count in map(str.split, planned.splitlines())})
        del ran["total"]
        return (
            ran,
            Counter(re.findall(r"^(\S+): served from the store", said, re.MULTILINE)),
        )

    def digests(self) -> dict[str, str]:
        """Digests of all that was made; logs say what happened, not what came of it."""
        results = self.folder / "results"
        return {
            str(path.relative_to(results)): sha256_file(path)
            for path in sorted(results.rglob("*"))
            if path.is_file() and "logs" not in path.parts
        }

    def change(self, file: str, old: str, new: str) -> None:
        path = self.code / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """A workflow that has made tables and a figure; tests change a copy of it."""
    folder = tmp_path_factory.mktemp("store")
    made = Workflow(folder, folder / "shared")
    _, served = made.run(fits_only(), *MADE)
    assert not served
    return made


@pytest.fixture
def workflow(finished: Workflow, tmp_path: Path) -> Workflow:
    return finished.copy(tmp_path / "copy")


def test_a_setting_that_is_taken_back_brings_the_old_results_back(workflow):
    """Without any results, everything is served."""
    before = workflow.digests()
    _, served = workflow.run(fits_only(length=310), RUN)
    assert not served["codes"] and not served[RUN]
    assert workflow.digests() != before
    shutil.rmtree(workflow.folder / "results")
    ran, served = workflow.run(fits_only(), *MADE)
    assert served.total() == ran.total() > 5, workflow.said
    assert workflow.digests() == before


def test_changed_code_recomputes_the_steps_that_declare_it_and_no_others(workflow):
    """Tables and figures take seconds, and declare the whole project."""
    workflow.change(
        "escala/report/figures/splits.py", "Scores by the kind of split", "Scores by split"
    )
    ran, served = workflow.run(fits_only(), *MADE)
    assert ran == {"page": 1} and not served
    assert "Scores by split" in (workflow.folder / FIGURE).read_text()


def test_identical_bytes_upstream_recompute_nothing_downstream(workflow):
    workflow.change("escala/data/genomes/acquire/simulate.py", "KAPPA = 4.0", "KAPPA = 2.0 + 2.0")
    before = workflow.digests()
    ran, served = workflow.run(fits_only(), RUN)
    assert ran["genomes"] == 1 and not served["genomes"], "the changed step is made again"
    for rule in ("codes", "arrays"):
        assert ran[rule] == served[rule] == 1, workflow.said
    assert "Train majority" not in workflow.said, "it stands"
    assert workflow.digests() == before
