"""Describe layouts and strategies in words, for readers who do not know their names."""

from __future__ import annotations

from escala.core.readable import in_words
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES


def strategy_in_words(name: str) -> str:
    """Return what the processes of a strategy use to train together, or its name if unknown."""
    return STRATEGIES[name].said if name in STRATEGIES else name


def layout_in_words(layout: str, strategy: str = "", threads: int = 1) -> str:
    """Describe a layout: `two processes on one node`, or `one process with two threads`.

    Parameters
    ----------
    strategy : some hold all ranks of a node in one process.
    threads : of each process; one is not told.
    """
    found, known = Layout.parse(layout), STRATEGIES.get(strategy)
    ranks, several = in_words(found.ranks), found.ranks > 1
    if several and known is not None and known.layouts.process_per_node and known.engine:
        return f"one process with {ranks} copies of the model"
    text = f"{ranks} processes" if several else "one process"
    if several:
        text += f" on {in_words(found.nodes)} node{'s' * (found.nodes > 1)}"
    if threads > 1:
        text += f" with {in_words(threads)} threads{' each' * several}"
    return text
