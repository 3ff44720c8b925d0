"""Provide helpers of the figures of a Horovod timeline."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from escala.probes.timeline import FAMILIES, OTHER
from escala.report.figures.common import describe, empty, head, palette

COLOURS = palette([*FAMILIES, OTHER])


def heading(figure: Figure, what: str, run: dict) -> None:
    """Put a title, the run and the data above a figure."""
    head(figure, what, run_name(run), data_name(run))


def run_name(run: dict) -> str:
    names = [run[key] for key in ("strategy", "layout", "variant", "network", "workload")]
    return " ".join(names)


def data_name(run: dict) -> str:
    data = run["data"]
    return describe(run["dataset"], data["provenance"], data["leaky"])


def nothing(what: str, run: dict, why: str) -> Figure:
    """Return a figure with the reason why a run's timeline is not shown."""
    ended = f" The run ended as {run['status']}: {run['reason']}." if run["reason"] else ""
    return empty(f"{what}, {run_name(run)}", data_name(run), f"Unavailable: {why}.{ended}")


def short(tensor: str, letters: int = 44) -> str:
    """Shorten a tensor's name at its start, which is the same for all tensors of a model."""
    return tensor if len(tensor) <= letters else "…" + tensor[1 - letters :]


def spans(phases: pd.DataFrame) -> list[tuple[float, float]]:
    """Return intervals as (start, length), in seconds."""
    return list(
        zip(phases["start_seconds"], phases["end_seconds"] - phases["start_seconds"], strict=True)
    )
