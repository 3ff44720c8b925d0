# Inputs of the rules for reports. What these names do is in escala/workflow/reports.py.

from escala.report.figures import DECLARED, FIGURES, ONE_RUN, SOME_FIGURES
from escala.workflow import reports
from escala.workflow.reports import RUN_FIGURE, RUN_FIGURE_NAME, TABLES, history_files

REPORTS = reports.Reports(STUDY)
experiment_figures, figures_of_runs = reports.figures, reports.figures_of_runs
report_files, table_files, traced_files = reports.files, reports.tables, reports.traced_files
tested_split, rows_options = REPORTS.tested_split, REPORTS.rows_options
predictions_if_any, pilot_if_any = REPORTS.predictions, REPORTS.pilot


def drawn_files(e):
    """Return all figures of an experiment's report, as SVG."""
    return experiment_figures(e) + figures_of_runs(e)
