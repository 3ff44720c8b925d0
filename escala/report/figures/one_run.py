"""Provide helpers of figures that show one run."""

from __future__ import annotations

from matplotlib.figure import Figure

from escala.report.figures.common import empty, head
from escala.report.figures.looks import describe


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
    """Return a figure with the reason why a run's data are not shown."""
    ended = f" The run ended as {run['status']}: {run['reason']}." if run["reason"] else ""
    return empty(f"{what}, {run_name(run)}", data_name(run), f"Unavailable: {why}.{ended}")
