"""Make a calibration's document from the runs that calibrate.

`escala.analysis.cost_model.calibrating` names these runs. The schema of the document is
`schemas/calibration.schema.yaml`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from escala.analysis.comparable import unlike_machines
from escala.analysis.cost_model.calibration import FORMAT, LEAST_REPEATS, LOCAL, MODEL_DEVIATION
from escala.analysis.cost_model.programs import program_costs
from escala.analysis.measurements import read_run
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.experiment.runs import one_process
from escala.probes.clocks import GATHER_BEGINS, GRADIENT_READY, RETURNED

#: Parts of a run before its first training step, by their names in `run.json`.
_BEFORE = ("startup", "loading", "build", "first_step", "first_prediction", "broadcast")
_REMEDY = f"see its log, and calibrate again after `{call('retry')}`"
#: Number of parts into which the steps of a run with clocks are divided. The parts count as
#: repeats.
_PARTS = 3
_STEP = ["epoch", "step"]


class _Runs(NamedTuple):
    """The runs that calibrate a work.

    Attributes
    ----------
    steps : timing runs of one process.
    clocks : the run with clocks; None if it did not end ok.
    collectives : runs of several ranks, on one node and on several nodes.
    """

    steps: list[dict]
    clocks: dict | None
    collectives: list[dict]

    def same_rows(self, run: Mapping) -> list[dict]:
        """Return the timing runs whose ranks have the same rows in a step as the ranks of `run`."""
        return [timed for timed in self.steps if rows_of_rank(timed) == rows_of_rank(run)]


def document(sources: Mapping) -> tuple[dict, list[str]]:
    """Return the document of a calibration, and a sentence on each run that is left out.

    Parameters
    ----------
    sources : files of runs, as `CalibrationExperiment.sources` returns them.

    Raises
    ------
    InputError : a necessary run did not end ok, or runs were measured on different kinds of
        machines.
    """
    left_out: list[str] = []
    collectives = [run for file in sources["collectives"] if (run := _read_if_ok(file, left_out))]
    programs, machines = program_costs(sources.get("programs", {}))
    if sources["works"] and not collectives:
        raise InputError("collectives", sources["collectives"], "none ended ok", _REMEDY)
    machines = [run["ranks"]["machines"][0] for run in collectives] or machines
    if not machines:
        raise InputError("programs", list(programs), "no run ended ok", _REMEDY)
    content = {
        "format": FORMAT,
        "machine": machines[0],
        "cores_per_node": machines[0]["cores_available"],
        **{"core": None, "networks": {}, "collectives": [], "works": {}},
        **({"programs": programs} if programs else {}),
    }
    if not sources["works"]:
        return content, left_out
    runs = {name: _runs(files, collectives, left_out) for name, files in sources["works"].items()}
    # Two times of a step of one process are compared. One is from a run with an instrument, the
    # other from timing runs of the same rows, which took place some minutes earlier or later. A run
    # that times collectives also contains steps of one rank alone: the other ranks wait.
    drift = []
    for work_runs in runs.values():
        for run in filter(None, [work_runs.clocks, *work_runs.collectives]):
            has_clocks = run["instrument"] == "clocks"
            steps = full_steps_of(run) if has_clocks else run["collectives"]["alone_seconds"]
            means = [np.mean(full_steps_of(timed)) for timed in work_runs.same_rows(run)]
            if means and steps:
                drift.append(float(np.mean(steps) / np.exp(np.mean(np.log(means)))))
    return content | {
        "core": {
            name: [rate for run in collectives for rate in run["collectives"]["core"][name]]
            for name in ("bytes_per_second", "operations_per_second")
        },
        "networks": _networks(collectives),
        "collectives": _collectives(collectives),
        "drift": drift,
        "starts": _starts(runs.values()),
        "model_deviation": MODEL_DEVIATION,
        "works": {
            name: _work(sources["works"][name], work_runs) for name, work_runs in runs.items()
        },
    }, left_out


def _read(file: str) -> dict:
    run = read_run(file)
    if run["status"] != "ok":
        raise InputError(file, run["status"], run["reason"], _REMEDY)
    return run


def _read_if_ok(file: str, left_out: list[str]) -> dict | None:
    """Return a run if it ended ok; otherwise add a sentence to `left_out`, and return None."""
    try:
        return _read(file)
    except InputError as error:
        left_out.append(f"left out: {error}")
        return None


def _runs(files: Mapping, collectives: Sequence[dict], left_out: list[str]) -> _Runs:
    steps = [_read(file) for file in files["steps"]]
    for run in (*steps, *collectives):
        machines = collectives[0]["ranks"]["machines"]
        if reason := unlike_machines(machines, run["ranks"]["machines"]):
            raise InputError(run["file"], run["session"], reason, "calibrate again")
    # These runs have the same computation and the same rows for each process.
    variants = {_computation(run) for run in steps}
    return _Runs(
        steps,
        _read_if_ok(files["clocks"], left_out),
        [run for run in collectives if _computation(run) in variants],
    )


def _computation(run: Mapping) -> tuple[str, ...]:
    """Return names of the computation of a run's process; equal for equal computations."""
    return run["dataset"], run["workload"], run["variant"], one_process(run["strategy"])[0]


