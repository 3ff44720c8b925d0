"""An experiment: its file, read and checked whole, and expanded into its runs."""

from __future__ import annotations

from escala.experiment.files import check_name, load, load_by_name, read
from escala.experiment.matrix import Experiment
from escala.experiment.runs import Run, Rung

__all__ = ["Experiment", "Run", "Rung", "check_name", "load", "load_by_name", "read"]
