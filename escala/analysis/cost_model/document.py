"""Make a calibration's document from the runs that calibrate.

`escala.experiment.calibration` names these runs. The document has the form of
`schemas/calibration.schema.yaml`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from escala.analysis.cost_model.calibration import FORMAT, LEAST_REPEATS, LOCAL, MODEL_DEVIATION
from escala.analysis.cost_model.program_costs import program_costs
from escala.analysis.measurements import read_run
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.probes._turns import IN_TURNS, Blocks
from escala.probes.clocks import GATHER_BEGINS, GRADIENT_READY, RETURNED
from escala.probes.collectives import AFTER, ALONE, COMPUTING, SHARES, Collectives
from escala.record.comparable import unlike_machines
from escala.runtime.layout import Layout

#: Parts of a run before its first training step.
_BEFORE = ("startup", "loading", "build", "first_step", "first_prediction", "broadcast")
#: Parts into which the steps of a probe run are divided, as repeats.
_PARTS = 3
_STEP = ["epoch", "step"]
#: A shorter block in turns does not tell the time of a step: the caches are cold after the wait.
_LEAST_BLOCK = 5


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

    def of_same_rows(self, run: Mapping) -> list[dict]:
        """Return the timing runs whose steps have as many rows as those of another run."""
        return [each for each in self.steps if _rows(each) == _rows(run)]


def document(sources: Mapping) -> tuple[dict, list[str]]:
    """Return the document of a calibration, and a sentence on each run that is left out.

    Parameters
    ----------
    sources : files of runs, as `escala.experiment.calibration.Calibration.sources` returns them.

    Raises
    ------
    InputError : a run that is needed did not end ok, or runs were measured on unlike machines.
    """
    left_out: list[str] = []
    collectives = [run for file in sources["collectives"] if (run := _optional(file, left_out))]
    programs, machines = program_costs(sources.get("programs", {}))
    if not collectives and not sources["works"]:
        if not machines:
            raise InputError("programs", list(programs), "no run ended ok", _REMEDY)
        return {
            "format": FORMAT,
            "machine": machines[0],
            "cores_per_node": machines[0]["cores_available"],
            "core": None,
            "networks": {},
            "collectives": [],
            "works": {},
            "programs": programs,
        }, left_out
    if not collectives:
        raise InputError("collectives", sources["collectives"], "none ended ok", _REMEDY)
    first = collectives[0]
    runs = {
        name: _runs(files, collectives, left_out, first) for name, files in sources["works"].items()
    }
    for run in collectives:
        _require_alike(first, run)
    machine = first["ranks"]["machines"][0]
    return {
        "format": FORMAT,
        "machine": machine,
        "cores_per_node": machine["cores_available"],
        "core": {
            name: [rate for run in collectives for rate in run["collectives"]["core"][name]]
            for name in ("bytes_per_second", "operations_per_second")
        },
        "networks": _networks(collectives),
        "collectives": entries(collectives),
        "drift": [each for of_work in runs.values() for each in _drift(of_work)],
        "starts": _starts(list(runs.values())),
        "model_deviation": MODEL_DEVIATION,
        "works": {name: _work(sources["works"][name], each) for name, each in runs.items()},
        **({"programs": programs} if programs else {}),
    }, left_out


_REMEDY = f"see its log, and calibrate again after `{call('retry')}`"


def _read(file: str) -> dict:
    run = read_run(file) | {"file": file}
    if run["status"] != "ok":
        raise InputError(file, run["status"], run["reason"], _REMEDY)
    return run


def _optional(file: str, left_out: list[str]) -> dict | None:
    """Return a run that ended ok; note any other, without which a calibration is possible."""
    try:
        return _read(file)
    except InputError as error:
        left_out.append(f"left out: {error}")
        return None


def _nodes(run: Mapping) -> int:
    return Layout.parse(run["layout"]).nodes


def _network(run: Mapping) -> str:
    return run["network"] if _nodes(run) > 1 else LOCAL


def _require_alike(one: Mapping, other: Mapping) -> None:
    if reason := unlike_machines(one["ranks"]["machines"], other["ranks"]["machines"]):
        raise InputError(other["file"], other["session"], reason, "calibrate again")


def _networks(runs: Sequence[Mapping]) -> dict[str, dict]:
    """Return rate and latency of each network; a ping takes two messages."""
    found = {LOCAL: {"bits_per_second": None, "latency_seconds": None}}
    for run in runs:
        if _nodes(run) > 1:
            link = run["link"] or {}
            rate, latency = link.get("mbit_per_second"), link.get("latency_ms")
            found[run["network"]] = {
                "bits_per_second": rate and rate * 1e6,
                "latency_seconds": None if latency is None else latency / 2e3,
            }
    return found


def entries(runs: Sequence[Mapping]) -> list[dict]:
    """Return the times of collectives; repeats of several runs of one entry are joined."""
    joined: dict[tuple, list[dict[int, dict]]] = defaultdict(list)
    for run in runs:
        found: dict[str, dict[int, dict]] = defaultdict(dict)
        for time in run["collectives"]["times"]:
            found[time["operation"]][time["bytes"]] = time
        for operation, by_size in found.items():
            key = (run["collectives"]["library"], operation, _network(run), run["layout"])
            joined[key].append(by_size)
    names = ("library", "operation", "network", "layout")
    return [
        dict(zip(names, key, strict=True)) | {"times": _joined(of_runs)}
        for key, of_runs in joined.items()
    ]


def _joined(of_runs: Sequence[Mapping[int, dict]]) -> list[dict]:
    """Return the times of the sizes that all runs have: after a step, if there are enough."""
    sizes = sorted(set.intersection(*map(set, of_runs)))
    after = all(by_size[size][AFTER] for by_size in of_runs for size in sizes) and all(
        sum(len(by_size[size][AFTER]) for by_size in of_runs) >= LEAST_REPEATS for size in sizes
    )
    ways = {ALONE: AFTER if after else ALONE, COMPUTING: COMPUTING}
    if all(SHARES in by_size[size] for by_size in of_runs for size in sizes):
        ways[SHARES] = SHARES
    return [
        {"bytes": size}
        | {
            name: [each for by_size in of_runs for each in by_size[size][way]]
            for name, way in ways.items()
        }
        for size in sizes
    ]


def _runs(
    files: Mapping, collectives: Sequence[dict], left_out: list[str], of_machine: Mapping
) -> _Runs:
    steps = [_read(file) for file in files["steps"]]
    for run in steps:
        _require_alike(of_machine, run)
    variants = {_variant(run) for run in steps}
    return _Runs(
        steps,
        _optional(files["clocks"], left_out),
        [run for run in collectives if _variant(run) in variants],
    )


def _variant(run: Mapping) -> tuple[str, ...]:
    """Return the names of what the processes of a run compute, with its rows."""
    return run["dataset"], run["workload"], run["variant"]


def _rows(run: Mapping) -> int:
    return run["training"]["rows_per_rank"]


def _work(files: Mapping, runs: _Runs) -> dict:
    clocks = runs.clocks
    ready, update = moments(_clocks(clocks["file"])) if clocks else ({}, None)
    return {
        "gradients": [
            each | {"ready": ready.get(each["name"], 1.0)}
            for each in read_json(Path(files["gradients"]))
        ],
        "steps": _of_one_process(runs.steps),
        "contention": _contention(runs.collectives),
        "exchanges": list(_exchanges(runs.collectives)),
        "update_seconds": update,
        "overheads": _overheads(runs.steps),
    }


def _drift(runs: _Runs) -> Iterator[float]:
    """Yield how many times longer a step of one process takes in each other run of its work.

    These are steps with clocks, and those in turns, which the other ranks wait for. They are from
    other minutes than the timing runs.
    """
    for run in [runs.clocks, *runs.collectives]:
        reference = runs.of_same_rows(run) if run else []
        seconds = _of_other_minutes(run) if reference else None
        if seconds is not None:
            yield seconds / _geometric_mean([np.mean(_full_steps(each)) for each in reference])


def _of_other_minutes(run: Mapping) -> float | None:
    """Return the seconds of a step that no other process disturbs; None if there are none."""
    if run["instrument"] == "clocks":
        return float(np.mean(_full_steps(run)))
    result = run["collectives"]
    # Runs of an earlier version have blocks of two kinds only.
    measured = ("contention", "exchange_seconds", "library_shares")
    if not all(result.get(name) for name in measured):
        return None
    seconds = in_turns(_tables(run["file"]), _rows(run), blocks_of(run))
    # Threads of the library run beside the process on its cores.
    share = float(np.mean(result["library_shares"])) / run["knobs"]["cores_per_process"]
    return None if seconds is None else seconds * (1 - share)


def blocks_of(run: Mapping) -> Blocks:
    """Return the blocks of a run of collectives, which has the probe's default settings.

    Its epochs may end before all rows were used, so the steps that were made count.
    """
    training = run["training"]
    whole_steps = training["train_rows"] // training["global_batch"]
    length = Collectives.settings["properties"]["block"]["default"]
    return Blocks.of(min(whole_steps, run["epochs"][0]["steps"]), length)


def in_turns(tables: Sequence[pd.DataFrame], rows: int, blocks: Blocks) -> float | None:
    """Return the mean seconds of the steps in turns, None if their blocks are too short.

    The first step of a block is left out, because the rank waited before it.

    Parameters
    ----------
    tables, rows : as of `full_steps`.
    """
    if blocks.length < _LEAST_BLOCK:
        return None
    seconds = _of_full_steps(tables, rows)
    counted = [
        blocks.kind(*number) == IN_TURNS and not blocks.begins(*number, IN_TURNS)
        for number in seconds.index
    ]
    return float(seconds[counted].mean()) if any(counted) else None


def _geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def _starts(works: Sequence[_Runs]) -> list[dict]:
    """Return the seconds by which several ranks start and end later than one process."""
    joined: dict[tuple, list[float]] = defaultdict(list)
    for runs in works:
        for run in runs.collectives:
            key = (run["collectives"]["library"], _network(run), run["layout"])
            alone = np.mean([_around_steps(each) for each in runs.of_same_rows(run)])
            joined[key].append(float(_around_steps(run) - alone))
    names = ("library", "network", "layout")
    return [dict(zip(names, key, strict=True)) | {"seconds": each} for key, each in joined.items()]


def _around_steps(run: Mapping) -> float:
    """Return the seconds before the steps and after the evaluation, without those of building.

    A run that times collectives does so while it builds.
    """
    return _before(run) - run["seconds"].get("build", 0.0) + _after(run)


def _before(run: Mapping) -> float:
    return sum(run["seconds"].get(name, 0.0) for name in _BEFORE)


def _after(run: Mapping) -> float:
    return run["wall_seconds"] - sum(run["seconds"].values())


def _of_one_process(runs: Sequence[Mapping]) -> list[dict]:
    by_rows: dict[int, list[Mapping]] = defaultdict(list)
    for run in runs:
        by_rows[_rows(run)].append(run)
    return [
        {
            "rows": rows,
            "cores": of_rows[0]["knobs"]["cores_per_process"],
            "seconds": [_full_steps(run) for run in of_rows],
        }
        for rows, of_rows in by_rows.items()
    ]


def _contention(runs: Sequence[Mapping]) -> list[dict]:
    """Return how many times longer steps are while the other ranks compute, by library."""
    by_kind: dict[tuple, list[Mapping]] = defaultdict(list)
    for run in runs:
        key = (
            run["collectives"]["library"],
            _rows(run),
            run["knobs"]["cores_per_process"],
            Layout.parse(run["layout"]).processes,
        )
        by_kind[key].append(run["collectives"])
    names = ("library", "rows", "cores", "processes")
    found = [
        dict(zip(names, key, strict=True))
        | {
            name: [each for result in results for each in result[of_result]]
            for name, of_result in (("ratios", "contention"), ("library_shares", "library_shares"))
        }
        for key, results in by_kind.items()
    ]
    return [each for each in found if len(each["ratios"]) >= LEAST_REPEATS]


def _exchanges(runs: Sequence[Mapping]) -> Iterator[dict]:
    """Yield how much longer steps are that exchange, of each run that measured it."""
    for run in runs:
        seconds = run["collectives"].get("exchange_seconds", ())
        if len(seconds) < LEAST_REPEATS:
            continue
        knobs = run["knobs"]
        yield {
            "library": run["collectives"]["library"],
            "network": _network(run),
            "layout": run["layout"],
            "rows": _rows(run),
            "cores": knobs["cores_per_process"],
            "fusion_bytes": None,
            "cycle_seconds": None,
            "seconds": seconds,
        }


def _full_steps(run: Mapping) -> list[float]:
    rows = _rows(run)
    found = full_steps(_tables(run["file"]), rows)
    if not found:
        raise InputError(
            run["file"], rows, "no step has this many rows", "use a smaller batch, or more data"
        )
    return found


def _tables(file: str) -> list[pd.DataFrame]:
    """Return the steps of each rank of a run."""
    return [pd.read_csv(path) for path in sorted(Path(file).parent.glob("ranks/rank*.steps.csv"))]


def full_steps(tables: Sequence[pd.DataFrame], rows: int) -> list[float]:
    """Return the seconds, means over the ranks, of the steps in which every rank has `rows` rows.

    The last step of an epoch may have fewer rows.
    """
    return _of_full_steps(tables, rows).tolist()


def _of_full_steps(tables: Sequence[pd.DataFrame], rows: int) -> pd.Series:
    """Return the seconds of `full_steps` by epoch and step."""
    steps = pd.concat(tables).assign(
        seconds=lambda table: table["input_seconds"] + table["step_seconds"]
    )
    by_step = steps.groupby(_STEP)
    full = by_step["rows"].min() == rows
    return by_step["seconds"].mean()[full]


def _divided(seconds: Sequence[float]) -> list[list[float]]:
    """Divide the steps of one run into parts, which stand for repeats."""
    return [part.tolist() for part in np.array_split(seconds, _PARTS) if len(part)]


def _clocks(file: str) -> pd.DataFrame:
    path = Path(file).parent / "ranks" / "rank0.clocks.csv"
    return pd.read_csv(path, keep_default_na=False)


def moments(clocks: pd.DataFrame) -> tuple[dict[str, float], list[float]]:
    """Return when gradients are known, and how long the update takes, from clocks of one process.

    Parameters
    ----------
    clocks : in the columns of `escala.probes.clocks.COLUMNS`.

    Returns
    -------
    By tensor, the share of the time until the last gradient after which it is known: medians of the
    steps. And the seconds from the last gradient to the end of the step: means of parts of the
    steps.
    """
    whole = clocks[clocks["tensor"] == ""].pivot(index=_STEP, columns="moment", values="seconds")
    ready = clocks[clocks["moment"] == GRADIENT_READY].pivot(
        index=_STEP, columns="tensor", values="seconds"
    )
    begins, last = whole[GATHER_BEGINS], ready.max(axis=1)
    shares = ready.sub(begins, axis=0).div(last - begins, axis=0).clip(0, 1)
    update = (whole[RETURNED] - last).to_numpy()
    return shares.median().to_dict(), [float(np.mean(part)) for part in _divided(update)]


def _overheads(runs: Sequence[Mapping]) -> dict[str, list[float]]:
    """Return the seconds outside the training steps, of all runs of one process."""
    return {
        "start_seconds": [_before(run) for run in runs],
        "evaluation_per_row_seconds": [
            run["seconds"]["evaluation"] / run["training"]["test_rows"] for run in runs
        ],
        "end_seconds": [_after(run) for run in runs],
    }
