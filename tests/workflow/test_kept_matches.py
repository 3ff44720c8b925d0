"""Whatever makes a run be measured again, its reference is measured with it.

The runs end at once, with made-up measurements.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from escala.analysis.comparable import match_runs
from escala.analysis.measurements import measurements
from escala.experiment import Experiment, Run
from tests.conftest import ROOT
from tests.workflow.conftest import experiment_of
from tests.workflow.measured import FAKE

SIMULATED = {"type": "simulated", "rows": {"train": 40, "validation": 0, "test": 10}}
MOTIFS = {"kind": "motifs", "source": SIMULATED, "length": 20, "split": {"seeds": [4]}}
SETTINGS = experiment_of("small", SIMULATED, repeats=2) | {
    "datasets": {"small": MOTIFS},
    "workloads": {"tal1-cnn": {"epochs": 1, "save_model": False}},
}
RUNS = Experiment(SETTINGS, "e.yaml").runs


class Called:
    """An experiment in a folder: one process, and two ranks over MPI and over Gloo, twice."""

    def __init__(self, folder: Path, snakemake: Callable):
        self.folder, self._snakemake = folder, snakemake

    def call(self, *targets: str, ok: bool = True, experiment: dict | None = None) -> str:
        """Call Snakemake for all runs, or for others, which ends well, and return its output."""
        files = targets or ["runs"]
        environment = {"ESCALA_STORE": "off", "ESCALA_MEASURE_AGAIN": "0"}
        done = self._snakemake(*files, experiment=experiment, fails=not ok, **environment)
        return done.stdout + done.stderr

    def retry(self) -> None:
        results = str(self.folder / "results/small")
        command = [sys.executable, "-m", "escala.command", "retry", results]
        subprocess.run(command, cwd=ROOT, check=True)

    def named(self, file: str, content: str) -> None:
        (self.folder / file).write_text(content)

    def sessions(self) -> dict[str, str]:
        """Return the session of each run's current measurement, by strategy and repeat."""
        found = {}
        for run in RUNS:
            path = self.folder / run.file
            name = f"{run.strategy} {run.repeat}"
            found[name] = json.loads(path.read_text())["session"] if path.exists() else None
        return found

    def matches(self) -> dict[str, int]:
        """Return the number of matches of each configuration with one process."""
        measured = {
            strategy: measurements(self.folder / run.file for run in runs_of(strategy))
            for strategy in ("single", "horovod-mpi", "horovod-gloo")
        }
        ok = {name: [r for r in runs if r["status"] == "ok"] for name, runs in measured.items()}
        return {
            name: len({run["repeat"] for run in match_runs(ok[name], ok["single"]).runs})
            for name in ("horovod-mpi", "horovod-gloo")
        }


def runs_of(strategy: str) -> list[Run]:
    return [run for run in RUNS if run.strategy == strategy]


@pytest.fixture
def called(tmp_path: Path, snakemake: Callable, imported: Callable) -> Called:
    imported(FAKE)
    return Called(tmp_path, snakemake)


WHOLE = {"horovod-mpi": 2, "horovod-gloo": 2}


def test_failed_interrupted_and_damaged_runs_keep_their_matches(called, dry_run):
    called.named("fails", "horovod-mpi")
    said = called.call(experiment=SETTINGS, ok=False)
    assert "escala retry results/small" in said, said
    assert called.matches() == {"horovod-mpi": 0, "horovod-gloo": 2}
    first = called.sessions()
    # The order is drawn anew for each repeat.
    begun = sorted(RUNS, key=lambda run: (called.folder / run.file).stat().st_mtime_ns)
    assert begun == Experiment(SETTINGS, "e.yaml").timed != RUNS
    turns = [json.loads((called.folder / run.file).read_text())["turn"] for run in begun]
    assert turns == 2 * [{"place": place, "of": 3} for place in (1, 2, 3)]
    called.named("fails", "")
    called.retry()
    called.named("interrupts", runs_of("horovod-mpi")[0].folder)
    called.call(ok=False)
    called.named("interrupts", "")
    called.call()
    assert called.matches() == WHOLE
    mended = called.sessions()
    changed = {name for name in mended if mended[name] != first[name]}
    assert changed == {
        f"{name} {repeat}" for name in ("single", "horovod-mpi") for repeat in (1, 2)
    }

    assert "Nothing to be done" in dry_run("results/small/measurements.json")[1]
    assert "Nothing to be done" in dry_run(*(run.file for run in RUNS))[1]

    # A power loss leaves the run of a reference unreadable, in both places.
    damaged = called.folder / runs_of("single")[0].file
    for path in (damaged, *damaged.parent.glob("sessions/*.json")):
        path.write_text('{"status": "o')
    called.call()
    assert called.matches() == WHOLE
    repaired = called.sessions()
    assert len({repaired[f"{run.strategy} 1"] for run in RUNS}) == 1
    assert {name: repaired[name] for name in mended if name.endswith("2")} == {
        name: mended[name] for name in mended if name.endswith("2")
    }


def test_a_run_that_failed_is_refused_until_its_setting_is_mended(called, dry_run):
    mpi = runs_of("horovod-mpi")[0].file
    called.named("fails", "horovod-mpi")
    called.call(mpi, experiment=SETTINGS, ok=False)
    code, said = dry_run(mpi)
    assert code != 0 and "ended as unavailable: mpirun is not installed. To run it again" in said
    mended = SETTINGS | {"variants": {"tuned": {"compression": "fp16"}}}
    code, said = dry_run(mpi, experiment=mended)
    assert code == 0 and "Measure tal1-cnn on small: horovod-mpi" in said, said


def test_a_run_that_kills_its_session_has_failed_and_the_next_call_goes_on(called):
    first = Experiment(SETTINGS, "e.yaml").timed[0]
    called.named("dies", first.folder)
    said = called.call(experiment=SETTINGS, ok=False)
    assert f"escala: {first.file}: recorded as failed: its session was killed" in said
    # What stands as a failure is told by each call for all runs, also by one that measures none.
    for count in (5, 0):
        said = called.call(ok=False)
        assert said.count(": ok\n") == count and "1 of 6 runs did not end ok" in said, said
    statuses = {run.file: json.loads((called.folder / run.file).read_text()) for run in RUNS}
    assert {file for file, run in statuses.items() if run["status"] != "ok"} == {first.file}
    assert statuses[first.file]["status"] == "failed"
    said = called.call("results/small/measurements.json", ok=False)
    assert f"{first.file} ended as failed" in said and "retry results/small" in said, said
