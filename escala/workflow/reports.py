"""Files of a report, and inputs of the rules that make them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError

from escala.analysis import history
from escala.data import kind_of
from escala.experiment import Experiment, Run
from escala.probes import PROBES
from escala.report.figures import DECLARED, FIGURES, ONE_RUN, SOME_FIGURES
from escala.strategies.base import TRACE
from escala.workflow.study import Study, Wildcards, refuse

_SCHEMAS = Path(__file__).resolve().parents[2] / "schemas" / "tables"
TABLES = sorted(path.name.split(".")[0] for path in _SCHEMAS.iterdir())
_STUDY_FILES = ("study.html", "study.md", "study.tex")
RUN_FIGURE_NAME = (
    "{dataset}.{workload}.{strategy}.{layout}.{variant}.{network}.{measurement}.{run_figure}"
)
RUN_FIGURE = f"results/{{experiment}}/run_figures/{RUN_FIGURE_NAME}"


def figure_names(e: Experiment) -> list[str]:
    """Return the names of the figures that are drawn from an experiment's tables."""
    scored = [e.settings.knows[workload] for _, workload in e.tasks]
    has = {
        "classes": any(each.is_scored and each.scores is None for each in scored),
        "comparisons": any(e.references_of(run) for run in e.runs),
        "several nodes": max(_nodes(e.runs), default=1) > 1,
        "resources by nodes": len(_nodes(e.probed("resources"))) > 1,
        "ladders": bool(e.rungs),
        "scaling": "scaling" in e.settings,
        **{probe: bool(e.probed(probe)) for probe in PROBES},
    }
    return [*FIGURES, *(name for name in SOME_FIGURES if has[DECLARED[name].needs])]


def scaling(e: Experiment) -> dict[str, Any]:
    """Return the key `scaling` of an experiment; refuse one without it."""
    if "scaling" not in e.settings:
        refuse(
            f"{e.origin}: scaling: this experiment has no scaling study. Remedy: write the key "
            "`scaling` (docs/how-to/study.md), or use one of experiments/scaling/"
        )
    return e.settings["scaling"]


def study_files(e: Experiment) -> list[str]:
    """Return the files of the document of a scaling study; refuse an experiment without one."""
    scaling(e)
    return [f"results/{e.name}/{name}" for name in _STUDY_FILES]


def if_any(name: str) -> Callable[[Wildcards], list[str]]:
    """Return what gives a file of an experiment's results as an input, if it is there."""

    def found(wildcards: Wildcards) -> list[str]:
        file = f"results/{wildcards.experiment}/{name}"
        return [file] if Path(file).exists() else []

    return found


def _nodes(runs: Iterable[Run]) -> set[int]:
    return {run.layout.nodes for run in runs}


def figures_of_runs(e: Experiment, runs: Sequence[Run]) -> list[str]:
    """Return the figures of the first of some runs of each dataset and workload, as SVG."""
    first = {(run.dataset, run.workload): run for run in reversed(runs)}.values()
    return [
        f"{RUN_FIGURE}.svg".format(**run.names, measurement=Path(run.folder).name, run_figure=name)
        for name in ONE_RUN
        for run in first
        if DECLARED[name].kind in (None, e.datasets[run.dataset]["kind"])
    ]


def tables(e: Experiment) -> list[str]:
    return [f"results/{e.name}/tables/{table}.csv" for table in TABLES]


def files(e: Experiment) -> list[str]:
    """Return the files of an experiment's report that show all its runs."""
    names = ["index.html", "summary.md", "figures", *_STUDY_FILES * ("scaling" in e.settings)]
    return [*(f"results/{e.name}/{name}" for name in names), *tables(e)]


def settings(e: Experiment) -> dict[str, Any]:
    """Return what a report needs to know of its experiment besides its title and question.

    `traced` are the run.json files of the probe runs that may leave a trace for Perfetto.
    """
    traced = (name for name, probe in PROBES.items() if TRACE in probe.products)
    return {
        "experiment": e.name,
        "figures": figure_names(e),
        "traced": [run.file for name in traced for run in e.probed(name)],
        "rungs": [vars(rung) for rung in e.rungs],
        "references": e.references,
        "scaling": e.settings.get("scaling"),
        "probe_settings": {name: e.settings[name] for name in PROBES},
    }


def history_files() -> list[str]:
    """Return the files of the history: it may hold further sessions of an experiment's runs."""
    return sorted(map(os.path.relpath, history.location().glob("*.parquet")))


class Reports:
    """Inputs and parameters of the rules for reports, by their wildcards."""

    def __init__(self, study: Study):
        self._study = study

    def pilot(self, wildcards: Wildcards) -> list[str]:
        """Return the number of repeats of an experiment with its pilot, if it has one."""
        has = "pilot" in self._study.experiment(wildcards).settings
        return [f"results/{wildcards.experiment}/pilot.json"] if has else []

    def tested_split(self, wildcards: Wildcards) -> str | list[str]:
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
        seed = e.split_seed(wildcards.dataset, repeat)
        return f"{e.split_folder(wildcards.dataset, seed)}/dataset.json"

    def rows_options(self, wildcards: Wildcards, input: Any) -> list[str]:
        """Return the options that name a run's split and photographs, for figures of its rows."""
        if not input.dataset:
            return []
        options = ["--split", str(Path(input.dataset).parent)]
        if not kind_of(self._study.dataset(wildcards)).has("examples"):
            return options
        folder = self._study.settings_result(wildcards, "pictures", module="examples")
        return [*options, "--pictures", str(folder)] if folder else options
