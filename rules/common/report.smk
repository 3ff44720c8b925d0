# Files of a report.

from escala.report.figures import DECLARED, FIGURES, SOME_FIGURES
from escala.runtime.layout import Layout

TIMELINE_NAME = "{dataset}.{workload}.{strategy}.{layout}.{variant}.{network}.{part}"
TIMELINE = f"results/{{experiment}}/figures/timelines/{TIMELINE_NAME}"
TABLES = sorted(path.name.split(".")[0] for path in (ROOT / "schemas" / "tables").iterdir())


def drawn_files(e):
    """Return the figures of an experiment, as SVG."""
    has = {
        "classes": e.has_classes,
        "several nodes": any(Layout.parse(run.layout).nodes > 1 for run in e.runs),
        "ladders": bool(e.pairs),
        **{probe: bool(e.probed(probe)) for probe in PROBES},
    }
    names = [*FIGURES, *(name for name in SOME_FIGURES if has[DECLARED[name].needs])]
    return [f"results/{e.name}/figures/{figure}.svg" for figure in names] + [
        f"{TIMELINE}.svg".format(**vars(run) | {"part": part})
        for run in e.probed("timeline")
        for part in ("run", "allreduce")
    ]


def caption(figure):
    """Return the text below a figure in the report."""
    return (ROOT / "report" / "figures" / f"{figure}.rst").read_text()


def table_files(e):
    return [f"results/{e.name}/tables/{table}.csv" for table in TABLES]


def report_files(e):
    """Return the files of an experiment's report: summary, tables and figures."""
    return [f"results/{e.name}/summary.md", *table_files(e), *drawn_files(e)]
