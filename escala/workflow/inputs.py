"""Inputs and parameters of the rules that calibrate the cost model and make reports."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError

from escala.analysis import history
from escala.analysis.cost_model.calibrating import SUFFIX, CalibrationExperiment
from escala.experiment import Experiment, Run
from escala.experiment.runs import NATIVE, ONE_PROCESS
from escala.measure.plan import table_of
from escala.report.figures import DECLARED
from escala.report.products import STUDY_FILES
from escala.workflow.experiments import Experiments, Wildcards, refuse, show_errors


class Calibrations:
    """Inputs and parameters of the rules that calibrate, by their wildcards.

    Parameters
    ----------
    has_links : returns whether there are several nodes, whose links can be calibrated.
    """

    def __init__(self, experiments: Experiments, has_links: Callable[[], bool]):
        self._experiments, self._has_links = experiments, has_links

    def experiment(self, wildcards: Wildcards) -> CalibrationExperiment:
        """Return the experiment whose runs calibrate the model for an experiment."""
        return self._experiments.by_name(f"{wildcards.experiment}{SUFFIX}")

    def files(self, wildcards: Wildcards) -> list[str]:
        """Return the files that a calibration is made of."""
        e = self.experiment(wildcards)
        return [table_of(e.name), *map(e.gradients_file, e.different_works)]

    def sources(self, wildcards: Wildcards) -> dict:
        """Return what the calibration takes from each of `files`."""
        return self.experiment(wildcards).sources(self._has_links())

    def _run(self, wildcards: Wildcards) -> Run:
        """Return the first run of one process of a model."""
        with show_errors():
            names = (wildcards.dataset, wildcards.workload, wildcards.strategy, ONE_PROCESS[1])
            return self._experiments.experiment(wildcards).run(*names, wildcards.variant, NATIVE, 1)

    def model_settings(self, wildcards: Wildcards) -> dict:
        """Return the settings that a model is built with: those of a run of one process."""
        return self._experiments.experiment(wildcards).settings_of(self._run(wildcards))

    def split(self, wildcards: Wildcards) -> str:
        """Return the description of a split, which gives the form of a model's rows."""
        e, run = self._experiments.experiment(wildcards), self._run(wildcards)
        return f"{e.split_of_repeat(run.dataset, run.repeat)}/dataset.json"


def times_of_tables(wildcards: Wildcards) -> list[str]:
    """Return the files of an experiment that an advice reads, each with its time of change.

    They are parameters and no inputs: an advice must not cause runs of the experiment.
    """
    folder = Path(f"results/{wildcards.experiment}")
    names = ("best_use", "configurations", "pooled", "speedup")
    tables = [folder / f"tables/{name}.csv" for name in names]
    files = [*folder.glob("runs/*/*/*/*/*/*/resources/run.json"), *tables]
    return sorted(f"{file} {file.stat().st_mtime_ns}" for file in files if file.exists())


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
    """Return a function of wildcards: it gives a file of the results as an input if that exists."""

    def file(wildcards: Wildcards) -> list[str]:
        path = f"results/{wildcards.experiment}/{name}"
        return [path] if Path(path).exists() else []

    return file


def history_files() -> list[str]:
    """Return the files of the history, which may hold further sessions of an experiment."""
    return sorted(map(os.path.relpath, history.location().glob("*.parquet")))


class Reports:
    """Inputs and parameters of the rules for reports, by their wildcards."""

    def __init__(self, experiments: Experiments):
        self._experiments = experiments

    def test_split(self, wildcards: Wildcards) -> str | list[str]:
        """Return the description of the split that a run was tested on, if a figure shows rows."""
        e, kind = self._experiments.experiment(wildcards), DECLARED[wildcards.run_figure].kind
        if kind is None:
            return []
        if self._experiments.dataset(wildcards)["kind"] != kind:
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
        folder = self._experiments.settings_result(wildcards, "photographs")
        return folder and str(folder)
