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
        copy_project(self.code)

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


def test_what_was_made_before_is_served_and_identical_bytes_upstream_recompute_nothing(tmp_path):
    workflow = Workflow(tmp_path, tmp_path / "shared")
    _, served = workflow.run(fits_only(), RUN)
    assert not served
    before = workflow.digests()
    _, served = workflow.run(fits_only(length=310), RUN)
    assert not served["codes"] and not served[RUN]
    assert workflow.digests() != before
    # A setting that is taken back brings the old results back; without any, everything is served.
    shutil.rmtree(workflow.folder / "results")
    ran, served = workflow.run(fits_only(), RUN)
    assert served.total() == ran.total() >= 4, workflow.said
    assert workflow.digests() == before

    workflow.change("escala/data/genomes/acquire/simulate.py", "KAPPA = 4.0", "KAPPA = 2.0 + 2.0")
    ran, served = workflow.run(fits_only(), RUN)
    assert ran["genomes"] == 1 and not served["genomes"], "the changed step is made again"
    for rule in ("codes", "arrays"):
        assert ran[rule] == served[rule] == 1, workflow.said
    assert "Train majority" not in workflow.said, "it stands"
    assert workflow.digests() == before
