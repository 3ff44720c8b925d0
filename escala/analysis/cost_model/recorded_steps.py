"""Read the steps and the clocks of runs that calibrate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from escala.core.errors import InputError
from escala.probes.clocks import GATHER_BEGINS, GRADIENT_READY, RETURNED

#: Parts into which the steps of a run with clocks are divided, as repeats.
_PARTS = 3
_STEP = ["epoch", "step"]


def rows_of_rank(run: Mapping) -> int:
    return run["training"]["rows_per_rank"]


def full_steps_of(run: Mapping) -> list[float]:
    found = full_steps(tables(run["file"]), rows_of_rank(run)).tolist()
    if not found:
        raise InputError(
            run["file"],
            rows_of_rank(run),
            "no step has this many rows",
            "use a smaller batch, or more data",
        )
    return found


def tables(file: str) -> list[pd.DataFrame]:
    """Return the steps of each rank of a run."""
    return [pd.read_csv(path) for path in sorted(Path(file).parent.glob("ranks/rank*.steps.csv"))]


def full_steps(tables: Sequence[pd.DataFrame], rows: int) -> pd.Series:
    """Return the seconds, means over the ranks, of the steps in which every rank has `rows` rows.

    The last step of an epoch may have fewer rows. The index has epoch and step.
    """
    steps = pd.concat(tables)
    seconds = steps["input_seconds"] + steps["step_seconds"]
    by_step = steps.assign(seconds=seconds).groupby(_STEP)
    return by_step["seconds"].mean()[by_step["rows"].min() == rows]


def clocks_of(file: str) -> pd.DataFrame:
    path = Path(file).parent / "ranks" / "rank0.clocks.csv"
    return pd.read_csv(path, keep_default_na=False)


def moments(clocks: pd.DataFrame) -> tuple[dict[str, float], list[float]]:
    """Return when gradients are known, and how long the update takes, from clocks of one process.

    Parameters
    ----------
    clocks : in the columns of `escala.probes.clocks.COLUMNS`.

    Returns
    -------
    By tensor, the fraction of the time until the last gradient after which it is known: medians of
    the steps. And the seconds from the last gradient to the end of the step: means of parts of the
    steps, which are used as repeats.
    """
    whole = clocks[clocks["tensor"] == ""].pivot(index=_STEP, columns="moment", values="seconds")
    ready = clocks[clocks["moment"] == GRADIENT_READY].pivot(
        index=_STEP, columns="tensor", values="seconds"
    )
    begins, last = whole[GATHER_BEGINS], ready.max(axis=1)
    fractions = ready.sub(begins, axis=0).div(last - begins, axis=0).clip(0, 1)
    update = np.array_split((whole[RETURNED] - last).to_numpy(), _PARTS)
    return fractions.median().to_dict(), [float(np.mean(part)) for part in update if len(part)]
