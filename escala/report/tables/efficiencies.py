"""The table of efficiencies: how much of its cores a configuration uses, and for what.

The efficiencies are those of POP (POP Standard Metrics for Parallel Performance Analysis,
https://www.pop-coe.eu/node/69), from two sources:

- `core time`: useful is the core time of the steps of timing runs. This needs no further runs. But
  active waiting has core time, too, and so has the exchange.
- `parts of steps`: useful is the time of a step without exposed exchange, by the runs with clocks
  or traces. Threads of a process count together.

Traces of PyTorch also tell the floating-point operations of a step.

Efficiencies multiply. For the same work, the time of the reference divided by the time of the
configuration is (cores / cores of the reference) × (parallel efficiency / that of the reference) ×
computation scaling. The cores of runs by parts of steps are GPUs, if the processes have GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

from escala.analysis import laws
from escala.analysis.attribution import EXCHANGE, WHOLE
from escala.analysis.comparable import (
    Matched,
    Measurement,
    is_fit,
    match_runs,
    newest_of_repeats,
    work,
)
from escala.analysis.statistics import median_interval, ratio_interval
from escala.analysis.traces import spans
from escala.analysis.verdicts import leave_out_disturbed
from escala.core.files import read_json
from escala.experiment.runs import MAIN, Configuration, references_for
from escala.probes.torch_trace import counted_files
from escala.report.tables import base
from escala.report.tables.base import LAYOUT, Evidence, Tables
from escala.report.tables.runs import core_use, loader_workers
from escala.report.tables.views import is_among

CORE_TIME, PARTS = "core time", "parts of steps"
_ON_GPU = "it may compute on a GPU, of which core time tells nothing"
_SHARED = "its processes share cores"
_UNKNOWN = "the core time of its steps alone is not known"
#: Core time that is known of epochs only is that of their steps, if these take so much of them.
_STEPS_OF_EPOCHS = 0.95


def efficiencies(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield for each configuration that is trained over epochs a row for each source it has."""
    by_names = base.by_configuration(run for run in evidence.runs if not is_fit(run))
    by_traces = base.by_configuration(evidence.probe_runs("torch-trace"))
    for names, every in by_names.items():
        configuration = Configuration(*names[2:])
        references = dict(references_for(configuration, evidence.references))
        reference = references.get(MAIN, configuration)
        reference_names = (*names[:2], *reference)
        timed, reference_timed = (
            [run for run in by_names.get(key, ()) if base.is_timed(run)]
            for key in (names, reference_names)
        )
        # The runs of the ratio of times.
        matches = leave_out_disturbed(newest_of_repeats(match_runs(timed, reference_timed))).matches
        about = {
            **base.name_columns(names),
            **base.reference_columns(MAIN, reference),
            "ranks": names[LAYOUT].ranks,
            "cores": base.cores_of(every[0]),
            **base.data_of(every[0], base.ABOUT),
        }
        runs = matches.runs or timed
        counted = _operations(by_traces.get(names, ()), runs) if runs else {}
        yield about | _by_core_time(runs, matches, evidence.level) | counted
        parts = _parts(names, tables)
        if runs and not parts.empty:
            yield about | _by_parts(parts, runs, _parts(reference_names, tables), matches)


def _by_core_time(runs: Sequence[Measurement], matches: Matched, level: float) -> dict:
    """Return the columns by the core time of timing runs, and of their references."""
    row = {"source": CORE_TIME, "kind": "unavailable", "runs": len(runs)}
    if not runs:
        return row | {"reason": "no run ended ok"}
    if base.gpus_of(runs[0]):
        return row | {"reason": _ON_GPU}
    if runs[0]["ranks"]["oversubscribed"]:
        return row | {"reason": _SHARED}
    used = [
        (run, seconds) for run in runs if (seconds := _core_seconds(run, bool(loader_workers(run))))
    ]
    if not used:
        return row | {"reason": _UNKNOWN}
    parallel = [seconds / base.cores_of(run) / base.seconds_per_epoch(run) for run, seconds in used]
    busy = median_interval(parallel, level=level)
    row |= {"kind": "estimated", **busy.columns("parallel_efficiency")}
    if balances := [balance for run, _ in used if (balance := _balance(run))]:
        row["load_balance"] = median(balances)
        row["communication_efficiency"] = busy.estimate / row["load_balance"]
    scaling = [
        reference_seconds * work(run, reference) / seconds
        for run, reference in matches.pairs
        for sampled in [bool(loader_workers(run) or loader_workers(reference))]
        if (seconds := _core_seconds(run, sampled))
        and (reference_seconds := _core_seconds(reference, sampled))
    ]
    if not scaling:
        return row
    ratio = ratio_interval(scaling, level=level)
    return row | {
        "matches": len(scaling),
        **ratio.columns("computation_scaling"),
        "global_efficiency": busy.estimate * ratio.estimate,
    }


