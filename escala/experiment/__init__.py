"""An experiment: its file, read and checked whole, and expanded into its runs."""

from __future__ import annotations

from escala.experiment.files import check_name, load, named, read
from escala.experiment.matrix import Experiment
from escala.experiment.runs import Pair, Run

__all__ = ["Experiment", "Pair", "Run", "check_name", "load", "named", "read"]
