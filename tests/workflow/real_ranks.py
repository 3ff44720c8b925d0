"""Scripts of tests whose real ranks train several models in turn, with one start of TensorFlow.

`started` runs such a script, as `exchange.py`, on every rank: `python SCRIPT FOLDER …`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from escala import engines
from escala.core.files import read_json, write_json
from escala.probes import planned_probe
from escala.runtime import launch
from escala.runtime.layout import Layout, places
from escala.strategies import STRATEGIES
from escala.strategies.base import Place
from tests.conftest import KNOBS, ROOT

#: The folder of what the ranks of a run have measured.
RANKS = "ranks"
NO_KNOBS: Mapping[str, object] = MappingProxyType({})


def started(
    script: str,
    *arguments: str | Path,
    ranks: int = 2,
    strategy: str = "horovod-mpi",
    knobs: Mapping[str, object] = NO_KNOBS,
) -> None:
    """Run a script on ranks of this machine, and wait until all have ended well.

    Parameters
    ----------
    strategy : whose launcher starts the ranks.
    knobs : alongside those of a run by default, with one thread a rank.
    """
    knobs = KNOBS | {"threads": {"intra_op": 1}} | dict(knobs)
    strategy, layout = STRATEGIES[strategy], Layout.parse(f"1x{ranks}")
    nodes = launch.survey(layout, strategy, None, "auto")
    environment = launch.environment(strategy.name, knobs, nodes)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    at = places(layout, strategy, knobs, nodes.nodes)
    command = [sys.executable, script, *map(str, arguments)]
    with launch.command_line(nodes, strategy, at, command) as (whole, added):
        done = subprocess.run(
            whole, env=environment | added, capture_output=True, text=True, timeout=540
        )
    assert done.returncode == 0, done.stdout + done.stderr


def mean_losses(steps: pd.DataFrame) -> pd.Series:
    """Return the mean loss over the global batch of every step, from the steps of all ranks."""
    totals = steps.groupby(["epoch", "step"])[["rows", "loss_sum"]].sum()
    return (totals["loss_sum"] / totals["rows"]).reset_index(drop=True)


def plan(
    data: Path,
    workload: str,
    strategy: str,
    knobs: Mapping[str, object],
    training: Mapping[str, object],
    *,
    rows: int,
    batch: int,
    rate: float,
    seed: int,
    instrument: str | None = None,
) -> dict:
    """Return what training reads of the plan of a run (`escala.record.plan`).

    Parameters
    ----------
    training : settings of the workload, with `epochs`.
    rows : for training. After each epoch the test rows are validated.
    """
    common = {"validate": False, "save_model": True, "tensorboard": False}
    return {
        "strategy": strategy,
        "workload": workload,
        "training": common | {"checkpoint_epochs": None} | dict(training),
        "knobs": KNOBS | {"threads": {"intra_op": 1, "inter_op": 1}} | dict(knobs),
        "data": str(data),
        "train_rows": rows,
        "validated_on": "test",
        "max_steps": None,
        "instrument": instrument,
        "probe_settings": {} if instrument else None,
        "epochs": training["epochs"],
        "global_batch": batch,
        "step_rows": min(batch, rows),
        "learning_rate": rate,
        "seed": seed,
        "weighting": knobs.get("weighting", "rows"),
        "digest": "",
        "resume_after": 0,
    }


def place(process: int, processes: int, ranks: list[int]) -> Place:
    """Return the place of a process that holds some of the ranks, all on one node."""
    return Place(
        process=process, processes=processes, ranks=ranks, node=0, nodes=1, local=process,
        processes_per_node=processes, host="localhost", cores=[], addresses=[], extra_addresses=[],
    )  # fmt: skip


def ranks_by(strategy: str, knobs: Mapping[str, object], at: Place | None) -> Any:
    """Return a process among those of a run (`escala.engines.tensorflow.ranks`), not started."""
    if at:
        os.environ.update(STRATEGIES[strategy].process_variables(at, ""))
    return engines.ranks_of(strategy)(knobs, at)


def trained(asked: dict, ranks: Any, at: Place, total: int, folder: Path) -> None:
    """Train one process's part of a run in a folder, which receives what a run's folder does.

    Parameters
    ----------
    asked : the result of `plan`.
    ranks : already started, perhaps for an earlier run: they get this one's knobs and place.
    total : ranks in all.
    """
    # Imports TensorFlow, for which the tests of a script need not wait.
    from escala.engines.tensorflow.engine import TensorFlow
    from escala.training.train import train

    ranks.knobs, ranks.place = asked["knobs"], at
    asked["ranks"] = total
    into = folder / RANKS
    into.mkdir(parents=True, exist_ok=True)
    write_json(into / "plan.json", asked)
    measured = train(asked, TensorFlow(asked, ranks), into, planned_probe(asked, into))
    write_json(into / f"rank{at.process}.json", measured)


def ranks_of(folder: Path, processes: int = 2) -> list[dict]:
    """Return the measurements of the processes that trained in a folder, all of them."""
    files = sorted((folder / RANKS).glob("rank?.json"))
    assert len(files) == processes
    return list(map(read_json, files))
