"""Let runs of a workflow end at once, with made-up measurements.

`FAKE` is code that every Python process begins with. In the working directory, the file `fails`
names a strategy whose runs fail, and the file `dies` the end of the path of a run that its session
dies with.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

FAKE = """
import sys

if sys.orig_argv[1:4] == ["-m", "escala.command", "measure"]:
    from tests.workflow.measured import replace
    replace()
"""
PARTS = (
    "startup", "loading", "build", "first_step", "first_prediction", "broadcast",
    "checkpoint", "averaging", "evaluation", "save",
)  # fmt: skip


def replace() -> None:
    """Replace what starts the ranks of a run."""
    from escala.record import run

    run._Attempt.run = _run


def _run(attempt, limit_seconds: float):
    from escala.record.schema import Outcome
    from escala.training.shards import Shards

    request, plan, data, folder = attempt.request, attempt.plan, attempt.data, attempt.folder
    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    if _named("fails") == request["strategy"]:
        return Outcome("unavailable", "mpirun is not installed")
    if (end := _named("dies")) and str(folder).endswith(end):
        os._exit(9)
    ranks, labels = plan["ranks"], np.load(data / "test_labels.npy")
    np.save(folder / "predictions.npy", labels.astype(np.int64))
    attempt.parts.append({
        "ranks": {"obtained": ranks, "launcher": "local"},
        "training": {"optimizer": "RMSprop", "epochs_done": 1, "parameters": 1},
        **_times(request, Shards.of_plan(plan, [1 / ranks] * ranks).steps(None), ranks),
        "evaluation": _all_right(data, labels),
        "weights_sha256": "0" * 64,
    })  # fmt: skip
    return Outcome("ok")


def _named(file: str) -> str:
    return Path(file).read_text() if Path(file).exists() else ""


def _times(request: dict, steps: int, ranks: int) -> dict:
    """Return the times that repeat, strategy and match give; a duplicate takes 2 % longer."""
    fast = 1.0 + 0.1 * (request["repeat"] % 2)
    seconds = 2.0 if request["strategy"] == "single" else fast
    seconds *= 1.02 if request["series"] else 1.0
    epoch = {
        "epoch": 1, "steps": steps, "rows": 70, "train_seconds": seconds, "loss": 1.0,
        "epoch_wall_seconds": seconds, "validation_seconds": 0.0, "accuracy": 0.5,
        "validation_accuracy": None,
    }  # fmt: skip
    each = [{"rank": rank, "median": 0.1, "p90": 0.1} for rank in range(ranks)]
    return {
        "epochs": [epoch],
        "seconds": dict.fromkeys(PARTS, 0.1) | {"train": seconds},
        "step_seconds": {"median": 0.1, "p90": 0.1, "count": 3, "per_rank": each},
        "samples_per_second": 70 / seconds,
    }


def _all_right(data: Path, labels: np.ndarray) -> dict:
    from escala.core.files import read_json

    classes = read_json(data / "dataset.json")["classes"]
    support = np.bincount(labels, minlength=len(classes)).tolist()
    right = dict.fromkeys(("precision", "recall", "f1"), 1.0)
    averages = right | {"support": len(labels)}
    per_class = zip(classes, support, strict=True)
    return {
        "rows": len(labels),
        "accuracy": 1.0,
        "classes": classes,
        "per_class": {name: right | {"support": number} for name, number in per_class},
        "macro": averages,
        "weighted": averages,
        "confusion_matrix": np.diag(support).tolist(),
    }
