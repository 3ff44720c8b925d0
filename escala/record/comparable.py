"""Decide whether two measurements may be compared, and give the reason if not.

One function decides it for whatever compares times: pooling measures of one run from several
sessions, ratios to a reference, pairs of ladders, and parts of a step.

Conditions of any two measurements:

- the same data;
- machines of the same kind, on every node: CPU model, cores, and memory within `MEMORY` of each
  other, since kernels of machines that are alike keep back a few megabytes more or less. Names of
  hosts may differ.
- the same link, if both use the network of one name between several nodes: its interface, the rate
  asked for, and measured rates within `RATE` of each other.

A run that ended before it was given its nodes has no machines and no link: it is not compared in
them.

Of one configuration, measured in several sessions, also:

- the same settings, knobs, ranks, cores available, versions and source.

Of two configurations, which differ in just these, also:

- the same session and the same repeat, since machines drift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from escala.experiment.references import Configuration
from escala.runtime.layout import Layout
from escala.strategies.knobs import set_knobs

MEMORY, RATE = 0.05, 0.1
#: What names a configuration, and with `repeat` a run.
CONFIGURATION = ("dataset", "workload", *Configuration._fields)
#: Packages that run around the ranks and not in them; what they prepare is compared as data.
_AROUND = {"snakemake", "biopython", "imbalanced-learn"}
#: Parts of `training` in run.json that are results, or outside the timed region.
_NO_CONDITIONS = {
    "epochs_done",
    "stopped_early",
    "best_epoch",
    "resumed_after",
    "optimizer",
    "parameters",
    "validated_on",
}

Measurement = Mapping[str, Any]
Machines = Sequence[Mapping[str, Any]]


class Verdict(NamedTuple):
    """The result of a comparison of conditions; `reason` is set where they differ."""

    ok: bool
    reason: str | None = None


def comparable(one: Measurement, other: Measurement) -> Verdict:
    """Decide whether the times of two measurements may be set against each other.

    Parameters
    ----------
    one, other : contents of `run.json`, as `escala.analysis.measurements.read_run` returns them.
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
        "settings": lambda run: {
            k: v for k, v in run["training"].items() if k not in _NO_CONDITIONS
        },
        "knobs": lambda run: set_knobs(run["knobs"]),
        "ranks": lambda run: run["ranks"]["asked"],
        "versions": lambda run: {k: v for k, v in run["versions"].items() if k not in _AROUND},
        "source": lambda run: run["source_sha256"],
    }
    for name, part in parts.items():
        if part(one) != part(other):
            yield f"measured with other {name}"
    cores = [{m["cores_available"] for m in run["ranks"]["machines"]} for run in (one, other)]
    if all(cores) and cores[0] != cores[1]:
        yield "measured with other cores available"


def _links(one: Measurement, other: Measurement) -> Iterator[str]:
    if one["link"] is None or other["link"] is None:
        return
    interfaces = [run["ranks"].get("interface") for run in (one, other)]
    asked = [run["link"]["rate"] for run in (one, other)]
    for name, (first, second) in {"interface": interfaces, "rate": asked}.items():
        if first != second:
            yield f"another {name} of the network {one['network']}: {first} and {second}"
    rates = [run["link"]["mbit_per_second"] for run in (one, other)]
    if all(rates) and not _close(*rates, RATE):
        first, second = (f"{rate:.0f}" for rate in rates)
        yield f"links of unlike rates: {first} and {second} Mbit/s measured"


def _common(one: Measurement, other: Measurement) -> Iterator[str]:
    if one["data"]["sha256"] != other["data"]["sha256"]:
        yield "measured on other data"
    machines = [run["ranks"]["machines"] for run in (one, other)]
    if all(machines) and not _of_one_kind(*machines):
        first, second = map(_described, machines)
        yield f"unlike machines: {first} and {second}"
    several = all(Layout.parse(run["layout"]).nodes > 1 for run in (one, other))
    if several and one["network"] == other["network"]:
        yield from _links(one, other)


def _of_one_kind(one: Machines, other: Machines) -> bool:
    """Match machines one to one if there are equally many, and by their kinds if not."""
    if len(one) != len(other):
        return all(
            any(_alike(machine, each) for each in theirs)
            for mine, theirs in ((one, other), (other, one))
            for machine in mine
        )
    left = list(other)
    for machine in one:
        match = next((each for each in left if _alike(machine, each)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    same = all(one[key] == other[key] for key in ("cpu", "cores_total"))
    return same and _close(one["memory_bytes"], other["memory_bytes"], MEMORY)


def _close(one: float, other: float, part: float) -> bool:
    return abs(one - other) <= part * max(one, other)


def _described(machines: Machines) -> str:
    """Name the kinds of machines by CPU model, cores and memory, and count those of a kind."""
    kinds = Counter(
        f"{m['cpu']}, {m['cores_total']} cores, {m['memory_bytes'] / 2**30:.0f} GiB"
        for m in machines
    )
    return " with ".join(f"{n} × {kind}" if n > 1 else kind for kind, n in kinds.items())


class Pairs(NamedTuple):
    """Runs set against their reference's run of the same session and repeat.

    Attributes
    ----------
    runs, references : the measurements of each pair, in the same order.
    refused : why others, which have a run of the reference beside them, are not comparable with it;
        one reason for each.
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
        else:
            pairs.refused.append(verdict.reason)
    return pairs


def left_out(pairs: int, refused: Sequence[str]) -> str | None:
    """Return how many pairs have no ratio and why, or None if all have one."""
    if not refused:
        return None
    reasons = "; ".join(dict.fromkeys(refused))
    return f"{len(refused)} of {pairs + len(refused)} pairs are left out: {reasons}"
