"""Make a calibration's document from the runs that calibrate.

`escala.analysis.cost_model.calibrating` names these runs. The document has the form of
`schemas/calibration.schema.yaml`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from escala.analysis.comparable import unlike_machines
from escala.analysis.cost_model.calibration import LOCAL, MODEL_DEVIATION
from escala.analysis.cost_model.program_costs import program_costs
from escala.analysis.cost_model.reading import FORMAT, LEAST_REPEATS
from escala.analysis.cost_model.recorded_steps import (
    clocks_of,
    full_steps_of,
    moments,
    rows_of_rank,
)
from escala.analysis.measurements import read_run
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.experiment.references import one_process

#: Parts of a run before its first training step.
_BEFORE = ("startup", "loading", "build", "first_step", "first_prediction", "broadcast")
_REMEDY = f"see its log, and calibrate again after `{call('retry')}`"


class _Runs(NamedTuple):
    """The runs that calibrate a work.

    Attributes
    ----------
    steps : timing runs of one process.
    clocks : None if it did not end ok.
    collectives : of several ranks, on one node and on several.
    """

    steps: list[dict]
    clocks: dict | None
    collectives: list[dict]

    def same_rows(self, run: Mapping) -> list[dict]:
        """Return the timing runs whose steps have as many rows as those of another run."""
        return [each for each in self.steps if rows_of_rank(each) == rows_of_rank(run)]


def document(sources: Mapping) -> tuple[dict, list[str]]:
    """Return the document of a calibration, and a sentence on each run that is left out.

    Parameters
    ----------
    sources : files of runs, as `Calibration.sources` returns them.

    Raises
    ------
    InputError : a run that is needed did not end ok, or runs were measured on unlike machines.
    """
    left_out: list[str] = []
    collectives = [run for file in sources["collectives"] if (run := _ok(file, left_out))]
    programs, machines = program_costs(sources.get("programs", {}))
    if sources["works"] and not collectives:
        raise InputError("collectives", sources["collectives"], "none ended ok", _REMEDY)
    machines = [run["ranks"]["machines"][0] for run in collectives] or machines
    if not machines:
        raise InputError("programs", list(programs), "no run ended ok", _REMEDY)
    found = {
        "format": FORMAT,
        "machine": machines[0],
        "cores_per_node": machines[0]["cores_available"],
        **{"core": None, "networks": {}, "collectives": [], "works": {}},
        **({"programs": programs} if programs else {}),
    }
    if not sources["works"]:
        return found, left_out
    runs = {name: _runs(files, collectives, left_out) for name, files in sources["works"].items()}
    return found | {
        "core": {
            name: [rate for run in collectives for rate in run["collectives"]["core"][name]]
            for name in ("bytes_per_second", "operations_per_second")
        },
        "networks": _networks(collectives),
        "collectives": entries(collectives),
        "drift": [each for work_runs in runs.values() for each in _drift(work_runs)],
        "starts": _starts(runs.values()),
        "model_deviation": MODEL_DEVIATION,
        "works": {name: _work(sources["works"][name], each) for name, each in runs.items()},
    }, left_out


def _read(file: str) -> dict:
    run = read_run(file)
    if run["status"] != "ok":
        raise InputError(file, run["status"], run["reason"], _REMEDY)
    return run


def _ok(file: str, left_out: list[str]) -> dict | None:
    """Return a run that ended ok; note any other, without which a calibration is possible."""
    try:
        return _read(file)
    except InputError as error:
        left_out.append(f"left out: {error}")
        return None


def _runs(files: Mapping, collectives: Sequence[dict], left_out: list[str]) -> _Runs:
    steps = [_read(file) for file in files["steps"]]
    for run in (*steps, *collectives):
        machines = (each["ranks"]["machines"] for each in (collectives[0], run))
        if reason := unlike_machines(*machines):
            raise InputError(run["file"], run["session"], reason, "calibrate again")
    # The processes of these runs compute the same, with the same rows.
    variants = {_computed(run) for run in steps}
    return _Runs(
        steps,
        _ok(files["clocks"], left_out),
        [run for run in collectives if _computed(run) in variants],
    )


def _computed(run: Mapping) -> tuple[str, ...]:
    """Return what tells a run from those whose processes compute something else."""
    return run["dataset"], run["workload"], run["variant"], one_process(run["strategy"])[0]


def _cores(run: Mapping) -> int:
    return run["knobs"]["cores_per_process"]


def _place(run: Mapping) -> dict[str, Any]:
    """Return what the time of a collective depends on, as names of an entry."""
    network = run["network"] if run["layout"].nodes > 1 else LOCAL
    library = run["collectives"]["library"]
    return {"library": library, "network": network, "layout": run["layout"]}


def _grouped(
    runs: Iterable[Mapping], names: Callable[[Mapping], Mapping]
) -> Iterator[tuple[dict, list[Mapping]]]:
    """Yield the runs of which `names` returns the same, in the order of the first ones."""
    groups: dict[tuple, list[Mapping]] = defaultdict(list)
    for run in runs:
        groups[tuple(names(run).items())].append(run)
    yield from ((dict(key), group) for key, group in groups.items())


def _networks(runs: Sequence[Mapping]) -> dict[str, dict]:
    """Return rate and latency of each network; a ping takes two messages."""
    found = {LOCAL: {"bits_per_second": None, "latency_seconds": None}}
    for run in runs:
        if run["layout"].nodes > 1:
            link = run["link"] or {}
            rate, latency = link.get("mbit_per_second"), link.get("latency_ms")
            found[run["network"]] = {
                "bits_per_second": rate and rate * 1e6,
                "latency_seconds": None if latency is None else latency / 2e3,
            }
    return found


def entries(runs: Sequence[Mapping]) -> list[dict]:
    """Return the times of collectives; repeats of several runs of one entry are joined."""
    timed = [
        _place(run) | {"operation": operation, "by_size": by_size}
        for run in runs
        for operation, by_size in _by_size(run["collectives"]["times"]).items()
    ]
    names = ("library", "operation", "network", "layout")
    return [
        key | {"times": _joined([each["by_size"] for each in group])}
        for key, group in _grouped(timed, lambda each: {name: each[name] for name in names})
    ]


def _by_size(times: Sequence[Mapping]) -> dict[str, dict[int, Mapping]]:
    found: dict[str, dict[int, Mapping]] = defaultdict(dict)
    for time in times:
        found[time["operation"]][time["bytes"]] = time
    return found


def _joined(sizes_by_run: Sequence[Mapping[int, Mapping]]) -> list[dict]:
    """Return the times of the sizes that all runs have."""
    return [
        {
            "bytes": size,
            "seconds": [each for times in sizes_by_run for each in times[size]["seconds"]],
        }
        for size in sorted(set.intersection(*map(set, sizes_by_run)))
    ]


def _work(files: Mapping, runs: _Runs) -> dict:
    ready, update = moments(clocks_of(runs.clocks["file"])) if runs.clocks else ({}, None)
    return {
        "gradients": [
            each | {"ready": ready.get(each["name"], 1.0)}
            for each in read_json(Path(files["gradients"]))
        ],
        "steps": [
            key | {"seconds": [full_steps_of(run) for run in group]}
            for key, group in _grouped(
                runs.steps, lambda run: {"rows": rows_of_rank(run), "cores": _cores(run)}
            )
        ],
        "contention": _contention(runs.collectives),
        "exchanges": [
            _place(run)
            | {"rows": rows_of_rank(run), "cores": _cores(run)}
            | {"seconds": run["collectives"]["exchange_seconds"]}
            for run in runs.collectives
            if len(run["collectives"]["exchange_seconds"]) >= LEAST_REPEATS
        ],
        "update_seconds": update,
        "overheads": {
            "start_seconds": [_before(run) for run in runs.steps],
            "evaluation_per_row_seconds": [
                run["seconds"]["evaluation"] / run["training"]["test_rows"] for run in runs.steps
            ],
            "end_seconds": [_after(run) for run in runs.steps],
        },
    }


def _contention(runs: Sequence[Mapping]) -> list[dict]:
    """Return how many times longer steps are while the other ranks compute, by library."""

    def names(run: Mapping) -> dict:
        return {
            "library": run["collectives"]["library"],
            "rows": rows_of_rank(run),
            "cores": _cores(run),
            "processes": run["layout"].processes,
        }

    found = [
        key | {"ratios": [each for run in group for each in run["collectives"]["contention"]]}
        for key, group in _grouped(runs, names)
    ]
    return [each for each in found if len(each["ratios"]) >= LEAST_REPEATS]


def _drift(runs: _Runs) -> Iterator[float]:
    """Yield how many times longer a step of one process takes in each other run of its work.

    These are steps with clocks, and those in turns, which the other ranks wait for. They are from
    other minutes than the timing runs.
    """
    for run in [runs.clocks, *runs.collectives]:
        reference = runs.same_rows(run) if run else []
        if not reference:
            continue
        clocks = run["instrument"] == "clocks"
        steps = full_steps_of(run) if clocks else run["collectives"]["alone_seconds"]
        if steps:
            alone = [np.mean(full_steps_of(each)) for each in reference]
            yield float(np.mean(steps) / np.exp(np.mean(np.log(alone))))


def _starts(works: Iterable[_Runs]) -> list[dict]:
    """Return the seconds by which several ranks start and end later than one process."""
    later = [
        _place(run) | {"seconds": _around_steps(run) - np.mean([*map(_around_steps, alone)])}
        for runs in works
        for run in runs.collectives
        for alone in [runs.same_rows(run)]
    ]
    names = ("library", "network", "layout")
    return [
        key | {"seconds": [float(each["seconds"]) for each in group]}
        for key, group in _grouped(later, lambda each: {name: each[name] for name in names})
    ]


def _around_steps(run: Mapping) -> float:
    """Return the seconds before the steps and after the evaluation, without those of building.

    A run that times collectives does so while it builds.
    """
    return _before(run) - run["seconds"].get("build", 0.0) + _after(run)


def _before(run: Mapping) -> float:
    return sum(run["seconds"].get(name, 0.0) for name in _BEFORE)


def _after(run: Mapping) -> float:
    return run["wall_seconds"] - sum(run["seconds"].values())