def _core_seconds(run: Measurement, sampled: bool) -> float | None:
    """Return the core seconds of the steps of an epoch, over all processes; None if unknown.

    Parameters
    ----------
    sampled : whether only samples count, which include the processes that load batches.
    """
    in_step, steps = core_use(run, sampled)["core_seconds_per_step"], base.steps_of_epoch(run)
    if not (in_step and steps) or (sampled and not run.get("usage")):
        return None
    if "program" in run and (sampled or not base.mean_steps(run)):
        # What was used between steps counts, too.
        whole = sum(epoch["epoch_wall_seconds"] for epoch in run["epochs"])
        if run["seconds"]["train"] < _STEPS_OF_EPOCHS * whole:
            return None
    return in_step * steps


def _balance(run: Measurement) -> float | None:
    """Return the mean core time of several ranks divided by the largest; None if it is unknown."""
    used = [] if loader_workers(run) else [step["core_seconds"] for step in base.mean_steps(run)]
    if "program" not in run:
        used = [part["user_seconds"] + part["system_seconds"] for part in run.get("usage") or ()]
    is_known = len(used) == run["layout"].ranks > 1 and max(used) > 0
    return np.mean(used) / max(used) if is_known else None


def _parts(names: tuple, tables: Tables) -> pd.DataFrame:
    """Return the seconds of the known parts of a step, with a row for each rank."""
    table = tables["attribution"]
    known = table[is_among(table, {names}) & (table["kind"] != "unavailable")]
    parts = known.pivot(index="rank", columns="part", values="seconds").astype(float)
    # The table says in `source` what the parts are from.
    parts.attrs["is_traced"] = spans.SOURCE in set(known["source"])
    return parts


def _by_parts(
    parts: pd.DataFrame,
    runs: Sequence[Measurement],
    reference_parts: pd.DataFrame,
    matches: Matched,
) -> dict:
    """Return the columns by the parts of steps of a configuration and of its reference."""
    row = {"source": PARTS, "kind": "unavailable", "runs": len(runs)}
    useful, transfer = _useful(parts)
    if useful is None:
        return row | {"reason": "its parts do not tell what waits for a slower rank"}
    known = laws.efficiencies(useful, transfer, parts[WHOLE].max())
    if len(useful) == 1:
        known = {"parallel_efficiency": known["parallel_efficiency"]}
    row |= {"kind": "measured", **known}
    reference_useful, _ = (None, None) if reference_parts.empty else _useful(reference_parts)
    if reference_useful is None or not matches.runs:
        return row
    run, reference = matches.pairs[0]
    seconds, reference_seconds = (
        # Ranks have equal numbers of cores, or of GPUs.
        part.sum() * (base.steps_of_epoch(one) or np.nan)
        * (base.gpus_of(one) or base.cores_of(one)) / len(part)
        for part, one in ((useful, run), (reference_useful, reference))
    )  # fmt: skip
    scaling = reference_seconds * work(run, reference) / seconds
    if np.isfinite(scaling):
        row["computation_scaling"] = scaling
        row["global_efficiency"] = row["parallel_efficiency"] * scaling
    return row


def _useful(parts: pd.DataFrame) -> tuple[pd.Series, pd.Series] | tuple[None, None]:
    """Return the useful seconds of each rank in a step, and those of transfer; None if unknown."""
    # Copies in traces are those of devices.
    names = {"transfer"} if parts.attrs["is_traced"] else {*EXCHANGE, "negotiation"}
    if not {"skew", WHOLE, *names} <= {*parts}:
        return None, None
    transfer = parts[[*names]].sum(axis=1)
    return parts[WHOLE] - parts["skew"] - transfer, transfer


def _operations(traced: Sequence[Measurement], runs: Sequence[Measurement]) -> dict:
    """Return the columns on floating-point operations, from the first traced run with all ranks."""
    steps = base.steps_of_epoch(runs[0])
    for run in traced:
        ranks = [read_json(path) for path in counted_files(Path(run["file"]))]
        counted = sum(rank["step"] for rank in ranks)
        if counted and steps and len(ranks) == run["layout"].ranks:
            rate = counted * steps / median(map(base.seconds_per_epoch, runs))
            product_rate = sum(rank["matrix_products_per_second"] for rank in ranks)
            return {
                "operations_per_second": rate,
                "product_operations_per_second": product_rate,
                "operations_fraction": rate / product_rate,
            }
    return {}
