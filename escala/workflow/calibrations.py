"""Inputs and parameters of the rules that calibrate the cost model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from escala.analysis.cost_model.calibrating import SUFFIX, CalibrationExperiment
from escala.experiment import Run
from escala.experiment.runs import NATIVE, ONE_PROCESS
from escala.measure.plan import table_of
from escala.workflow.study import Study, Wildcards, show_errors


class Calibrations:
    """Functions of the wildcards of a job.

    Parameters
    ----------
    has_links : returns whether there are several nodes, whose links can be calibrated.
    """

    def __init__(self, study: Study, has_links: Callable[[], bool]):
        self._study, self._has_links = study, has_links

    def experiment(self, wildcards: Wildcards) -> CalibrationExperiment:
        """Return the experiment whose runs calibrate the model for an experiment."""
        return self._study.by_name(f"{wildcards.experiment}{SUFFIX}")

    def files(self, wildcards: Wildcards) -> list[str]:
        """Return the files that a calibration is made of."""
        e = self.experiment(wildcards)
        return [table_of(e.name), *map(e.gradients_file, e.different_works)]

    def sources(self, wildcards: Wildcards) -> dict:
        """Return what each of these files tells."""
        return self.experiment(wildcards).sources(self._has_links())

    def _run(self, wildcards: Wildcards) -> Run:
        """Return the first run of one process of a model."""
        with show_errors():
            names = (wildcards.dataset, wildcards.workload, wildcards.strategy, ONE_PROCESS[1])
            return self._study.experiment(wildcards).run(*names, wildcards.variant, NATIVE, 1)

    def model_settings(self, wildcards: Wildcards) -> dict:
        """Return the settings that a model is built with: those of a run of one process."""
        return self._study.experiment(wildcards).settings_of(self._run(wildcards))

    def split(self, wildcards: Wildcards) -> str:
        """Return the description of a split, which gives the form of a model's rows."""
        e, run = self._study.experiment(wildcards), self._run(wildcards)
        return f"{e.split_of_repeat(run.dataset, run.repeat)}/dataset.json"


def times_of_tables(wildcards: Wildcards) -> list[str]:
    """Return what was measured of an experiment so far that an advice reads, with its times.

    These files are no inputs: an advice must not cause runs of the experiment.
    """
    folder = Path(f"results/{wildcards.experiment}")
    names = ("best_use", "configurations", "pooled", "speedup")
    tables = [folder / f"tables/{name}.csv" for name in names]
    files = [*folder.glob("runs/*/*/*/*/*/*/resources/run.json"), *tables]
    return sorted(f"{file} {file.stat().st_mtime_ns}" for file in files if file.exists())
