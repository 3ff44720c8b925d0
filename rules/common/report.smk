# Inputs of the rules for reports, from escala/report/products.py and escala/workflow/experiments.py.

from escala.report.figures import DECLARED, ONE_RUN
from escala.report import products
from escala.report.products import RUN_FIGURE, RUN_FIGURE_NAME, TABLES
from escala.workflow import experiments
from escala.workflow.experiments import history_files

REPORTS = experiments.Reports(EXPERIMENTS)
table_files = products.tables
scaling_of, study_files = experiments.study_settings, experiments.study_files
study_attachments = experiments.study_attachments
test_split = REPORTS.test_split
predictions_if_any = experiments.if_any("predictions.json")


def figures_of_runs(e):
    """Return the figures of the first measured run of each dataset and workload, as SVG."""
    is_partial = LIFECYCLE.reports_only()
    runs = [run for run in e.runs if not is_partial or Path(run.file).exists()]
    return products.figures_of_runs(e, runs)


def page_settings(wildcards):
    e = experiment(wildcards)
    return products.settings(e) | {"run_figures": figures_of_runs(e)}


def report_files(e):
    """Return the files of an experiment's report: the page, and figures of runs."""
    return products.files(e) + figures_of_runs(e)
