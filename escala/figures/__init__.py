"""Figures: each module has a function `draw` that returns one. Adding one is adding a line here."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

#: Drawn from the tables of every experiment: `draw(tables)`.
FIGURES = (
    "class_distribution",
    "accuracy_per_epoch",
    "seconds_per_epoch",
    "confusion_matrices",
    "classification_reports",
    "splits",
    "speedup",
)
#: The same, of experiments with several nodes, samples of resources, moments of steps, or ladders.
NODES_FIGURE, RESOURCES_FIGURE, ATTRIBUTION_FIGURE, LADDER_FIGURE = SOME_FIGURES = (
    "nodes_and_rates",
    "resources",
    "attribution",
    "ladder",
)
#: Drawn from one instrumented run: `draw(run, events)`.
TIMELINE_FIGURES = ("timeline_run", "timeline_allreduce")


def figure(name: str) -> ModuleType:
    """Return the module of a figure."""
    return import_module(f"escala.figures.{name}")
