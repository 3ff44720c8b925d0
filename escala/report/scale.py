"""Print and draw a simulation of more ranks, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.analysis.cost_model.calibration import LEVEL
from escala.analysis.scale import STRONG, UNSHARDED, WEAK, limits
from escala.report.figures.common import (
    PANEL_TITLE,
    head,
    legend_of,
    markers,
    new,
    note,
    palette,
    wrap,
)
from escala.strategies.costs import ALLREDUCE

#: What one rank computes in a step, by scaling.
_ROWS = {
    STRONG: "{rows} rows in every step",
    WEAK: "{rows} rows of each rank",
    UNSHARDED: "{rows} rows of each rank, of which every one trains on all data",
}
_PANEL = ["scaling", "network"]
_REPLACED = "*"


def lines(table: pd.DataFrame, beside: pd.DataFrame) -> Iterator[str]:
    """Yield speed-ups by scaling and network, the largest layout that pays, and measured steps.

    Parameters
    ----------
    table : the result of `escala.analysis.scale.simulated`.
    beside : the result of `escala.analysis.scale.beside`, which may be empty.
    """
    last = limits(table)
    for key, panel in table.groupby(_PANEL, sort=False):
        yield f"{_heading(panel)}: speed-up over one rank, {LEVEL:.0%} interval"
        yield from _speedups(panel)
        yield from map(_limit, last[(last[_PANEL] == list(key)).all(axis=1)].to_dict("records"))
        yield ""
    if _replaced(table).any():
        yield f"{_REPLACED} summed by allreduce: the exchange would save too few bytes."
    yield from _measured(beside)
    phrases = [each for joined in table["extrapolated"] for each in joined.split("; ") if each]
    if phrases:
        yield "Extrapolated, and not covered by the intervals:"
        yield from (f"  {phrase}" for phrase in dict.fromkeys(phrases))


def _heading(panel: pd.DataFrame) -> str:
    first = panel.iloc[0]
    rows = _ROWS[first["scaling"]].format(rows=first["rows"])
    return f"{first['scaling']} scaling, {rows}, {_network(panel)}"


def _network(panel: pd.DataFrame) -> str:
    first = panel.iloc[0]
    return first["network"] + ("" if first["network_calibrated"] else " (extrapolated)")


def _replaced(table: pd.DataFrame) -> pd.Series:
    """Return where an exchange saves too few bytes, so that an allreduce takes its place."""
    asked = table["exchange"].str.split("+").str[0]
    return (table["used_exchange"] == ALLREDUCE) & (asked != ALLREDUCE)


def _speedups(panel: pd.DataFrame) -> Iterator[str]:
    """Yield a line for each layout, with a column for each exchange."""
    series = [group for _, group in panel.groupby("exchange", sort=False)]
    columns = {"layout": list(series[0]["layout"])}
    for group in series:
        columns[group["exchange"].iloc[0]] = [
            _spread(row.speedup, row.speedup_low, row.speedup_high) + _REPLACED * bool(replaced)
            for row, replaced in zip(group.itertuples(), _replaced(group), strict=True)
        ]
    columns["fastest"] = list(series[0]["best_exchange"].fillna("-"))
    yield from pd.DataFrame(columns).to_string(index=False).split("\n")


def _spread(middle: float, low: float, high: float) -> str:
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def _limit(row: dict) -> str:
    if not row["pays"]:
        return f"{row['exchange']}: more than one rank does not pay"
    spread = _spread(*(row[f"speedup{end}"] for end in ("", "_low", "_high")))
    efficiency = f"efficiency {row['efficiency']:.2f}"
    return f"{row['exchange']}: pays up to {row['layout']}, {spread}, {efficiency}"


def _measured(beside: pd.DataFrame) -> Iterator[str]:
    """Yield a line for each measured run, once for all panels that show it."""
    shown = beside.drop_duplicates(["session", "layout", "rows", "measured_step_seconds"])
    if not shown.empty:
        yield "Measured steps, and the predicted ones:"
    for row in shown.itertuples():
        predicted = (row.step_seconds, row.step_low_seconds, row.step_high_seconds)
        spread = _spread(*(1000 * each for each in predicted))
        yield (
            f"  {row.layout}, {row.rows} rows, {row.network}, {row.exchange}: "
            f"{1000 * row.measured_step_seconds:.2f} ms, predicted {spread} ms, "
            f"ratio {row.measured_to_predicted:.2f}"
        )
    if not shown.empty:
        yield ""


def draw(table: pd.DataFrame, beside: pd.DataFrame, title: str) -> Figure:
    """Draw the speed of each exchange by layout, a panel for each scaling and network.

    Parameters
    ----------
    table, beside : as in `lines`.
    """
    names = list(table["exchange"].unique())
    scalings, networks = (list(table[key].unique()) for key in _PANEL)
    figure = new(2.0 + 2.6 * len(networks), 0.6 + 2.6 * len(scalings))
    grid = figure.subplots(len(scalings), len(networks), sharex=True, sharey="row", squeeze=False)
    for key, panel in table.groupby(_PANEL, sort=False):
        axes = grid[scalings.index(key[0]), networks.index(key[1])]
        _panel(axes, panel, names)
        points = beside[(beside[_PANEL] == list(key)).all(axis=1)]
        if not points.empty:
            axes.plot(points["layout"], points["measured_rows_per_second"], "kx", label="measured")
        axes.set_title(wrap(f"{key[0]} scaling, {_network(panel)}", 2.4, PANEL_TITLE))
    legend_of(figure, grid.flat, "exchange")
    head(figure, title)
    note(
        figure,
        [
            f"Lines: median of the prediction; bands: {LEVEL:.0%} interval, which holds the "
            "uncertainty of the calibration only; dashed: the speed of one rank times the ranks.",
            "In a network that is extrapolated, no message was measured.",
        ],
    )
    return figure


def _panel(axes: Axes, panel: pd.DataFrame, names: list[str]) -> None:
    colours = palette(names)
    first = panel[panel["exchange"] == names[0]]
    counted = 1 if first["scaling"].iloc[0] == UNSHARDED else first["ranks"]
    ideal = first["rows_per_second"].iloc[0] * counted + 0 * first["ranks"]
    axes.plot(first["layout"], ideal, "--", color="0.4", linewidth=1, label="ideal")
    for name, series in panel.groupby("exchange", sort=False):
        ends = (series["rows_per_second_low"], series["rows_per_second_high"])
        axes.fill_between(series["layout"], *ends, color=colours[name], alpha=0.15, linewidth=0)
    sns.lineplot(
        panel,
        x="layout",
        y="rows_per_second",
        hue="exchange",
        style="exchange",
        palette=colours,
        markers=markers(names),
        dashes=False,
        estimator=None,
        sort=False,
        ax=axes,
    )
    axes.get_legend().remove()
    axes.set(xlabel="layout", ylabel="rows per second", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.tick_params(axis="x", labelrotation=45)
