"""Report the runs of an experiment, each function by the rule of its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

from escala.core.files import read_json, write_text
from escala.measure import table
from escala.report import check_runs as checking
from escala.report.figures import DECLARED, OfRun
from escala.strategies.base import TRACE

#: What `escala submit` writes alongside the document of a study.
JOB_SCRIPT = "job.sh"


def page(
    output: dict[str, Path],
    given: SimpleNamespace,
    measurements: Path,
    datasets: Sequence[Path] = (),
    predictions: Sequence[Path] = (),
    history: Sequence[Path] = (),
    **linked: list[Path],
) -> None:
    """Report the runs of an experiment: tables, figures, the summary and the page."""
    from escala.report import tables
    from escala.report.figures import common, figure
    from escala.report.page import page
    from escala.report.summary import summary

    folder, rows = output["page"].parent, table.read(measurements)
    frames = tables.tables(
        run_files=table.timing_runs(rows),
        dataset_files=datasets,
        probe_files=table.probe_runs(rows),
        series_files=table.series_runs(rows),
        rungs=given.rungs,
        references=given.references,
        scaling=given.scaling,
        probe_settings=given.probe_settings,
        predictions_file=next(iter(predictions), None),
        pilot_file=given.pilot and Path(given.pilot),
        history_files=history,
    )
    tables.write(frames, folder / "tables")
    frames = tables.read(folder / "tables")
    drawn = {}
    for name in given.figures:
        began, file = perf_counter(), folder / "figures" / f"{name}.svg"
        with common.style():
            common.save(figure(name).draw(frames), file)
        drawn[name] = file.read_text(encoding="utf-8")
        print(f"figure {name}: {perf_counter() - began:.1f} s", flush=True)
    traces = [Path(run).with_name(TRACE) for run in given.traced]
    links = [*map(Path, given.run_figures), *filter(Path.exists, traces)]
    links = [path.relative_to(folder).as_posix() for path in links]
    files = [f"figures/{name}.svg" for name in drawn] + [f"tables/{name}.csv" for name in frames]
    about = frames, given.experiment, given.title
    write_text(output["summary"], summary(*about, files, given.question))
    write_text(output["page"], page(*about, drawn, files + links, given.question))


def figure_of_run(
    output: dict[str, Path], given: SimpleNamespace, dataset: Path | None = None
) -> None:
    """Draw one figure of one run as SVG, of the test rows of its split if it shows rows."""
    from escala.report.figures import common, figure

    file = Path(given.run).with_name(DECLARED[given.figure].file)
    pictures = Path(given.pictures) if given.pictures else None
    shown = OfRun(file if file.exists() else None, dataset and dataset.parent, pictures)
    with common.style():
        drawn = figure(given.figure).draw(read_json(Path(given.run)), shown)
        common.save(drawn, output["figure"])


def study_document(
    output: dict[str, Path],
    given: SimpleNamespace,
    tables: list[Path],
    figures: Path,
    measurements: Path,
    job: Sequence[Path] = (),
) -> None:
    """Write the document of a scaling study, also as PDF where Chromium is."""
    from escala.analysis.measurements import read_run
    from escala.report import study
    from escala.report.tables import read

    document = study.study(
        read(tables[0].parent),
        given.title,
        given.scaling,
        [read_run(path) for path in table.timing_runs(table.read(measurements))],
        job_script(output["page"].with_name(JOB_SCRIPT)),
    )
    links = ["tables/scaling.csv", output["markdown"].name, output["latex"].name]
    figure = (figures / "scaling.svg").read_text(encoding="utf-8")
    study.write(document, output["page"], figure, links)


def job_script(file: Path) -> str | None:
    """Return the text of a job script, to be submitted in the folder of the project; None without.

    The document goes to others, so this folder is `.` in it.
    """
    if not file.exists():
        return None
    return re.sub(r"(--chdir=)[^\n\"]+", r"\1.", file.read_text(encoding="utf-8"))


def check_runs(output: dict[str, Path], given: SimpleNamespace, **files: Path) -> None:
    """List the runs of a table that did not end ok, and fail if there are any.

    `page` of the settings is whether the call makes the page; `table` and `all` are those of a
    report of the runs that are there, of so many.
    """
    file = files.get("table") or Path(given.table)
    paths = [Path(row["file"]) for row in table.read(file)]
    if not checking.check_runs(paths, given.page, getattr(given, "all", None)):
        raise SystemExit(1)