def _process(run: Mapping) -> dict[str, int]:
    """Return the keys `rows` and `cores` of a part of the document, for a process of a run."""
    return {"rows": rows_of_rank(run), "cores": run["knobs"]["cores_per_process"]}


def _place(run: Mapping) -> dict[str, Any]:
    """Return the keys of a part of the document that name library, network and layout of a run."""
    network = run["network"] if run["layout"].nodes > 1 else LOCAL
    library = run["collectives"]["library"]
    return {"library": library, "network": network, "layout": run["layout"]}


def _join(rows: Iterable[dict], *lists: str) -> list[dict]:
    """Join the lists of those rows that are equal in all other keys.

    Parameters
    ----------
    lists : the keys whose values are lists.
    """
    lists_of: dict[tuple, dict[str, list]] = {}
    for row in rows:
        equal = tuple((name, value) for name, value in row.items() if name not in lists)
        joined = lists_of.setdefault(equal, {name: [] for name in lists})
        for name in lists:
            joined[name] += row[name]
    return [dict(equal) | joined for equal, joined in lists_of.items()]


def _networks(runs: Sequence[Mapping]) -> dict[str, dict]:
    """Return rate and latency of each network. A ping takes two messages."""
    networks = {LOCAL: {"bits_per_second": None, "latency_seconds": None}}
    for run in runs:
        if run["layout"].nodes > 1:
            link = run["link"] or {}
            rate, latency = link.get("mbit_per_second"), link.get("latency_ms")
            networks[run["network"]] = {
                "bits_per_second": rate and rate * 1e6,
                "latency_seconds": None if latency is None else latency / 2e3,
            }
    return networks


def _collectives(runs: Sequence[Mapping]) -> list[dict]:
    """Return the times of each operation of a library, network and layout, with all repeats."""
    rows = []
    for run in runs:
        # Entries by operation and bytes.
        times: dict[str, dict[int, Mapping]] = defaultdict(dict)
        for time in run["collectives"]["times"]:
            times[time["operation"]][time["bytes"]] = time
        rows += [
            _place(run) | {"operation": operation, "times": [by_size]}
            for operation, by_size in times.items()
        ]
    return [row | {"times": _times(row["times"])} for row in _join(rows, "times")]


def _times(runs: Sequence[Mapping[int, Mapping]]) -> list[dict]:
    """Return the times of the sizes that all `runs` have; a run has its times by size."""
    return [
        {
            "bytes": size,
            "seconds": [seconds for times in runs for seconds in times[size]["seconds"]],
        }
        for size in sorted(set.intersection(*map(set, runs)))
    ]


