"""Make a calibration's document from the runs that calibrate.

`escala.analysis.cost_model.calibrating` names these runs. The document has the form of
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

#: Parts of a run before its first training step.
_BEFORE = ("startup", "loading", "build", "first_step", "first_prediction", "broadcast")
_REMEDY = f"see its log, and calibrate again after `{call('retry')}`"
#: Parts into which the steps of a run with clocks are divided, as repeats.
_PARTS = 3
_STEP = ["epoch", "step"]


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
        return [entry for entry in self.steps if rows_of_rank(entry) == rows_of_rank(run)]


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
    # How many times longer a step of one process takes in each run with clocks, or with turns that
    # the other ranks wait for: these are from other minutes than the timing runs.
    drift = []
    for work_runs in runs.values():
        for run in filter(None, [work_runs.clocks, *work_runs.collectives]):
            clocks = run["instrument"] == "clocks"
            steps = full_steps_of(run) if clocks else run["collectives"]["alone_seconds"]
            reference = [np.mean(full_steps_of(one)) for one in work_runs.same_rows(run)]
            if reference and steps:
                drift.append(float(np.mean(steps) / np.exp(np.mean(np.log(reference)))))
    return content | {
        "core": {
            name: [rate for run in collectives for rate in run["collectives"]["core"][name]]
            for name in ("bytes_per_second", "operations_per_second")
        },
        "networks": _networks(collectives),
        "collectives": entries(collectives),
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
        machines = (one["ranks"]["machines"] for one in (collectives[0], run))
        if reason := unlike_machines(*machines):
            raise InputError(run["file"], run["session"], reason, "calibrate again")
    # The processes of these runs compute the same, with the same rows.
    variants = {_computation(run) for run in steps}
    return _Runs(
        steps,
        _ok(files["clocks"], left_out),
        [run for run in collectives if _computation(run) in variants],
    )


def _computation(run: Mapping) -> tuple[str, ...]:
    """Return what tells a run from those whose processes compute something else."""
    return run["dataset"], run["workload"], run["variant"], one_process(run["strategy"])[0]


def _process(run: Mapping) -> dict[str, int]:
    """Return the rows and the cores of a process, as names of an entry."""
    return {"rows": rows_of_rank(run), "cores": run["knobs"]["cores_per_process"]}


def _place(run: Mapping) -> dict[str, Any]:
    """Return what the time of a collective depends on, as names of an entry."""
    network = run["network"] if run["layout"].nodes > 1 else LOCAL
    library = run["collectives"]["library"]
    return {"library": library, "network": network, "layout": run["layout"]}


def _join(rows: Iterable[dict], *lists: str) -> list[dict]:
    """Join rows that are equal but for some lists, which follow each other; in order of the first.

    Parameters
    ----------
    lists : the keys of these lists.
    """
    joined: dict[tuple, dict[str, list]] = {}
    for row in rows:
        key = tuple((name, value) for name, value in row.items() if name not in lists)
        entry = joined.setdefault(key, {name: [] for name in lists})
        for name in lists:
            entry[name] += row[name]
    return [dict(key) | entry for key, entry in joined.items()]


def _networks(runs: Sequence[Mapping]) -> dict[str, dict]:
    """Return rate and latency of each network; a ping takes two messages."""
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


def entries(runs: Sequence[Mapping]) -> list[dict]:
    """Return the times of collectives; repeats of several runs of one entry are joined."""
    rows = []
    for run in runs:
        times: dict[str, dict[int, Mapping]] = defaultdict(dict)
        for time in run["collectives"]["times"]:
            times[time["operation"]][time["bytes"]] = time
        library, network, layout = _place(run).values()
        rows += [
            {"library": library, "operation": operation, "network": network, "layout": layout}
            | {"times": [by_size]}
            for operation, by_size in times.items()
        ]
    return [row | {"times": _times(row["times"])} for row in _join(rows, "times")]


def _times(runs: Sequence[Mapping[int, Mapping]]) -> list[dict]:
    """Return the times of the sizes that all runs have."""
    return [
        {
            "bytes": size,
            "seconds": [seconds for times in runs for seconds in times[size]["seconds"]],
        }
        for size in sorted(set.intersection(*map(set, runs)))
    ]


def _work(files: Mapping, runs: _Runs) -> dict:
    ready, update = moments(runs.clocks["file"]) if runs.clocks else ({}, None)
    measured = [(run, run["collectives"]) for run in runs.collectives]
    contention = _join(
        (
            {"library": calls["library"], **_process(run), "processes": run["layout"].processes}
            | {"ratios": calls["contention"]}
            for run, calls in measured
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
        "contention": [entry for entry in contention if len(entry["ratios"]) >= LEAST_REPEATS],
        "exchanges": [
            _place(run) | _process(run) | {"seconds": calls["exchange_seconds"]}
            for run, calls in measured
            if len(calls["exchange_seconds"]) >= LEAST_REPEATS
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
    """Return the seconds by which several ranks start and end later than one process."""
    rows = []
    for runs in works:
        for run in runs.collectives:
            alone = np.mean([_around_steps(one) for one in runs.same_rows(run)])
            rows.append(_place(run) | {"seconds": [float(_around_steps(run) - alone)]})
    return _join(rows, "seconds")


def _around_steps(run: Mapping) -> float:
    """Return the seconds before the steps and after the evaluation, without those of building.

    A run that times collectives does so while it builds.
    """
    return _before(run) - run["seconds"].get("build", 0.0) + _after(run)


def _before(run: Mapping) -> float:
    return sum(run["seconds"].get(name, 0.0) for name in _BEFORE)


def _after(run: Mapping) -> float:
    return run["wall_seconds"] - sum(run["seconds"].values())


def rows_of_rank(run: Mapping) -> int:
    return run["training"]["rows_per_rank"]


def full_steps_of(run: Mapping) -> list[float]:
    """Return the seconds, means over the ranks, of the steps in which every rank has all its rows.

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


def moments(run_file: str) -> tuple[dict[str, float], list[float]]:
    """Return when gradients are known, and how long the update takes, from clocks of one process.

    Parameters
    ----------
    run_file : `run.json`, with the clocks of rank 0 alongside it.

    Returns
    -------
    By tensor, the fraction of the time until the last gradient after which it is known: medians of
    the steps. And the seconds from the last gradient to the end of the step: means of parts of the
    steps, which are used as repeats.
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
