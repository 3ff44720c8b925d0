# Files of a report.

from escala.report.figures import DECLARED, EXAMPLE_FIGURES, FIGURES, SOME_FIGURES
from escala.runtime.layout import Layout

TIMELINE_NAME = "{dataset}.{workload}.{strategy}.{layout}.{variant}.{network}.{part}"
TIMELINE = f"results/{{experiment}}/figures/timelines/{TIMELINE_NAME}"
EXAMPLE_NAME = "{dataset}.{workload}.{strategy}.{layout}.{variant}.{network}.{repeat}.{example}"
EXAMPLE = f"results/{{experiment}}/figures/examples/{EXAMPLE_NAME}"
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
    return (
        [f"results/{e.name}/figures/{figure}.svg" for figure in names]
        + [
            f"{TIMELINE}.svg".format(**vars(run) | {"part": part})
            for run in e.probed("timeline")
            for part in ("run", "allreduce")
        ]
        + example_files(e)
    )


def example_files(e):
    """Return the figures of test rows: of the first run of each dataset and workload."""
    first = {}
    for run in e.runs:
        first.setdefault((run.dataset, run.workload), run)
    return [
        f"{EXAMPLE}.svg".format(**vars(run) | {"repeat": f"rep{run.repeat}", "example": name})
        for run in first.values()
        for name in EXAMPLE_FIGURES
        if DECLARED[name].kind == e.datasets[run.dataset]["kind"]
    ]


def tested_split(wildcards):
    """Return the description of the split that a run was tested on."""
    run, e = run_of(wildcards), experiment(wildcards)
    if dataset(wildcards)["kind"] != DECLARED[wildcards.example].kind:
        raise WorkflowError(
            f"datasets.{run.dataset}: {wildcards.example} shows rows of the kind "
            f"{DECLARED[wildcards.example].kind}"
        )
    return f"{e.split_folder(run.dataset, e.split_seed(run.dataset, run.repeat))}/dataset.json"


def pictures_option(wildcards):
    """Return the option that names the folder of a dataset's photographs, if it has any."""
    if not kind_of(dataset(wildcards)).has("examples"):
        return []
    folder = of_settings(wildcards, "pictures", module="examples")
    return ["--pictures", str(folder)] if folder else []


def caption(figure):
    """Return the text below a figure in the report."""
    return (ROOT / "report" / "figures" / f"{figure}.rst").read_text()


def table_files(e):
    return [f"results/{e.name}/tables/{table}.csv" for table in TABLES]


def report_files(e):
    """Return the files of an experiment's report: summary, tables and figures."""
    return [f"results/{e.name}/summary.md", *table_files(e), *drawn_files(e)]
