"""Decide whether two measurements may be compared, and give the reason if not.

One function decides it for whatever compares times: pooling measures of one run from several
sessions, ratios to a reference, pairs of ladders, and parts of a step.

Conditions of any two measurements:

- the same data;
- machines of the same kind, on every node: CPU model, cores, and memory within `MEMORY` of each
  other, since kernels of machines that are alike keep back a few megabytes more or less. Names of
  hosts may differ.

Of one configuration, measured in several sessions, also:

- the same settings, knobs, ranks, cores available, versions and source;
- the same link where there are several nodes: the name of the network, its interface, the rate
  asked for, and measured rates within `RATE` of each other where both were measured.

Of two configurations, which differ in just these, also:

- the same session and the same repeat, since machines drift.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from escala.parallel.layout import Layout
from escala.references import Place

MEMORY, RATE = 0.05, 0.1
#: What names a configuration, and with `repeat` a run.
CONFIGURATION = ("dataset", "workload", *Place._fields)
#: Parts of `training` in run.json that are results of a run, not conditions.
_OUTCOMES = {"epochs_done", "stopped_early", "resumed_after", "optimizer", "parameters"}

Measurement = Mapping[str, Any]


class Verdict(NamedTuple):
    """The result of a comparison of conditions; `reason` is set where they differ."""

    ok: bool
    reason: str | None = None


def comparable(one: Measurement, other: Measurement) -> Verdict:
    """Decide whether the times of two measurements may be set against each other.

    Parameters
    ----------
    one, other : contents of `run.json`, as `escala.explain.measurements.read_run` returns them.
    """
    same_run = all(one[key] == other[key] for key in CONFIGURATION)
    differing = _configuration if same_run else _series
    for reason in (*differing(one, other), *_common(one, other)):
        return Verdict(False, reason)
    return Verdict(True)


def _series(one: Measurement, other: Measurement) -> Iterator[str]:
    for key in ("session", "repeat", "instrument"):
        if one[key] != other[key]:
            yield f"measured in another {key}: {one[key]} and {other[key]}"


def _configuration(one: Measurement, other: Measurement) -> Iterator[str]:
    parts = {
        "settings": lambda run: {k: v for k, v in run["training"].items() if k not in _OUTCOMES},
        "knobs": lambda run: run["knobs"],
        "ranks": lambda run: run["ranks"]["asked"],
        "cores available": lambda run: sorted({m["cores_available"] for m in _machines(run)}),
        "versions": lambda run: run["versions"],
        "source": lambda run: run["source_sha256"],
    }
    for name, part in parts.items():
        if part(one) != part(other):
            yield f"measured with other {name}"
    if Layout.parse(one["layout"]).nodes > 1:
        yield from _links(one, other)


def _links(one: Measurement, other: Measurement) -> Iterator[str]:
    links = [run["link"] or {} for run in (one, other)]
    used = {
        "interface": [run["ranks"].get("interface") for run in (one, other)],
        "rate": [link.get("rate") for link in links],
    }
    for name, (first, second) in used.items():
        if first != second:
            yield f"another {name} of the network {one['network']}: {first} and {second}"
    rates = [link.get("mbit_per_second") for link in links]
    if all(rates) and not _close(*rates, RATE):
        first, second = (f"{rate:.0f}" for rate in rates)
        yield f"links of unlike rates: {first} and {second} Mbit/s measured"


def _common(one: Measurement, other: Measurement) -> Iterator[str]:
    if one["data"]["sha256"] != other["data"]["sha256"]:
        yield "measured on other data"
    kinds = [_machines(run) for run in (one, other)]
    for mine, theirs in (kinds, kinds[::-1]):
        for machine in mine:
            if not any(_alike(machine, another) for another in theirs):
                yield f"unlike machines: {_described(kinds[0])} and {_described(kinds[1])}"


def _machines(run: Measurement) -> Sequence[Mapping[str, Any]]:
    """Return the machine of every node; of a run that found no nodes, the one it was started on."""
    return run["ranks"].get("machines") or [run["machine"]]


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    same = all(one[key] == other[key] for key in ("cpu", "cores_total"))
    return same and _close(one["memory_bytes"], other["memory_bytes"], MEMORY)


def _close(one: float, other: float, part: float) -> bool:
    return abs(one - other) <= part * max(one, other)


def _described(machines: Iterable[Mapping[str, Any]]) -> str:
    """Name kinds of machines, each once, with the hosts' CPU model, cores and memory."""
    kinds = (
        f"{m['cpu']}, {m['cores_total']} cores, {m['memory_bytes'] / 2**30:.0f} GiB"
        for m in machines
    )
    return " with ".join(dict.fromkeys(kinds))


class Pairs(NamedTuple):
    """Runs set against their reference's run of the same session and repeat.

    Attributes
    ----------
    runs, references : the measurements of each pair, in the same order.
    refused : why others have no partner, each reason once.
    """

    runs: list[Measurement]
    references: list[Measurement]
    refused: list[str]


def paired(runs: Iterable[Measurement], references: Iterable[Measurement]) -> Pairs:
    """Pair the measurements of a configuration with those of another that are comparable."""
    by_series = {(run["session"], run["repeat"]): run for run in references}
    pairs = Pairs([], [], [])
    for run in runs:
        reference = by_series.get((run["session"], run["repeat"]))
        if reference is None:
            continue
        verdict = comparable(run, reference)
        if verdict.ok:
            pairs.runs.append(run)
            pairs.references.append(reference)
        elif verdict.reason not in pairs.refused:
            pairs.refused.append(verdict.reason)
    return pairs
