# Files of a report.

import os

from escala.report.figures import DECLARED, FIGURES, ONE_RUN, REPEAT, SOME_FIGURES
from escala.record import history
from escala.runtime.layout import Layout
from escala.strategies.base import TRACE

OF_RUN_NAME = "{dataset}.{workload}.{strategy}.{layout}.{variant}.{network}.{measurement}.{of_run}"
OF_RUN = f"results/{{experiment}}/figures/runs/{OF_RUN_NAME}"
CAPTIONS = ROOT / "report" / "figures"
TABLES = sorted(path.name.split(".")[0] for path in (ROOT / "schemas" / "tables").iterdir())


def drawn_files(e):
    """Return all figures of an experiment's report, as SVG."""
    return experiment_figures(e) + figures_of_runs(e)


def experiment_names(e):
    """Return the names of the figures that are drawn from an experiment's tables."""
    has = {
        "classes": e.has_classes,
        "comparisons": any(e.references_of(run) for run in e.runs),
        "several nodes": max(nodes_of(e.runs), default=1) > 1,
        "resources by nodes": len(nodes_of(e.probed("resources"))) > 1,
        "ladders": bool(e.pairs),
        **{probe: bool(e.probed(probe)) for probe in PROBES},
    }
    return [*FIGURES, *(name for name in SOME_FIGURES if has[DECLARED[name].needs])]


def nodes_of(runs):
    """Return the numbers of nodes of runs."""
    return {Layout.parse(run.layout).nodes for run in runs}


def experiment_figures(e):
    """Return the figures that are drawn from an experiment's tables, as SVG."""
    return [f"results/{e.name}/figures/{figure}.svg" for figure in experiment_names(e)]


def figures_of_runs(e):
    """Return the figures of single runs of an experiment, as SVG."""
    return [
        f"{OF_RUN}.svg".format(**vars(run), measurement=Path(run.folder).name, of_run=name)
        for name in ONE_RUN
        for run in drawn_runs(e, DECLARED[name])
    ]


def drawn_runs(e, figure):
    """Return the runs that the report shows in a figure of one run."""
    if figure.measurement != REPEAT:
        runs = e.probed(figure.measurement)
    else:
        runs = {(run.dataset, run.workload): run for run in reversed(e.runs)}.values()
    return [run for run in runs if figure.kind in (None, e.datasets[run.dataset]["kind"])]


def shown_run(wildcards):
    """Return the run that a figure shows; refuse one that does not leave what it shows."""
    measurement, wanted = wildcards.measurement, DECLARED[wildcards.of_run].measurement
    if wanted != (measurement if measurement in PROBES else REPEAT):
        drawn_from = "a timing run" if wanted == REPEAT else f"a run of the probe {wanted}"
        raise WorkflowError(
            f"{wildcards.of_run} is drawn from {drawn_from}, and not from {measurement}"
        )
    return f"{CONFIGURATION}/{measurement}/run.json".format(**wildcards)


def tested_split(wildcards):
    """Return the description of the split that a run was tested on, if a figure shows its rows."""
    e, kind = experiment(wildcards), DECLARED[wildcards.of_run].kind
    if kind is None:
        return []
    if dataset(wildcards)["kind"] != kind:
        raise WorkflowError(
            f"datasets.{wildcards.dataset}: {wildcards.of_run} shows rows of the kind {kind}"
        )
    number = wildcards.measurement.rpartition("rep")[2]
    seed = e.split_seed(wildcards.dataset, int(number) if number.isdigit() else None)
    return f"{e.split_folder(wildcards.dataset, seed)}/dataset.json"


def rows_options(wildcards, input):
    """Return the options that name a run's split and its photographs, for figures of its rows."""
    if not input.dataset:
        return []
    options = ["--split", str(Path(input.dataset).parent)]
    if not kind_of(dataset(wildcards)).has("examples"):
        return options
    folder = of_settings(wildcards, "pictures", module="examples")
    return [*options, "--pictures", str(folder)] if folder else options


def caption(figure):
    """Return the text below a figure in the report."""
    return (CAPTIONS / f"{figure}.rst").read_text()


def captions_of(e):
    """Return the files of the captions of the figures of an experiment."""
    return [str(CAPTIONS / f"{figure}.rst") for figure in experiment_names(e)]


def traced_files(e):
    """Return the run.json files of the probe runs that may leave a trace for Perfetto."""
    traced = (name for name, probe in PROBES.items() if TRACE in probe.products)
    return [run.file for name in traced for run in e.probed(name)]


def predictions_if_any(wildcards):
    """Return the predictions of an experiment, if they were ever requested."""
    file = f"results/{experiment(wildcards).name}/predictions.json"
    return [file] if Path(file).exists() else []


def pilot_if_any(wildcards):
    """Return the number of pairs of an experiment with its pilot, if it has one."""
    e = experiment(wildcards)
    return [f"results/{e.name}/pairs.json"] if "pairs" in e.settings else []


def history_files():
    """Return the files of the history: it may hold further sessions of an experiment's runs."""
    return sorted(map(os.path.relpath, history.location().glob("*.parquet")))


def options(name, files):
    """Return an option with its file, if there is one."""
    return [name, *files] if files else []


def table_files(e):
    return [f"results/{e.name}/tables/{table}.csv" for table in TABLES]


def report_files(e):
    """Return the files of an experiment's report: page, summary, tables and figures."""
    names = ("index.html", "summary.md", "multiqc/answer_mqc.json")
    written = [f"results/{e.name}/{name}" for name in names]
    return [*written, *table_files(e), *drawn_files(e)]
