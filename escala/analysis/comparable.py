"""Decide whether two measurements may be compared, and set runs against their references.

`refusal` decides this for all comparisons of times: sessions of one run, ratios to a reference,
ladders, and parts of a step. A history follows a configuration over machines and versions. It has
the same conditions as columns: `series`, `machines` and `versions`.

Conditions of any two measurements:

- the same data;
- the same variables and files of the user that can change kernels or the exchange
  (`escala.core.variables`);
- machines of the same kind, on every node: name of the processor with family and model, its vendor,
  stepping and features, cores, quota of cores, GPUs, and installed memory
  (`escala.core.hardware.memory_gib`). Names of hosts may differ. A machine that lacks some of these
  values, in an older file, is of another kind than a machine with all values;
- the same way in which the epochs of a program are known: by its hook, by steps that were seen, by
  its output, or not at all. If they are known by its output, a single process writes the lines of
  epochs;
- of a program, a window of steps in both or in none, and the steps of an epoch are known of both or
  of none;
- the same link, if both use the same network between several nodes: the same interface, the same
  transport if both know it, and the same requested rate. Rates that the lab measured are
  within `RATE` of each other. In one session, measured rates of links without a limit may differ.

A run that ended before it got its nodes has no machines and no link. The conditions on machines and
link do not apply to such a run.

Further conditions of two measurements of one configuration:

- the same settings, knobs, ranks, cores available, versions and source; of a program, the same
  command and files;
- in two sessions, machines that compute a fixed kernel in times within `SPEED` of each other, if
  both times are known.

Further conditions of measurements of two configurations:

- the same session and repeat, because machines drift. A scheduler may give each of them only the
  cores that it needs. A run with fewer cores than it needs is refused, or oversubscribed. A smaller
  quota makes another kind of machine.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from escala.core.hardware import memory_gib
from escala.experiment.runs import Configuration
from escala.programs.marks import OUTPUT
from escala.programs.seen import UNKNOWN_EPOCH
from escala.strategies import STRATEGIES

#: Largest difference of the measured rates of two links, as a fraction of the larger rate.
RATE = 0.1
#: Epochs of a program whose rows differ by more than this fraction are not the same work.
SAME_ROWS = 0.05
#: By how much the time of the fixed kernel (`escala.runtime.node`) may differ between sessions, as
#: a fraction of the longer. On a virtual machine of two cores, at loads of 0.4 to 10, the longest
#: of 164 such times was 1.18 times the shortest.
SPEED = 0.25
#: Keys that name a configuration of a task, and with `repeat` a run.
CONFIGURATION = ("dataset", "workload", *Configuration._fields)
#: Packages that run outside the ranks. The data that they prepare are compared as data.
_AROUND = {"snakemake", "biopython", "imbalanced-learn"}
#: Parts of `training` in run.json that are results, or outside the timed region.
_RESULTS = {
    "epochs_done", "stopped_early", "best_epoch", "resumed_after", "optimizer", "parameters",
    "validated_on", "dense_exchange",
}  # fmt: skip

#: The content of a `run.json`.
Measurement = Mapping[str, Any]
#: The machines of the nodes of a run, as in `run.json`.
Machines = Sequence[Mapping[str, Any]]


def refusal(one: Measurement, other: Measurement) -> str | None:
    """Return why the times of two measurements may not be compared; None if they may."""
    return next(_refusals(one, other), None)


def _refusals(one: Measurement, other: Measurement) -> Iterator[str]:
    """Yield the conditions that two measurements break; more apply within one configuration."""
    if all(one[key] == other[key] for key in CONFIGURATION):
        mine, theirs = (
            _settings_of(run) | {"versions": versions(run), "source": run["source_sha256"]}
            for run in (one, other)
        )
        yield from (f"measured with other {name}" for name in mine if mine[name] != theirs[name])
        cores = [_cores_available(run) for run in (one, other)]
        if all(cores) and cores[0] != cores[1]:
            yield "measured with other cores available"
        speeds = speed_seconds(one), speed_seconds(other)
        if one["session"] != other["session"] and not are_alike(*speeds, SPEED):
            first, second = (f"{1000 * seconds:.2f}" for seconds in speeds)
            yield f"machines of different speeds: {first} and {second} ms for the same computation"
    else:
        for key in ("session", "repeat", "instrument"):
            if one[key] != other[key]:
                yield f"measured in another {key}: {one[key]} and {other[key]}"
    if one["data"]["sha256"] != other["data"]["sha256"]:
        yield "measured on other data"
    if unlike := unlike_machines(one["ranks"]["machines"], other["ranks"]["machines"]):
        yield unlike
    differing = sorted({name for name, _ in _environment(one) ^ _environment(other)})
    if differing:
        yield f"measured with another environment: {', '.join(differing)}"
    ways = {_program(run).get("known_by") for run in (one, other)} - {None}
    if len(ways) > 1:
        yield f"the program reports its epochs in different ways: {' and '.join(sorted(ways))}"
    lengths = [run["training"]["steps_per_epoch"] for run in (one, other) if _program(run)]
    if None in lengths and lengths != [None, None]:
        yield "of one a window of steps was timed, and the other ended before its steps were steady"
    elif lengths.count(UNKNOWN_EPOCH) == 1:
        yield "the steps of an epoch are known of one only"
    if lines := other_lines(one, other):
        yield lines
    mechanisms = {run["ranks"].get("single_copy") for run in (one, other)} - {None}
    if len(mechanisms) > 1:
        yield "measured with another mechanism of copies between the ranks of a node"
    several = all(run["layout"].nodes > 1 for run in (one, other))
    if several and one["network"] == other["network"]:
        yield from _links(one, other)


def _settings_of(run: Measurement) -> dict[str, Any]:
    """Return what was trained and how, without the results."""
    training = run["training"]
    return {
        "settings": {key: value for key, value in training.items() if key not in _RESULTS},
        "knobs": run["knobs"],
        "ranks": run["ranks"]["asked"],
        "command": _program(run).get("command"),
    }


def _program(run: Measurement) -> Mapping[str, Any]:
    """Return what is recorded of a program; empty for another workload."""
    return run.get("program") or {}


def other_lines(one: Measurement, other: Measurement) -> str | None:
    """Return a reason if each process of a program seems to write the lines of epochs, else None.

    Signs of this: the runs had different numbers of processes on an output, and one run had a
    multiple of the lines of the other.
    """
    both_by_output = all(_program(run).get("known_by") == OUTPUT for run in (one, other))
    if not both_by_output or _writers(one) == _writers(other):
        return None
    fewer, more = sorted(run["training"]["epochs_done"] for run in (one, other))
    if fewer == more or more % fewer:
        return None
    return (
        f"the lines of its epochs came {fewer} times and {more} times, as if each process wrote "
        "its own. Remedy: let one write them, or match the number of the epoch too, as "
        r"epoch (?P<epoch>\d+)"
    )


def _writers(run: Measurement) -> int:
    """Return how many processes write into one output."""
    per_node = STRATEGIES[run["strategy"]].layouts.process_per_node
    return run["layout"].processes if per_node else 1


def _environment(run: Measurement) -> set[tuple[str, str]]:
    """Return the names and values of the recorded variables and files, those of a program too."""
    recorded = [*(run.get("environment") or {}).values(), _program(run).get("variables") or {}]
    return {(name, value) for values in recorded for name, value in values.items()}


def _links(one: Measurement, other: Measurement) -> Iterator[str]:
    """Yield the differences of the links of two measurements over one network."""
    if one["link"] is None or other["link"] is None:
        return
    interfaces = [run["ranks"]["interface"] for run in (one, other)]
    rates = [run["link"]["rate"] for run in (one, other)]
    for name, (first, second) in {"interface": interfaces, "rate": rates}.items():
        if first != second:
            yield f"another {name} of the network {one['network']}: {first} and {second}"
    pml = [run["ranks"].get("transport", {}).get("pml") for run in (one, other)]
    if all(pml) and pml[0] != pml[1]:
        yield f"another transport of the network {one['network']}: {pml[0]} and {pml[1]}"
    # Over a network without a limit, differences between pairs of nodes are part of the noise.
    is_noise = one["session"] == other["session"] and rates == [None, None]
    # One connection over a shared network gives only the order of magnitude of the rate.
    rates = [
        None if run["link"].get("measured_by") else run["link"]["mbit_per_second"]
        for run in (one, other)
    ]
    if not is_noise and not are_alike(*rates, RATE):
        first, second = (f"{rate:.0f}" for rate in rates)
        yield f"links of different rates: {first} and {second} Mbit/s measured"


def is_fit(run: Measurement) -> bool:
    """Return whether a run is a baseline: fitted at once, without steps and epochs."""
    return run["training"]["steps_per_epoch"] is None and "program" not in run


def is_emulated(run: Measurement) -> bool:
    """Return whether the nodes of a run were nodes of the lab, which are parts of one machine."""
    link = run["link"] or {}
    # Older files lack `emulated`. In these, only the lab measured a link without `measured_by`.
    by_lab = link.get("mbit_per_second") is not None and "measured_by" not in link
    return run["ranks"].get("emulated", by_lab)


def are_alike(one: float | None, other: float | None, limit: float) -> bool:
    """Return whether two values differ by at most `limit` of the larger, or a value is unknown."""
    return not (one and other) or abs(one - other) <= limit * max(one, other)


def speed_seconds(run: Measurement) -> float | None:
    """Return the median over the nodes of the time of the fixed kernel; None if unknown."""
    machines = run["ranks"]["machines"]
    seconds = [machine["speed_seconds"] for machine in machines if "speed_seconds" in machine]
    return median(seconds) if seconds else None


def unlike_machines(one: Machines, other: Machines) -> str | None:
    """Return why machines are not of one kind; None if they are, or if a machine is unknown.

    If both numbers of machines are equal, each kind must have the same number. Otherwise, the kinds
    must be the same.
    """
    kinds, other_kinds = Counter(map(_kind, one)), Counter(map(_kind, other))
    if len(one) != len(other):
        kinds, other_kinds = set(kinds), set(other_kinds)
    if kinds == other_kinds or not one or not other:
        return None
    has_processors = [all(machine.get("processor") for machine in side) for side in (one, other)]
    note = ""
    if has_processors[0] != has_processors[1]:
        note = "; the older record does not tell the processor's family"
    return f"different kinds of machines: {_describe(one)} and {_describe(other)}{note}"


def _kind(machine: Mapping[str, Any]) -> tuple[str, ...]:
    """Return phrases on a machine, which are equal for machines of one kind.

    The phrases name the processor, its cores and the installed memory. They also name a quota of
    cores, and the models of GPUs.
    """
    processor = machine.get("processor") or {}
    details = [
        f"{key} {processor[key]}"
        for key in ("vendor", "stepping", "features")
        if processor.get(key)
    ]
    quota = [f"a quota of {machine['cpu_quota']:.3g} cores"] if "cpu_quota" in machine else []
    return (
        machine["cpu"],
        *details,
        f"{machine['cores_total']} cores",
        f"{memory_gib(machine['memory_bytes'])} GiB",
        *quota,
        *machine.get("gpus", []),
    )


def _describe(machines: Machines) -> str:
    """Describe the kinds of machines, with the number of machines of each kind."""
    kinds = Counter(", ".join(_kind(machine)) for machine in machines)
    return " with ".join(
        f"{number} × {kind}" if number > 1 else kind for kind, number in kinds.items()
    )


def _cores_available(run: Measurement) -> set[int]:
    return {machine["cores_available"] for machine in run["ranks"]["machines"]}


def versions(run: Measurement) -> dict[str, str]:
    """Return the versions that two measurements of one configuration must share.

    The files of a program are its version. All packages of its interpreter may run in it.
    """
    if program := _program(run):
        digest = hashlib.sha256(json.dumps(program["files"], sort_keys=True).encode()).hexdigest()
        return {"program": digest[:12]} | run["versions"]
    return {name: version for name, version in run["versions"].items() if name not in _AROUND}


def machines(run: Measurement) -> str:
    """Describe the machines of a run. The texts of two runs are equal if these may be compared.

    Returns
    -------
    The kinds of the machines. If the run could not use all cores, also the numbers of cores that it
    could use. Empty if the run ended before it got its nodes.
    """
    described = _describe(sorted(run["ranks"]["machines"], key=_kind))
    available = _cores_available(run)
    if available == {machine["cores_total"] for machine in run["ranks"]["machines"]}:
        return described
    return f"{described}; available cores: {', '.join(map(str, sorted(available)))}"


def series(run: Measurement) -> dict[str, Any]:
    """Return the conditions of a run besides its machine, its versions and the code.

    Two timing runs of one configuration that ended ok are comparable exactly if their `series`,
    `machines`, `versions` and sources are equal, and the rates of their links and the speeds of
    their machines are alike.

    Returns
    -------
    The configuration, environment, data, settings, knobs, ranks and the requested link, in JSON's
    types.
    """
    uses_link = run["layout"].nodes > 1 and run["link"] is not None
    return {
        **{key: run[key] for key in CONFIGURATION},
        "environment": dict(sorted(_environment(run))),
        "single_copy": run["ranks"].get("single_copy") != "none",
        "data": run["data"]["sha256"],
        **_settings_of(run),
        "known_by": _program(run).get("known_by"),
        "link": [run["ranks"]["interface"], run["link"]["rate"]] if uses_link else None,
    }


def work(run: Measurement, reference: Measurement) -> float:
    """Return the work of an epoch of a run divided by that of its reference.

    With weak scaling, this is the quotient of the rows, or of the ranks if the rows of a program
    are not known. Otherwise it is 1.
    """
    ranks = [
        ((side["training"].get("settings") or {}).get("weak") or {}).get("ranks")
        for side in (run, reference)
    ]
    if None in ranks:
        return 1.0
    rows = [_epoch_rows(side) for side in (run, reference)]
    mine, theirs = ranks if None in rows else rows
    return mine / theirs


def _epoch_rows(run: Measurement) -> float | None:
    """Return the rows of a whole epoch over all ranks; None if unknown."""
    if run["training"]["train_rows"]:
        return run["training"]["train_rows"]
    rows = [epoch["rows"] for epoch in run["epochs"]]
    if None in rows or not rows:
        return None
    # An epoch that was cut has fewer steps than a whole epoch, and counts as a fraction of one.
    steps_per_epoch = run["training"]["steps_per_epoch"]
    epochs = len(rows)
    if steps_per_epoch:
        epochs = sum(epoch["steps"] for epoch in run["epochs"]) / steps_per_epoch
    return sum(rows) / epochs


def other_exchange(run: Measurement) -> str | None:
    """Return why the ranks of a run train another model than one process, whatever the batch.

    None if they train the same model, if there is one rank, or for a program: its model is not
    known.
    """
    knobs = run["knobs"]
    if run["ranks"]["asked"] == 1 or _program(run):
        return None
    if knobs.get("trained_module") == "bare":
        return "its ranks exchange no gradients"
    if knobs.get("shard", True) is not True:
        return "its ranks do not divide the rows of a step"
    if knobs.get("weighting", "rows") != "rows":
        return "a row of a small share counts more than others"
    if not STRATEGIES[run["strategy"]].waits():
        return "its ranks do not wait for each other's updates"
    return None


def other_updates(run: Measurement, reference: Measurement) -> str | None:
    """Return how the updates of a run differ from those of a reference; None if they are equal."""
    if work(run, reference) != 1:
        return "the scaling is weak: its epochs have more rows"
    for key, name in (("global_batch", "batch"), ("learning_rate", "learning rate")):
        mine, theirs = (side["training"][key] for side in (run, reference))
        if mine != theirs:
            return f"another {name}: {mine} and not {theirs}"
    rows = [_epoch_rows(side) for side in (run, reference)]
    if _program(run) and None not in rows and max(rows) > (1 + SAME_ROWS) * min(rows):
        return f"an epoch has {rows[0] / rows[1]:.3g} times the rows"
    return None


class Matched(NamedTuple):
    """Runs beside the run of their reference in the same session and repeat.

    Attributes
    ----------
    runs, references : the measurements of each match, in the same order.
    refused : the reason for each run that is not comparable with the run of the reference in its
        session and repeat.
    """

    runs: list[Measurement]
    references: list[Measurement]
    refused: list[str]

    @property
    def pairs(self) -> list[tuple[Measurement, Measurement]]:
        """Each run with its reference."""
        return list(zip(self.runs, self.references, strict=True))

    def why_none(self) -> str:
        """Return why there is no match."""
        return "; ".join(dict.fromkeys(self.refused)) or "no two runs share session and repeat"


def match_runs(runs: Iterable[Measurement], references: Iterable[Measurement]) -> Matched:
    """Match each run with the run of its reference in the same session and repeat.

    Measurements of a session follow each other, so the drift of the machine between sessions is not
    in their ratio.
    """
    by_repeat = {(run["session"], run["repeat"]): run for run in references}
    matches = Matched([], [], [])
    for run in runs:
        reference = by_repeat.get((run["session"], run["repeat"]))
        if reference is None:
            continue
        if reason := refusal(run, reference):
            matches.refused.append(reason)
        else:
            matches.runs.append(run)
            matches.references.append(reference)
    return matches


def newest_of_repeats(matches: Matched) -> Matched:
    """Return one match of each repeat: the match of the current run, else the newest.

    An interval is for a session, so matches of older sessions are left out. If the current run of a
    repeat failed, the older match of the repeat stays.

    Parameters
    ----------
    matches : matches of all sessions. Their runs have the key `current` of
        `escala.analysis.measurements`.
    """
    oldest_first = sorted(matches.pairs, key=lambda pair: (pair[0]["current"], pair[0]["started"]))
    newest = {run["repeat"]: (run, reference) for run, reference in oldest_first}
    pairs = [newest[repeat] for repeat in sorted(newest)]
    return Matched([run for run, _ in pairs], [run for _, run in pairs], matches.refused)


def why_left_out(matches: int, refused: Sequence[str]) -> str | None:
    """Return how many matches have no ratio and why; None if all have a ratio."""
    if not refused:
        return None
    reasons = "; ".join(dict.fromkeys(refused))
    return f"{len(refused)} of {matches + len(refused)} paired runs are left out: {reasons}"
