"""Predict the steps of more ranks than this machine has, and where more ranks stop paying.

Each number of ranks, network, exchange and scaling is a plan of the cost model
(`escala.analysis.cost_model.predict`), which has all formulas. One calibration gives all draws, so
ratios of two predictions are paired.

| scaling | rows of a step of n ranks | rows that count for the speed |
|---|---|---|
| strong | those of one rank | all |
| weak | n times those of one rank | all |
| unsharded | n times those of one rank | those of one rank |

In *unsharded* scaling, every rank trains on all rows of the data (`shard: false`). The other ranks'
rows are repetitions, so they do not count.

The model does not know:

- nodes that share a switch or a link with others, and switches that are slower than their links;
- ranks of unequal speed, and ranks that wait for each other's memory beyond what was calibrated;
- the reading of data from a file system that nodes share;
- the updates that reach a score: a larger step needs more epochs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from escala.analysis.cost_model.calibration import Calibration, Work
from escala.analysis.cost_model.collectives import GLOO, MPI, TENSORFLOW
from escala.analysis.cost_model.messages import Exchange, dense_exchange
from escala.analysis.cost_model.networks import PRESETS
from escala.analysis.cost_model.predict import TERMS, Plan, Prediction, interval, predict
from escala.analysis.measurements import read_run
from escala.analysis.statistics import Interval
from escala.analysis.verdicts import pays
from escala.core.errors import InputError
from escala.runtime.layout import Layout
from escala.strategies.costs import BETWEEN_NODES, EXCHANGES, RECOMPUTE

STRONG, WEAK, UNSHARDED = SCALINGS = ("strong", "weak", "unsharded")
ONE = Layout(1, 1)
LAYOUTS = tuple(Layout(2**exponent, 1) for exponent in range(7))
#: Of a simulation of hundreds of plans. Ends of intervals then vary by some per cent.
DRAWS = 100
#: Columns that name a series of layouts.
SERIES = ["scaling", "network", "exchange"]

_MODIFIERS = {
    "fp16": {"fp16": True},
    "sparse": {"sparse_as_dense": False},
}
_ACCUMULATION = "accumulation"
#: The strategy of each library whose measurements stand beside predictions.
_STRATEGIES = {MPI: "horovod-mpi", GLOO: "horovod-gloo", TENSORFLOW: "multiworker-mirrored"}


def exchange_of(name: str) -> Exchange:
    """Return an exchange from its name, as `factors+fp16`.

    A name begins with one of `costs.EXCHANGES`. `+fp16` halves bytes, `+sparse` gathers the rows of
    an embedding's gradient, and `+accumulation4`
    computes a step in four parts.

    Raises
    ------
    InputError : the name has another form.
    """
    dense, *modifiers = name.split("+")
    options: dict = {}
    for each in modifiers:
        parts = re.fullmatch(_ACCUMULATION + r"([1-9]\d*)", each)
        if parts is None and each not in _MODIFIERS:
            options = {}
            break
        options |= {_ACCUMULATION: int(parts[1])} if parts else _MODIFIERS[each]
    if dense not in EXCHANGES or bool(options) != bool(modifiers):
        raise InputError(
            "exchange",
            name,
            "is unknown",
            f"choose one of {', '.join(EXCHANGES)}, then "
            f"{', '.join(f'+{each}' for each in _MODIFIERS)} or +{_ACCUMULATION}N",
        )
    return Exchange(dense, **options)


def predictable_exchanges(work: Work | None) -> list[str]:
    """Return the exchanges between nodes for which a work is calibrated."""
    again = work and any(
        each.data_bytes and (each.recompute or work.overheads) for each in work.gradients
    )
    return [each for each in BETWEEN_NODES if each != RECOMPUTE or again]


def exchange_name(knobs: Mapping) -> str:
    """Return the name of the exchange of a run, from its knobs; the inverse of `exchange_of`."""
    sparse = "" if knobs["sparse_as_dense"] else "+sparse"
    parts = knobs["accumulation"]
    return (
        knobs["dense_exchange"]
        + ("+fp16" if knobs["compression"] == "fp16" else "")
        + sparse
        + (f"+{_ACCUMULATION}{parts}" if parts > 1 else "")
    )


def simulated(
    calibration: Calibration,
    work: str,
    rows: Mapping[str, int],
    layouts: Sequence[Layout] = LAYOUTS,
    networks: Sequence[str] = tuple(PRESETS),
    exchanges: Sequence[str] | None = None,
    library: str = MPI,
    cores: int = 1,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Callable[[Sequence], Iterable] = iter,
) -> pd.DataFrame:
    """Predict a step of each layout, by scaling, network and exchange.

    Parameters
    ----------
    work : its name in the calibration.
    rows : of a step of one rank, by scaling.
    layouts : one rank is added.
    networks : calibrated or preset ones; without effect within one node.
    exchanges : names as in `exchange_of`; by default those of `predictable_exchanges`.
    library, cores : as in `Plan`.
    progress : shows the progress of a long loop, like tqdm.

    Returns
    -------
    A row for each scaling, network, exchange and layout, in this order; layouts by their ranks.
    `used_exchange` is that of the largest dense layer: `allreduce` where another one saves too few
    bytes. `best_exchange` has the least step of those compared. The other columns are those of
    `_series`. Intervals are of the level `cost_model.calibration.LEVEL`, and hold the uncertainty
    of the calibration only.

    Raises
    ------
    InputError : the calibration has no such work, network or library, an exchange is unknown, or
        strong scaling has fewer rows than ranks.
    """
    exchanges = exchanges or predictable_exchanges(calibration.works.get(work))
    chosen = {name: exchange_of(name) for name in exchanges}
    ordered = sorted({ONE, *layouts}, key=lambda each: (each.ranks, each.nodes))
    if rows.get(STRONG, ordered[-1].ranks) < ordered[-1].ranks:
        raise InputError(
            "rows",
            rows[STRONG],
            f"of a step cannot be divided among {ordered[-1].ranks} ranks",
            "take more rows, or layouts of fewer ranks",
        )
    predicted = cache(lambda plan: predict(calibration, plan, draws, seed))
    found: list[dict] = []
    series = list(product(rows.items(), networks, chosen.items()))
    for (scaling, of_one), network, (name, exchange) in progress(series):
        plans = [Plan(work, ONE, of_one, library, cores)]
        for layout in ordered[1:]:
            of_step = of_one if scaling == STRONG else of_one * layout.ranks
            between = {"network": network} if layout.nodes > 1 else {}
            plans.append(Plan(work, layout, of_step, library, cores, exchange=exchange, **between))
        names = dict(zip(SERIES, (scaling, network, name), strict=True))
        names["network_calibrated"] = network in calibration.networks
        columns = _series([predicted(plan) for plan in plans], scaling)
        used = [{"used_exchange": _used(calibration, plan)} for plan in plans]
        found += (names | one | row for one, row in zip(used, columns, strict=True))
    return _with_best(pd.DataFrame(found))


def _series(predictions: Sequence[Prediction], scaling: str) -> Iterator[dict]:
    """Yield the columns of the predictions of one series, the first of one rank.

    `rows` are those of a step of all ranks. `gain` is the speed divided by that of the fastest
    layout with fewer ranks, and missing for one rank; `pays` tells whether a layout pays against
    that one. The seconds of each term of `predict.TERMS` are medians.
    """
    speeds: dict[Layout, np.ndarray] = {}
    for prediction in predictions:
        plan, layout = prediction.plan, prediction.plan.layout
        counted = plan.rows / (layout.ranks if scaling == UNSHARDED else 1)
        speed = counted / prediction.steps
        fewer = [each for other, each in speeds.items() if other.ranks < layout.ranks]
        speeds[layout] = speed
        best = max(fewer, key=np.median) if fewer else None
        gain = interval(speed / best) if fewer else Interval(None, None, None)
        speedup = interval(speed / speeds[ONE])
        yield {
            "layout": str(layout),
            "ranks": layout.ranks,
            "rows": plan.rows,
            **interval(prediction.steps).columns("step", "_seconds"),
            **interval(speed).columns("rows_per_second"),
            **speedup.columns("speedup"),
            "efficiency": speedup.estimate / layout.ranks,
            **gain.columns("gain"),
            "pays": bool(fewer) and pays(interval(best / speed)),
            **{f"{name}_seconds": float(np.median(prediction.terms[name])) for name in TERMS},
            "extrapolated": "; ".join(prediction.extrapolated),
        }


def _used(calibration: Calibration, plan: Plan) -> str | None:
    """Return the exchange of the largest dense layer, which may be too small for the requested one.

    None if there is no such layer, or one rank.
    """
    gradients = [
        each for each in calibration.works[plan.work].gradients if each.factor_rows is not None
    ]
    if not gradients or plan.layout == ONE:
        return None
    largest = max(gradients, key=lambda each: each.numbers)
    rows = -(-plan.rows // plan.layout.ranks)
    return dense_exchange(
        largest, rows, plan.layout.ranks, plan.exchange.between(plan.layout.nodes)
    )


def _with_best(table: pd.DataFrame) -> pd.DataFrame:
    """Add `best_exchange`, the one with the least median step; None for one rank."""
    place = ["scaling", "network", "layout"]
    least = table.loc[table.groupby(place, sort=False)["step_seconds"].idxmin()]
    best = least.set_index(place)["exchange"]
    named = [best[key] for key in table[place].itertuples(index=False, name=None)]
    return table.assign(best_exchange=np.where(table["ranks"] > 1, named, None))


def limits(table: pd.DataFrame) -> pd.DataFrame:
    """Return the row of each series with the most ranks that pay, or that of one rank."""
    return table[table["pays"] | (table["ranks"] == 1)].groupby(SERIES, sort=False).tail(1)


def measured(files: Iterable[str | Path], library: str = MPI, cores: int = 1) -> pd.DataFrame:
    """Return the mean step of each timing run, to stand beside predictions.

    Parameters
    ----------
    files : of `run.json`. Left out are runs without steps, of probes, with another number of cores,
        and those of several ranks under other strategies than the library's.

    Returns
    -------
    The columns `measured_step_seconds`, `measured_rows_per_second`, `session`, and `place` as in
    `_place`.
    """
    timed = [run for run in map(read_run, files) if _is_timed(run, library, cores)]
    return pd.DataFrame([_measured(run) for run in timed], columns=_MEASURED)


_MEASURED = ["place", "session", "measured_step_seconds", "measured_rows_per_second"]


def _is_timed(run: Mapping, library: str, cores: int) -> bool:
    strategy = _STRATEGIES[library] if Layout.parse(run["layout"]).ranks > 1 else "single"
    return (
        run["status"] == "ok"
        and run["instrument"] is None
        and run["training"]["kind"] == "steps"
        and (run["strategy"], run["knobs"]["cores_per_process"]) == (strategy, cores)
        and run["knobs"]["shard"] in (True, False)
    )


def _measured(run: Mapping) -> tuple:
    rows, layout, sharded = run["training"]["global_batch"], run["layout"], run["knobs"]["shard"]
    epochs = run["epochs"]
    step = sum(each["train_seconds"] for each in epochs) / sum(each["steps"] for each in epochs)
    counted = rows / (1 if sharded else Layout.parse(layout).ranks)
    place = _place(layout, rows, run["network"], exchange_name(run["knobs"]), sharded)
    return place, run["session"], step, counted / step


def _place(layout: str, rows: int, network: str, exchange: str, sharded: bool) -> tuple:
    """Return what decides a step: one node uses no network, and one rank exchanges nothing."""
    read = Layout.parse(layout)
    several = read.ranks > 1
    return (
        layout,
        rows,
        network if read.nodes > 1 else None,
        exchange if several else None,
        sharded or not several,
    )


def beside(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a simulation that were measured, once for each run.

    Parameters
    ----------
    table : the result of `simulated`.
    runs : the result of `measured`.

    Returns
    -------
    The columns of both, and `measured_to_predicted`: the measured step divided by the median of the
    predicted one.
    """
    places = [
        _place(row.layout, row.rows, row.network, row.exchange, row.scaling != UNSHARDED)
        for row in table.itertuples()
    ]
    both = table.assign(place=places).merge(runs, on="place").drop(columns="place")
    ratio = both["measured_step_seconds"] / both["step_seconds"]
    return both.assign(measured_to_predicted=ratio)
