# Inputs of the rules for reports, from escala/report/products.py and escala/workflow/reports.py.

from escala.report.figures import DECLARED, ONE_RUN
from escala.report import products
from escala.report.products import RUN_FIGURE, RUN_FIGURE_NAME, TABLES
from escala.workflow import reports
from escala.workflow.reports import history_files

REPORTS = reports.Reports(STUDY)
report_settings, table_files = products.settings, products.tables
scaling_of, study_files = reports.scaling, reports.study_files
tested_split, rows_options = REPORTS.tested_split, REPORTS.rows_options
predictions_if_any, job_if_any = map(reports.if_any, ("predictions.json", "job.sh"))
pilot_if_any = REPORTS.pilot


def figures_of_runs(e):
    """Return the figures of the first run of each dataset and workload that is there, as SVG."""
    return products.figures_of_runs(e, [run for run in e.runs if there([run.file])])


def report_files(e):
    """Return the files of an experiment's report: the page, and figures of runs."""
    return products.files(e) + figures_of_runs(e)
