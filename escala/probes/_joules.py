"""Energy of the devices of a node, from the samples of their counters."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from escala.core.errors import Unavailable
from escala.probes._counters import INSIDE, NODE_WATTS, PACKAGE_WATTS, UPDATE_SECONDS, wrap_seconds

if TYPE_CHECKING:
    import pandas as pd


def summary(
    samples: dict[int, pd.DataFrame], within: dict[int, dict[str, tuple[float, float]]]
) -> list[dict]:
    """Return the energy of each node, in the form of `escala.probes.energy.Energy.result`.

    Parameters
    ----------
    samples : the samples of each node, in `COLUMNS`.
    within : the result of `escala.probes.energy.moments`; other nodes are left out.

    Raises
    ------
    Unavailable : the energy of a node is not known completely; the message names the counter.
    """
    missing = sorted(within.keys() - samples.keys())
    if missing:
        raise Unavailable(f"node {missing[0]} has no samples of energy")
    return [_node(node, samples[node], **within[node]) for node in sorted(within)]


def _node(
    node: int, samples: pd.DataFrame, trained: tuple[float, float], idle: tuple[float, float]
) -> dict:
    devices = dict(iter(samples.groupby("device", sort=False)))
    try:
        joules = {name: grown(rows, *trained) for name, rows in devices.items()}
        if not joules:
            raise Unavailable("no counter was read")
        for name in (name for name, each in joules.items() if not each):
            raise Unavailable(f"{name}: its counter did not grow")
    except Unavailable as error:
        raise Unavailable(f"node {node}: {error}") from None
    idle_watts, idle_reason = dict.fromkeys(devices), None
    try:
        idle_joules = {name: grown(rows, *idle) for name, rows in devices.items()}
        idle_watts = {n: each / (idle[1] - idle[0]) for n, each in _apart(idle_joules).items()}
    except Unavailable as error:
        idle_reason = str(error)
    return {
        "node": node,
        "seconds": trained[1] - trained[0],
        "idle_reason": idle_reason,
        "devices": [
            {
                "device": name,
                "source": devices[name]["source"].iloc[0],
                "joules": each,
                "idle_watts": idle_watts[name],
                **_in_use(devices[name][devices[name]["seconds"].between(*trained)]),
            }
            for name, each in _apart(joules).items()
        ],
    }


def _apart(values: dict[str, float]) -> dict[str, float]:
    """Return the values of devices without those of the devices that they contain."""
    return {
        name: value - sum(part for inner, part in values.items() if inner.startswith(name + INSIDE))
        for name, value in values.items()
    }


def _in_use(rows: pd.DataFrame) -> dict:
    known = rows["used"].dropna()
    return {"used": bool(known.any()) if len(known) else None, "samples": len(rows)}


def grown(rows: pd.DataFrame, begin: float, end: float) -> float:
    """Return the joules by which a counter grew between two moments.

    A counter with a range begins again with 0 when it reaches it. Between two samples the counter
    is interpolated linearly.

    Parameters
    ----------
    rows : the samples of one device, in `COLUMNS`.
    begin, end : seconds of `time.monotonic`.

    Raises
    ------
    Unavailable : there is no sample before or after these moments, the counter could not be read
        between them, it was reset, or it may have wrapped unnoticed.
    """
    import numpy as np

    if not begin < end:
        raise Unavailable("no time between the two moments")
    rows = rows.sort_values("seconds")
    device, seconds = rows["device"].iloc[0], rows["seconds"].to_numpy()
    first = np.searchsorted(seconds, begin, side="right") - 1
    last = np.searchsorted(seconds, end, side="left")
    if first < 0 or last == len(seconds):
        raise Unavailable(f"{device}: no sample {'before' if first < 0 else 'after'} these moments")
    rows = rows.iloc[first : last + 1]
    lost = rows[rows["joules"].isna()]
    if len(lost):
        raise Unavailable(str(lost["error"].iloc[0]))
    samples = rows[["seconds", "joules", "range_joules"]].itertuples(index=False)
    steps = [_step(device, *pair) for pair in pairwise(samples)]
    total = np.concatenate([[0.0], np.cumsum(steps)])
    before, after = np.interp([begin, end], rows["seconds"].to_numpy(), total)
    return float(after - before)


def _step(device: str, before: tuple, after: tuple) -> float:
    """Return the joules by which a counter grew from one sample to the next."""
    seconds, joules = after.seconds - before.seconds, after.joules - before.joules
    wraps = not math.isnan(after.range_joules)
    if wraps:
        if seconds > wrap_seconds(after.range_joules):
            raise Unavailable(
                f"{device}: no sample for {seconds:.0f} s, in which it may have wrapped"
            )
        if joules < 0:
            joules += after.range_joules
    most_watts = PACKAGE_WATTS if wraps else NODE_WATTS
    if joules < 0 or joules > (seconds + UPDATE_SECONDS) * most_watts:
        raise Unavailable(f"{device}: its counter was reset")
    return joules
