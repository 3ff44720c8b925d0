"""How long the runs of a dry run would take."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

from escala.config import Experiment, Run
from escala.files import read_json


def sentence(runs: list[Run], experiment: Callable[[str], Experiment]) -> str:
    """Say how long `runs` would take, from what earlier runs of the same experiment took.

    A run takes what the median earlier run of its configuration took, or else of its dataset and
    workload. Where there is neither, it is counted as unknown: no figure is made up.
    """
    known, unknown = [], 0
    for run in runs:
        seconds = _expected(run, experiment(run.experiment))
        if seconds is None:
            unknown += 1
        else:
            known.append(seconds)
    if not runs:
        return "Estimated training time: none, no run is to be measured."
    said = f"Estimated training time of {len(runs)} runs: "
    if known:
        said += f"{duration(sum(known))}, from earlier runs of the same experiment"
        return said + (f"; {unknown} more without an earlier one." if unknown else ".")
    return said + "unavailable until one run of the experiment has been measured."


def duration(seconds: float) -> str:
    """Write a duration as a person would: `42 s`, `3 min 5 s`, `2 h 4 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _expected(run: Run, experiment: Experiment) -> float | None:
    def alike(other: Run, *keys: str) -> bool:
        return all(getattr(other, key) == getattr(run, key) for key in keys)

    problem = ("dataset", "workload")
    exactly = (*problem, "strategy", "layout", "variant", "network")
    peers = [*experiment.runs, *experiment.timelines]
    if run.instrument is None:
        peers = [peer for peer in peers if peer.instrument is None]
    for keys in (exactly, problem):
        seconds = _measured(peer for peer in peers if alike(peer, *keys))
        if seconds:
            return statistics.median(seconds)
    return None


def _measured(runs: Iterable[Run]) -> list[float]:
    records = [
        read_json(path)
        for run in runs
        for path in [*Path(run.folder).glob("sessions/*.json"), *Path(run.folder).glob("run.json")]
    ]
    return [record["wall_seconds"] for record in records if record["status"] == "ok"]
