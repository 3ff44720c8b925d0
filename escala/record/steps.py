"""Step times of the ranks of a run, summarised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd


def read(folder: Path, ranks: int) -> pd.DataFrame:
    """Return the steps of all ranks, in the columns each rank wrote and `rank`."""
    return pd.concat(
        [pd.read_csv(folder / f"rank{r}.steps.csv").assign(rank=r) for r in range(ranks)],
        ignore_index=True,
    )


def summary(steps: pd.DataFrame) -> dict:
    """Summarise steady-state steps, in seconds, input included.

    A step lasts as long as its slowest rank takes: the median and the 90th percentile over steps
    are of that maximum. The first, compiling step is not among them (it is a warm-up).
    """
    seconds = (steps["input_seconds"] + steps["step_seconds"]).rename("seconds")
    table = pd.concat([steps[["rank", "epoch", "step"]], seconds], axis=1)
    slowest = table.groupby(["epoch", "step"])["seconds"].max()
    return {
        **_quantiles(slowest),
        "count": len(slowest),
        "per_rank": [
            {"rank": int(rank), **_quantiles(group["seconds"])}
            for rank, group in table.groupby("rank")
        ],
    }


def _quantiles(seconds: pd.Series) -> dict[str, float]:
    median, p90 = np.quantile(seconds, [0.5, 0.9])
    return {"median": float(median), "p90": float(p90)}
