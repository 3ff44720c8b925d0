"""Let runs of a workflow end at once, with made-up measurements.

`FAKE` is code that every Python process begins with. In the working directory, the file `fails`
names a strategy whose runs fail, and the file `interrupts` the end of the path of a run that
interrupts the call.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

FAKE = """
import sys

if "scripts.train" in sys.orig_argv:
    from tests.workflow.measured import replace
    replace()
"""


def replace() -> None:
    """Replace what starts the ranks of a run."""
    from escala.record import run

    run._attempt = _attempt


def _attempt(request: dict, plan: dict, data: Path, folder: Path, result: dict, limit: float):
    from escala.record.outcome import Outcome

    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    if _named("fails") == request["strategy"]:
        return Outcome("unavailable", "mpirun is not installed")
    if (end := _named("interrupts")) and str(folder).endswith(end):
        os.kill(int(os.environ["ESCALA_SESSION"].rpartition("-")[2]), signal.SIGINT)
        time.sleep(60)
    seconds = ("startup", "loading", "build", "first_step", "first_prediction", "broadcast")
    epoch = {"epoch": 1, "steps": 1, "rows": 1, "loss": 1.0, "accuracy": 1.0}
    epoch |= {"train_seconds": 1.0, "epoch_wall_seconds": 1.0, "validation_seconds": 0.0}
    ranks = [{"rank": 0, "median": 1.0, "p90": 1.0}]
    shares = [1.0] * result["ranks"]["asked"]
    result["ranks"] |= {"obtained": result["ranks"]["asked"], "shares": shares, "one_clock": True}
    result["training"] |= {"optimizer": "RMSprop", "parameters": 1, "epochs_done": 1}
    result |= {
        "epochs": [epoch | {"validation_accuracy": None}],
        "seconds": dict.fromkeys((*seconds, "checkpoint", "train", "evaluation", "save"), 1.0),
        "step_seconds": {"median": 1.0, "p90": 1.0, "count": 1, "per_rank": ranks},
        "samples_per_second": 1.0,
        "evaluation": {"rows": 1, "scores": {"rmse": 1.0}},
        "weights_sha256": "0" * 64,
    }
    return Outcome("ok")


def _named(file: str) -> str:
    return Path(file).read_text() if Path(file).exists() else ""