def _work(files: Mapping, runs: _Runs) -> dict:
    ready, update = gradient_moments(runs.clocks["file"]) if runs.clocks else ({}, None)
    contention = _join(
        (
            _process(run)
            | {
                "library": run["collectives"]["library"],
                "processes": run["layout"].processes,
                "ratios": run["collectives"]["contention"],
            }
            for run in runs.collectives
        ),
        "ratios",
    )
    return {
        "gradients": [
            gradient | {"ready": ready.get(gradient["name"], 1.0)}
            for gradient in read_json(Path(files["gradients"]))
        ],
        "steps": _join(
            (_process(run) | {"seconds": [full_steps_of(run)]} for run in runs.steps), "seconds"
        ),
        "contention": [row for row in contention if len(row["ratios"]) >= LEAST_REPEATS],
        "exchanges": [
            _place(run) | _process(run) | {"seconds": run["collectives"]["exchange_seconds"]}
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


def _starts(works: Iterable[_Runs]) -> list[dict]:
    """Return by how many seconds several ranks start and end later than one process."""
    rows = []
    for runs in works:
        for run in runs.collectives:
            alone_seconds = np.mean([_around_steps(timed) for timed in runs.same_rows(run)])
            rows.append(_place(run) | {"seconds": [float(_around_steps(run) - alone_seconds)]})
    return _join(rows, "seconds")


def _around_steps(run: Mapping) -> float:
    """Return the seconds before the steps and after the evaluation, without building.

    Building is left out, because collectives are timed during the building.
    """
    return _before(run) - run["seconds"].get("build", 0.0) + _after(run)


def _before(run: Mapping) -> float:
    return sum(run["seconds"].get(name, 0.0) for name in _BEFORE)


def _after(run: Mapping) -> float:
    return run["wall_seconds"] - sum(run["seconds"].values())


def rows_of_rank(run: Mapping) -> int:
    return run["training"]["rows_per_rank"]


def full_steps_of(run: Mapping) -> list[float]:
    """Return the seconds of the steps in which every rank has all its rows, as means over ranks.

    The last step of an epoch may have fewer rows.

    Raises
    ------
    InputError : there is no such step.
    """
    paths = sorted(Path(run["file"]).parent.glob("ranks/rank*.steps.csv"))
    steps = pd.concat(map(pd.read_csv, paths))
    by_step = steps.assign(seconds=steps["input_seconds"] + steps["step_seconds"]).groupby(_STEP)
    is_full = by_step["rows"].min() == rows_of_rank(run)
    if not is_full.any():
        remedy = "use a smaller batch, or more data"
        raise InputError(run["file"], rows_of_rank(run), "no step has this many rows", remedy)
    return by_step["seconds"].mean()[is_full].tolist()


def gradient_moments(run_file: str) -> tuple[dict[str, float], list[float]]:
    """Return when gradients are known, and how long the update takes, from clocks of one process.

    Parameters
    ----------
    run_file : `run.json`, with the clocks of rank 0 alongside it.

    Returns
    -------
    First, for each tensor, the moment when its gradient is known, as a fraction, from 0 to 1, of
    the time until the last gradient. It is a median over the steps. Second, the seconds from the
    last gradient to the end of the step, as a mean for each of `_PARTS` parts of the steps.
    """
    path = Path(run_file).parent / "ranks" / "rank0.clocks.csv"
    clocks = pd.read_csv(path, keep_default_na=False)
    whole = clocks[clocks["tensor"] == ""].pivot(index=_STEP, columns="moment", values="seconds")
    ready = clocks[clocks["moment"] == GRADIENT_READY].pivot(
        index=_STEP, columns="tensor", values="seconds"
    )
    begins, last = whole[GATHER_BEGINS], ready.max(axis=1)
    fractions = ready.sub(begins, axis=0).div(last - begins, axis=0).clip(0, 1)
    update = np.array_split((whole[RETURNED] - last).to_numpy(), _PARTS)
    return fractions.median().to_dict(), [float(np.mean(part)) for part in update if len(part)]
