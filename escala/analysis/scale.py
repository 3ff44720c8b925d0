"""Predict the steps of more ranks than this machine has, and where more ranks stop paying.

This module makes a setup of the cost model for each number of ranks, network, exchange and scaling;
all formulas are in the cost model. All predictions use the same draws of one calibration, so a
ratio of two predictions compares matching draws.

| scaling | rows of a step of n ranks | rows that count for the speed |
|---|---|---|
| strong | as many as with one rank | all |
| weak | n times as many | all |
| unsharded | n times as many (`shard: false`) | those of one rank |

The model ignores: nodes that share a switch or a link with others; ranks of unequal speed; reading
data from a file system that nodes share; the number of updates that a score needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product

import numpy as np
import pandas as pd

from escala.analysis.cost_model.calibration import LEVEL, VALIDATED_RANKS, Calibration
from escala.analysis.cost_model.messages import Exchange, dense_exchange
from escala.analysis.cost_model.networks import PRESETS
from escala.analysis.cost_model.predict import TERMS, Prediction, Setup, interval, predict
from escala.analysis.statistics import Interval
from escala.analysis.verdicts import pays
from escala.core.engines import COLLECTIVES
from escala.core.errors import InputError
from escala.engines.costs import ALLREDUCE, EXCHANGES, FACTORS
from escala.runtime.layout import Layout

STRONG, WEAK, UNSHARDED = ("strong", "weak", "unsharded")
ONE = Layout(1, 1)
LAYOUTS = tuple(Layout(2**exponent, 1) for exponent in range(7))
#: Draws of a prediction: few, for hundreds of setups. Ends of intervals vary by some per cent.
DRAWS = 100
#: Columns that name a series of layouts.
SERIES = ["scaling", "network", "exchange"]
_NAME = re.compile(rf"({'|'.join(EXCHANGES)})(\+fp16)?(\+sparse)?(?:\+accumulation([1-9]\d*))?")


def exchange_of(name: str) -> Exchange:
    """Return an exchange from its name.

    A name begins with one of `EXCHANGES`. Then `+fp16` halves bytes, `+sparse` gathers the rows of
    an embedding's gradient, and `+accumulation4` computes a step in four parts. The order is fixed.

    Raises
    ------
    InputError : the name has another form.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        known = ", ".join(EXCHANGES)
        remedy = f"choose one of {known}, then +fp16, +sparse, +accumulationN"
        raise InputError("exchange", name, "is unknown", remedy)
    dense, fp16, sparse, parts = match.groups()
    return Exchange(dense, bool(fp16), not sparse, int(parts or 1))


def simulated(
    calibration: Calibration,
    work: str,
    rows: Mapping[str, int],
    layouts: Sequence[Layout] = LAYOUTS,
    networks: Sequence[str] = tuple(PRESETS),
    exchanges: Sequence[str] = (ALLREDUCE, FACTORS),
    library: str = next(iter(COLLECTIVES)),
    cores: int = 1,
    draws: int = DRAWS,
) -> pd.DataFrame:
    """Predict a step of each layout, by scaling, network and exchange.

    Parameters
    ----------
    work : its name in the calibration.
    rows : of a step of one rank, by scaling.
    layouts : that of one rank is added.
    networks : calibrated or preset ones; without effect within one node.
    exchanges : names as in `exchange_of`.
    library, cores : as in `Setup`.

    Returns
    -------
    A row for each scaling, network, exchange and layout, in this order; layouts by their ranks.
    The columns are those of `_series`. Intervals are of the level `LEVEL`, and there are none with
    more than `VALIDATED_RANKS` ranks.

    Raises
    ------
    InputError : the calibration has no such work, network or library, an exchange is unknown, or
        strong scaling has fewer rows than ranks.
    """
    ordered = sorted({ONE, *layouts}, key=lambda each: (each.ranks, each.nodes))
    if rows.get(STRONG, ordered[-1].ranks) < ordered[-1].ranks:
        raise InputError(
            "rows",
            rows[STRONG],
            f"of a step cannot be divided among {ordered[-1].ranks} ranks",
            "take more rows, or layouts of fewer ranks",
        )
    predicted = cache(lambda setup: predict(calibration, setup, draws))
    found: list[dict] = []
    selected = {name: exchange_of(name) for name in exchanges}
    for (scaling, rows_of_one), network, name in product(rows.items(), networks, selected):
        setups = [Setup(work, ONE, rows_of_one, library, cores)]
        for layout in ordered[1:]:
            step_rows = rows_of_one if scaling == STRONG else rows_of_one * layout.ranks
            between = {"network": network} if layout.nodes > 1 else {}
            exchange = selected[name].between(layout.nodes)
            setups.append(
                Setup(work, layout, step_rows, library, cores, exchange=exchange, **between)
            )
        names = dict(zip(SERIES, (scaling, network, name), strict=True))
        names["network_calibrated"] = network in calibration.networks
        found += (
            names | {"used_exchange": _used(calibration, setup)} | row
            for setup, row in zip(setups, _series(map(predicted, setups), scaling), strict=True)
        )
    return pd.DataFrame(found)


