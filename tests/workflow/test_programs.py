"""The example programs: each runs as it is, on one process and on two, and its epochs are known.

One of them needs only a C compiler, and runs always. The others run in a sweep, those with
libraries of their own only where a variable names an interpreter.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from escala.core.files import read_json
from escala.experiment.files import read
from escala.experiment.matrix import Experiment
from escala.record.run import measure
from tests.conftest import ROOT
from tests.programs import prepare

pytestmark = pytest.mark.cold

FOLDER = ROOT / "experiments" / "programs"


class Case(NamedTuple):
    """What is known of a program.

    Attributes
    ----------
    known_by : how its epochs are known.
    rows : of an epoch over all ranks; None: it does not tell.
    scores : names of what it reports of itself.
    needs : the variable of its interpreter; None: the project's own.
    """

    known_by: str
    rows: int | None
    scores: set[str]
    needs: str | None = None


TORCH, MPI = "ESCALA_TORCH", "ESCALA_MPI"
ALWAYS = {"heat"}
#: Run by the interpreter of the engine.
OF_ENGINE = {"torch-spawn"}
CASES = {
    "torch-ddp": Case("hook", 1536, {"loss", "test_accuracy"}, TORCH),
    "torchrun": Case("hook", 1536, {"loss", "test_accuracy"}, TORCH),
    "torch-spawn": Case("output", None, {"loss"}),
    "lightning-digits": Case("hook", 1536, {"loss", "val_accuracy"}, TORCH),
    "transformers-trainer": Case("hook", None, {"accuracy"}, TORCH),
    "keras-horovod": Case("output", None, {"loss", "accuracy", "val_loss", "val_accuracy"}),
    "tf-loop-horovod": Case("hook", 8192, {"loss", "test_mse"}),
    "tf-multiworker": Case("hook", None, {"loss", "accuracy", "val_loss", "val_accuracy"}),
    "mpi-kmeans": Case("output", None, {"inertia"}, MPI),
    "joblib-search": Case("whole run", None, set()),
    "xgboost-threads": Case("output", None, {"loss"}, TORCH),
    "heat": Case("output", None, {"change"}),
}


def test_every_program_is_tried():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(CASES)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.torch] * (name in OF_ENGINE)
            + [pytest.mark.sweep] * (name not in ALWAYS),
            id=name,
        )
        for name in CASES
    ],
)
def test_a_program_runs_as_it_is(name, tmp_path, monkeypatch):
    case = CASES[name]
    if case.needs and case.needs not in os.environ:
        pytest.skip(f"{case.needs} names no interpreter; see docs/how-to/example-programs.md")
    if name == "heat" and shutil.which("cc") is None:
        pytest.skip("there is no C compiler; install gcc")
    monkeypatch.chdir(ROOT)
    for layout, result in measured(FOLDER / f"{name}.yaml", tmp_path).items():
        assert result["status"] == "ok", (layout, result["reason"])
        told = result["program"]
        assert told["known_by"] == case.known_by
        epochs = result["epochs"]
        # The first epoch holds what a framework compiles, and stands apart.
        assert len(epochs) == (1 if case.known_by == "whole run" else asked(result) - 1)
        assert all(epoch["train_seconds"] > 0 for epoch in epochs)
        assert {epoch["rows"] for epoch in epochs} == {case.rows}
        scores = set((result["evaluation"] or {"scores": ()})["scores"])
        assert case.scores <= scores
        # What a program reports once has no best, also where several ranks report it.
        assert not {"best_test_accuracy", "best_test_mse"} & scores


def asked(result: dict) -> int:
    return result["training"]["epochs_asked"]


def measured(file: Path, folder: Path) -> dict[str, dict]:
    """Measure the first repeat of an experiment without its threads, on whatever cores are free.

    Returns
    -------
    The content of each `run.json`, by layout.
    """
    experiment = Experiment(read(file), file)
    data = folder / "data"
    prepare(experiment, data)
    found = {}
    for run in experiment.runs:
        if run.repeat == 1 and run.variant == "plain":
            output = folder / run.layout / "run.json"
            output.parent.mkdir()
            measure(experiment.request(run) | {"oversubscribe": True}, data, output, 240)
            found[run.layout] = read_json(output)
    return found
