# Inputs of the rules for reports.

from escala.report.figures import DECLARED, FIGURES, ONE_RUN, SOME_FIGURES
from escala.workflow import reports
from escala.workflow.reports import OF_RUN, OF_RUN_NAME, TABLES

CAPTIONS = ROOT / "report" / "figures"
experiment_figures, figures_of_runs = reports.figures, reports.figures_of_runs
report_files, table_files, traced_files = reports.files, reports.tables, reports.traced_files
history_files = reports.history_files


def drawn_files(e):
    """Return all figures of an experiment's report, as SVG."""
    return experiment_figures(e) + figures_of_runs(e)


def shown_run(wildcards):
    return reports.shown_run(wildcards, CONFIGURATION)


def tested_split(wildcards):
    return reports.tested_split(STUDY, wildcards)


def rows_options(wildcards, input):
    return reports.rows_options(STUDY, wildcards, input.dataset)


def predictions_if_any(wildcards):
    return reports.predictions_if_any(experiment(wildcards))


def pilot_if_any(wildcards):
    """Return the number of pairs of an experiment with its pilot, if it has one."""
    e = experiment(wildcards)
    return [f"results/{e.name}/pairs.json"] if "pairs" in e.settings else []


def caption(figure):
    """Return the text below a figure in the report."""
    return (CAPTIONS / f"{figure}.rst").read_text()


def captions_of(e):
    """Return the files of the captions of the figures of an experiment."""
    return [str(CAPTIONS / f"{figure}.rst") for figure in reports.figure_names(e)]


def options(name, files):
    """Return an option with its file, if there is one."""
    return [name, *files] if files else []