def _series(predictions: Iterator[Prediction], scaling: str) -> Iterator[dict]:
    """Yield a row for each prediction of a series; the first prediction has one rank.

    `rows` are those of a step of all ranks. `gain` is the speed divided by that of the fastest
    layout with fewer ranks, and missing for one rank; `pays` tells whether a layout pays against
    that one, and is missing where there is no interval. The seconds of each term of
    `predict.TERMS` are medians.
    """
    speeds: dict[Layout, np.ndarray] = {}
    for prediction in predictions:
        rows, layout = prediction.setup.rows, prediction.setup.layout
        speed = rows / (layout.ranks if scaling == UNSHARDED else 1) / prediction.steps
        fewer = [each for other, each in speeds.items() if other.ranks < layout.ranks]
        speeds[layout] = speed
        best, ranks = max(fewer, key=np.median, default=None), layout.ranks
        gain = interval(speed / best, ranks) if fewer else Interval(None, None, None)
        speedup = interval(speed / speeds[ONE], ranks)
        yield {
            "layout": str(layout),
            "ranks": ranks,
            "rows": rows,
            **interval(prediction.steps, ranks).columns("step", "_seconds"),
            **interval(speed, ranks).columns("rows_per_second"),
            **speedup.columns("speedup"),
            "efficiency": speedup.estimate / ranks,
            **gain.columns("gain"),
            "pays": (bool(fewer) and pays(interval(best / speed)))
            if ranks <= VALIDATED_RANKS
            else None,
            **{f"{name}_seconds": float(np.median(prediction.terms[name])) for name in TERMS},
            "extrapolated": "; ".join(prediction.extrapolated),
        }


def _used(calibration: Calibration, setup: Setup) -> str | None:
    """Return the exchange that the largest dense layer really uses.

    It is an allreduce if the layer is too small for the wanted one, and None without a dense layer
    or with one rank.
    """
    ranks = setup.layout.ranks
    layers = [each for each in calibration.works[setup.work].gradients if each.factor_rows]
    if not layers or ranks == 1:
        return None
    largest = max(layers, key=lambda each: each.numbers)
    return dense_exchange(largest, -(-setup.rows // ranks), ranks, setup.exchange)


def limits(table: pd.DataFrame) -> pd.DataFrame:
    """Return for each series the row with the most ranks that pays, else the row of one rank."""
    return table[table["pays"].eq(True) | (table["ranks"] == 1)].groupby(SERIES, sort=False).tail(1)


def lines(table: pd.DataFrame) -> Iterator[str]:
    """Yield speed-ups by scaling and network, and the largest layout that pays, as text.

    Parameters
    ----------
    table : the result of `simulated`.
    """
    asked = table["exchange"].str.split("+").str[0]
    replaced = table["ranks"].gt(1) & (table["used_exchange"] != asked)
    table = table.assign(
        text=[
            f"{row.speedup:.2f}"
            + (
                ""
                if pd.isna(row.speedup_low)
                else f" ({row.speedup_low:.2f}-{row.speedup_high:.2f})"
            )
            + "*" * other
            for row, other in zip(table.itertuples(), replaced, strict=True)
        ]
    )
    ends = limits(table)
    for (scaling, network), panel in table.groupby(["scaling", "network"], sort=False):
        first = panel.iloc[0]
        note = "" if first["network_calibrated"] else " (extrapolated)"
        yield f"{scaling} scaling, {first['rows']} rows of one rank, {network}{note}:"
        yield f"speed-up over one rank, with a {LEVEL:.0%} interval up to {VALIDATED_RANKS} ranks"
        shown = panel.pivot(index="layout", columns="exchange", values="text")
        order = shown.loc[panel["layout"].unique(), panel["exchange"].unique()]
        yield from order.rename_axis(None).rename_axis(None, axis=1).to_string().split("\n")
        for row in ends[(ends["scaling"] == scaling) & (ends["network"] == network)].itertuples():
            yield (
                f"{row.exchange}: pays up to {row.layout}, {row.text}, "
                f"efficiency {row.efficiency:.2f}"
                if row.pays
                else f"{row.exchange}: no layout of up to {VALIDATED_RANKS} ranks pays"
            )
        yield ""
    if replaced.any():
        yield "* summed by allreduce: the exchange would save too few bytes."
    phrases = [each for joined in table["extrapolated"] for each in joined.split("; ") if each]
    if phrases:
        yield "Extrapolated, and not covered by the intervals:"
        yield from (f"  {phrase}" for phrase in dict.fromkeys(phrases))
