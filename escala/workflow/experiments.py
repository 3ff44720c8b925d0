"""The experiments of a call of Snakemake, and what wildcards name in them.

An experiment is one complete file. `results/NAME/…` belongs to NAME.yaml in experiments/ or in a
folder of it, or to config.yaml if its name is NAME. `--configfile FILE` selects another default
experiment. If the working directory is no project folder, its experiments/ comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from snakemake.exceptions import WorkflowError
from snakemake.utils import update_config

from escala.analysis.cost_model.calibrating import CalibrationExperiment, experiment_of
from escala.core import environment
from escala.core.errors import InputError
from escala.data import kind_of
from escala.data.settings import derive
from escala.experiment import Experiment, Run, check_name, files_by_name, load_by_name, read

Wildcards = Any


@contextmanager
def show_errors() -> Iterator[None]:
    """Let Snakemake show an error of the user's input as it is."""
    try:
        yield
    except InputError as error:
        raise WorkflowError(str(error)) from None


def refuse(message: object) -> NoReturn:
    """End Snakemake with one message on wrong input.

    Snakemake shows any other exception of an input function with places in the rules, although the
    error is not there.
    """
    raise SystemExit(str(message))


class Experiments:
    """The experiments of a call, by name.

    Parameters
    ----------
    project : folder of the project.
    folder : the working directory.
    files : files of `--configfile`. The last file is the default experiment; without files,
        config.yaml is the default.
    changes : the changes of `--config` to the default experiment.

    Raises
    ------
    WorkflowError : the default experiment is not valid, or a file has the name of its results.
    """

    def __init__(self, project: Path, folder: Path, files: list[Path], changes: Mapping):
        self._project, self._folder = project, folder
        path = [project / "config.yaml", *files][-1]
        try:
            settings = read(path)
            if isinstance(settings, dict):
                update_config(settings, changes)
            self.default = Experiment(settings, path)
            check_name(self.default.name, path, folder)
            environment.require_folder(folder / "results" / self.default.name)
        except InputError as error:
            refuse(error)
        self._by_name = {self.default.name: self.default}

    def by_name(self, name: str) -> Experiment:
        """Return an experiment by its name, also an experiment that calibrates another one."""
        if name not in self._by_name:
            with show_errors():
                base = experiment_of(name)
                root = self._folder if name in files_by_name(self._folder) else self._project
                if base is None or name in files_by_name(root):
                    self._by_name[name] = load_by_name(name, root)
                else:
                    self._by_name[name] = CalibrationExperiment(self.by_name(base))
        return self._by_name[name]

    def experiment(self, wildcards: Wildcards) -> Experiment:
        return self.by_name(wildcards.experiment)

    def dataset(self, wildcards: Wildcards) -> dict:
        """Return a dataset's settings."""
        datasets = self.experiment(wildcards).datasets
        if wildcards.dataset not in datasets:
            raise WorkflowError(
                f"results/{wildcards.experiment}: no dataset {wildcards.dataset}; "
                f"there are {', '.join(datasets)}"
            )
        return datasets[wildcards.dataset]

    def run(self, wildcards: Wildcards) -> Run:
        """Return the run that a job's wildcards name. The experiment must contain the run."""
        instrument, _, repeat = getattr(wildcards, "instrument", "").partition(".")
        repeat = repeat or getattr(wildcards, "repeat", "")
        series, _, number = repeat.rpartition(".")
        names = ("dataset", "workload", "strategy", "layout", "variant", "network")
        with show_errors():
            return self.experiment(wildcards).largest.run(
                *(getattr(wildcards, name) for name in names),
                int(number.removeprefix("rep")) if repeat else None,
                instrument or None,
                series or None,
            )

    def split(self, wildcards: Wildcards) -> str:
        """Return the description of the split that a run trains on."""
        run, e = self.run(wildcards), self.experiment(wildcards)
        return f"{e.split_of_repeat(run.dataset, run.repeat)}/dataset.json"

    def kind_with(self, wildcards: Wildcards, part: str) -> str:
        """Return the name of a dataset's kind; refuse a kind without the module `part`."""
        kind = kind_of(self.dataset(wildcards))
        if not kind.has(part):
            raise WorkflowError(
                f"datasets.{wildcards.dataset}: the kind {kind.name} has no module {part}"
            )
        return kind.name

    def settings_result(self, wildcards: Wildcards, function: str, *arguments: object) -> Any:
        """Return a result of a function of a dataset's settings (`escala.data.settings`)."""
        settings = self.dataset(wildcards)
        try:
            return derive(function, settings, *arguments)
        except InputError as error:
            refuse(f"datasets.{wildcards.dataset}.{error}")
