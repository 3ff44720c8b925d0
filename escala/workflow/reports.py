"""Inputs of the rules that make a report."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError

from escala.analysis import history
from escala.experiment import Experiment
from escala.report.figures import DECLARED
from escala.report.products import STUDY_FILES
from escala.workflow.study import Study, Wildcards, refuse


def study_settings(e: Experiment) -> dict[str, Any]:
    """Return the key `scaling` of an experiment; refuse one without it."""
    if "scaling" not in e.settings:
        refuse(
            f"{e.origin}: scaling: this experiment has no scaling study. Remedy: write the key "
            "`scaling` (docs/how-to/study.md), or use one of experiments/scaling/"
        )
    return e.settings["scaling"]


def study_files(e: Experiment) -> list[str]:
    """Return the files of the document of a scaling study; refuse an experiment without one."""
    study_settings(e)
    return [f"results/{e.name}/{name}" for name in STUDY_FILES]


def if_any(name: str) -> Callable[[Wildcards], list[str]]:
    """Return what gives a file of an experiment's results as an input, if it is there."""

    def file(wildcards: Wildcards) -> list[str]:
        path = f"results/{wildcards.experiment}/{name}"
        return [path] if Path(path).exists() else []

    return file


def history_files() -> list[str]:
    """Return the files of the history: it may hold further sessions of an experiment's runs."""
    return sorted(map(os.path.relpath, history.location().glob("*.parquet")))


class Reports:
    """Inputs and parameters of the rules for reports, by their wildcards."""

    def __init__(self, study: Study):
        self._study = study

    def test_split(self, wildcards: Wildcards) -> str | list[str]:
        """Return the description of the split that a run was tested on, if a figure shows rows."""
        e, kind = self._study.experiment(wildcards), DECLARED[wildcards.run_figure].kind
        if kind is None:
            return []
        if self._study.dataset(wildcards)["kind"] != kind:
            raise WorkflowError(
                f"datasets.{wildcards.dataset}: {wildcards.run_figure} shows rows of the kind "
                f"{kind}"
            )
        repeat = int(wildcards.measurement.rpartition("rep")[2])
        return f"{e.split_of_repeat(wildcards.dataset, repeat)}/dataset.json"

    def pictures(self, wildcards: Wildcards) -> str | None:
        """Return the folder of a run's photographs, for a figure that shows rows of their kind."""
        if DECLARED[wildcards.run_figure].kind is None:
            return None
        folder = self._study.settings_result(wildcards, "photographs")
        return folder and str(folder)
