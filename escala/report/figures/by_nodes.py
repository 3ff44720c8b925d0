"""Provide panels, lines and names of networks of the figures by the number of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd

from escala.report.figures.common import ordered_palette, panel_title
from escala.report.figures.looks import MARKERS, significant
from escala.runtime.layout import Layout

_LINES = ("-", "--", "-.", ":")
#: Markers of networks; a cross stands for an estimated time.
_SHAPES = MARKERS.replace("X", "")


def with_nodes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the columns `nodes` and `processes` (of a node) of each layout."""
    layouts = [Layout.parse(layout) for layout in frame["layout"]]
    return frame.assign(
        nodes=[layout.nodes for layout in layouts],
        processes=[layout.processes for layout in layouts],
    )


def panels(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split a table into panels, each with its title.

    A panel shows one dataset, workload, strategy and variant, in order of appearance.
    """
    parts = frame.groupby(["dataset", "workload", "strategy", "variant"], sort=False)
    return [
        (f"{strategy} {variant}: {panel_title(workload, part, several=True)}", part)
        for (_, workload, strategy, variant), part in parts
    ]


def network_names(runs: pd.DataFrame, networks: Iterable[str]) -> dict[str, str]:
    """Return a name with the measured rate in Mbit/s of each network.

    The slowest comes first, and last those whose rate was not measured.

    Parameters
    ----------
    runs : the table of runs. The rate is the median of the latest runs that ended ok.
    """
    ended_ok = runs[runs["current"] & (runs["status"] == "ok")]
    rates = ended_ok.groupby("network")["mbit_per_second"].median().dropna()
    slowest_first = sorted(networks, key=lambda name: rates.get(name, np.inf))
    return {
        name: f"{name}: {significant(rates[name])}" if name in rates else name
        for name in slowest_first
    }


def lines(
    panel: pd.DataFrame, names: dict[str, str]
) -> Iterator[tuple[str, pd.DataFrame, dict[str, Any]]]:
    """Yield the label, the rows and the look of each line of a panel.

    A line connects layouts of one network with the same number of processes a node.

    Parameters
    ----------
    names : the result of `network_names`.
    """
    colours, shapes = ordered_palette(list(names)), dict(zip(names, cycle(_SHAPES)))
    processes = sorted(panel["processes"].unique())
    for network, name in names.items():
        for number, rows in panel[panel["network"] == network].groupby("processes"):
            label = name + f", {number} a node" * (len(processes) > 1)
            line = _LINES[processes.index(number) % len(_LINES)]
            look = {"color": colours[network], "marker": shapes[network], "linestyle": line}
            yield label, rows.sort_values("nodes"), look
