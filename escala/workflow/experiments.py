"""The experiments of a call of Snakemake, and the inputs of rules that wildcards name in them.

An experiment is one complete file. `results/NAME/…` belongs to NAME.yaml in experiments/ or in a
folder of it, or to config.yaml if its name is NAME. `--configfile FILE` selects another default
experiment. If the working directory is no project folder, its experiments/ comes first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from snakemake.exceptions import WorkflowError
from snakemake.utils import update_config

from escala.analysis import history
from escala.analysis.cost_model.calibrating import SUFFIX, CalibrationExperiment, experiment_of
from escala.core import environment
from escala.core.errors import InputError
from escala.data import kind_of
from escala.data.settings import derive
from escala.experiment import Experiment, Run, check_name, files_by_name, load_by_name, read
from escala.experiment.runs import NATIVE, ONE_PROCESS
from escala.measure.plan import table_of
from escala.report.figures import DECLARED
from escala.report.products import STUDY_FILES

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
        """Return the run of a job: `repeat` is `[SERIES.]repN`, or `instrument` `PROBE[.repN]`."""
        instrument, _, repeat = getattr(wildcards, "instrument", "").partition(".")
        repeat = repeat or getattr(wildcards, "repeat", "")
        series, _, number = repeat.rpartition(".")
        names = ("dataset", "workload", "strategy", "layout", "variant", "network")
        with show_errors():
            return self.experiment(wildcards).run(
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


class Calibrations:
    """Inputs and parameters of the rules that calibrate, by their wildcards.

    Parameters
    ----------
    has_links : returns whether there are several nodes with links between them.
    """

    def __init__(self, experiments: Experiments, has_links: Callable[[], bool]):
        self._experiments, self._has_links = experiments, has_links

    def experiment(self, wildcards: Wildcards) -> CalibrationExperiment:
        """Return the experiment whose runs calibrate the model for an experiment."""
        return self._experiments.by_name(f"{wildcards.experiment}{SUFFIX}")

    def files(self, wildcards: Wildcards) -> list[str]:
        """Return the files from which a calibration is computed."""
        e = self.experiment(wildcards)
        return [table_of(e.name), *map(e.gradients_file, e.different_works)]

    def sources(self, wildcards: Wildcards) -> dict:
        """Return, for each of `files`, the values that the calibration takes from it."""
        return self.experiment(wildcards).sources(self._has_links())

    def _run(self, wildcards: Wildcards) -> Run:
        """Return the first run of a model in one process."""
        with show_errors():
            names = (wildcards.dataset, wildcards.workload, wildcards.strategy, ONE_PROCESS[1])
            return self._experiments.experiment(wildcards).run(*names, wildcards.variant, NATIVE, 1)

    def model_settings(self, wildcards: Wildcards) -> dict:
        """Return the settings with which a model is built, taken from a run of one process."""
        return self._experiments.experiment(wildcards).settings_of(self._run(wildcards))

    def split(self, wildcards: Wildcards) -> str:
        """Return the description of a split. It gives the shape of the rows of a model."""
        e, run = self._experiments.experiment(wildcards), self._run(wildcards)
        return f"{e.split_of_repeat(run.dataset, run.repeat)}/dataset.json"


def times_of_tables(wildcards: Wildcards) -> list[str]:
    """Return the files of an experiment that the advice reads, each with its time of change.

    The files are parameters and no inputs, because the advice must not cause runs of the
    experiment.
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


def study_attachments(e: Experiment) -> list[str]:
    """Return the files to attach to the document of a study; refuse one that does not exist."""
    proposal = study_settings(e)["proposal"]
    files = {key: proposal[key] for key in ("job_script", "affinity") if key in proposal}
    for key, file in files.items():
        if not Path(file).is_file():
            refuse(f"{e.origin}: scaling.proposal.{key}: {file}: no such file. Remedy: correct it")
    job = f"results/{e.name}/job.sh"
    return [*files.values(), *[job] * Path(job).exists()]


def if_any(name: str) -> Callable[[Wildcards], list[str]]:
    """Return a function of wildcards. It returns a file of the results if the file exists."""

    def file(wildcards: Wildcards) -> list[str]:
        path = f"results/{wildcards.experiment}/{name}"
        return [path] if Path(path).exists() else []

    return file


def history_files() -> list[str]:
    """Return the files of the history. They may hold further sessions of an experiment."""
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
