"""List the files of an experiment's report, and the settings to make them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from escala.analysis.looks import level_of
from escala.experiment import Experiment, Run
from escala.measure.plan import looks_file
from escala.probes import PROBES
from escala.report.figures import ALWAYS_DRAWN, DECLARED, ONE_RUN, SOME_FIGURES
from escala.strategies.base import TRACE

_SCHEMAS = Path(__file__).resolve().parents[2] / "schemas" / "tables"
TABLES = sorted(path.name.split(".")[0] for path in _SCHEMAS.iterdir())
STUDY_FILES = ("study.html", "study.md", "study.tex")
RUN_FIGURE_NAME = (
    "{dataset}.{workload}.{strategy}.{layout}.{variant}.{network}.{measurement}.{run_figure}"
)
RUN_FIGURE = f"results/{{experiment}}/run_figures/{RUN_FIGURE_NAME}"


def figure_names(e: Experiment) -> list[str]:
    """Return the names of the figures that are drawn from an experiment's tables."""
    workloads = [e.settings.knows[workload] for _, workload in e.tasks]
    # Whether the experiment has what figures need, by the `needs` of figures.
    has = {
        "classes": any(not work.is_program and work.scores is None for work in workloads),
        "comparisons": any(e.references_of(run) for run in e.runs),
        "ladders": bool(e.rungs),
        "sizes": "scaling" in e.settings or any(run.layout.nodes > 1 for run in e.runs),
        **{probe: bool(e.probe_runs(probe)) for probe in PROBES},
        "parts": bool(e.probe_runs("clocks") or e.probe_runs("torch-trace")),
    }
    return [*ALWAYS_DRAWN, *(name for name in SOME_FIGURES if has[DECLARED[name].needs])]


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
    """Return the tables of an experiment's results, as CSV."""
    return [f"results/{e.name}/tables/{table}.csv" for table in TABLES]


def files(e: Experiment) -> list[str]:
    """Return the files of an experiment's report, without figures of single runs."""
    names = ["index.html", "summary.md", "figures", *STUDY_FILES * ("scaling" in e.settings)]
    return [*(f"results/{e.name}/{name}" for name in names), *tables(e)]


def settings(e: Experiment) -> dict[str, Any]:
    """Return the settings of the rule `page`.

    `traced` are the run.json files of the probe runs that may leave a trace for Perfetto.
    """
    traced = (name for name, probe in PROBES.items() if TRACE in probe.products)
    return {
        "experiment": e.name,
        "title": e.title,
        "question": e.settings["question"],
        "looks": str(looks_file(e.name)) if e.sequential else None,
        "level": level_of(e.sequential),
        "figures": figure_names(e),
        "traced": [run.file for name in traced for run in e.probe_runs(name)],
        "rungs": [vars(rung) for rung in e.rungs],
        "references": e.references,
        "scaling": e.settings.get("scaling"),
        "probe_settings": {name: e.settings[name] for name in PROBES},
    }
