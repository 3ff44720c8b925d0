"""Functions for the rules that report the runs of an experiment. A function has the rule's name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import read_json, write_text
from escala.core.readable import UNAVAILABLE, size, with_noun
from escala.measure import table
from escala.record.disturbance import earlier, is_disturbed
from escala.record.schema import read_result
from escala.report.figures import DECLARED, RunFiles
from escala.strategies.base import TRACE

#: What `escala submit` writes alongside the document of a study.
JOB_SCRIPT = "job.sh"


def page(
    output: dict[str, Path],
    settings: SimpleNamespace,
    measurements: Path,
    datasets: Sequence[Path] = (),
    predictions: Sequence[Path] = (),
    history: Sequence[Path] = (),
    **others: list[Path],
) -> None:
    """Report the runs of an experiment: tables, figures, the summary and the page.

    Parameters
    ----------
    settings : the result of `escala.report.products.settings`, and `run_figures`, the figures of
        runs.
    measurements : the table of a session.
    others : further inputs of the rule, whose paths follow from `datasets` and `settings`.
    """
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
        rungs=settings.rungs,
        references=settings.references,
        scaling=settings.scaling,
        probe_settings=settings.probe_settings,
        predictions_file=next(iter(predictions), None),
        looks_file=settings.looks and Path(settings.looks),
        level=settings.level,
        history_files=history,
    )
    tables.write(frames, folder / "tables")
    frames = tables.read(folder / "tables")
    figures = {}
    for name in settings.figures:
        start, file = perf_counter(), folder / "figures" / f"{name}.svg"
        with common.style():
            common.save(figure(name).draw(frames), file)
        figures[name] = file.read_text(encoding="utf-8")
        print(f"figure {name}: {perf_counter() - start:.1f} s", flush=True)
    traces = [Path(run).with_name(TRACE) for run in settings.traced]
    links = [*map(Path, settings.run_figures), *filter(Path.exists, traces)]
    links = [path.relative_to(folder).as_posix() for path in links]
    files = [f"figures/{name}.svg" for name in figures] + [f"tables/{name}.csv" for name in frames]
    about = frames, settings.experiment, settings.title
    write_text(output["summary"], summary(*about, files, settings.question))
    write_text(output["page"], page(*about, figures, files + links, settings.question))


def figure_of_run(
    output: dict[str, Path], settings: SimpleNamespace, dataset: Path | None = None
) -> None:
    """Draw a figure of one run as SVG. Figures of test rows need the `dataset` of the split."""
    from escala.report.figures import common, figure

    file = Path(settings.run).with_name(DECLARED[settings.figure].file)
    pictures = Path(settings.pictures) if settings.pictures else None
    files = RunFiles(file if file.exists() else None, dataset and dataset.parent, pictures)
    with common.style():
        drawn = figure(settings.figure).draw(read_json(Path(settings.run)), files)
        common.save(drawn, output["figure"])


def study_document(
    output: dict[str, Path],
    settings: SimpleNamespace,
    tables: list[Path],
    figures: Path,
    measurements: Path,
    datasets: Sequence[Path],
    attached: Sequence[Path] = (),
) -> None:
    """Write the document of a scaling study, also as PDF if Chromium is installed.

    Parameters
    ----------
    datasets : the descriptions of all splits.
    attached : the files that `scaling.proposal` names, and the script that `escala submit` wrote.
    """
    from escala.analysis.measurements import read_run
    from escala.report import study
    from escala.report.tables import read

    proposal = settings.scaling["proposal"]
    own = output["page"].with_name(JOB_SCRIPT)
    files = {
        "Job script of production": proposal.get("job_script"),
        "Job script of these runs": own if "job_script" not in proposal else None,
        "Threads of a run, by OMP_DISPLAY_AFFINITY": proposal.get("affinity"),
    }
    texts = {heading: attached_text(Path(file)) for heading, file in files.items() if file}
    document = study.study(
        read(tables[0].parent),
        settings.title,
        settings.scaling,
        [read_run(path) for path in table.timing_runs(table.read(measurements))],
        {heading: text for heading, text in texts.items() if text},
        {path.parents[1].name: data_files(path.parent) for path in datasets},
    )
    links = ["tables/scaling.csv", output["markdown"].name, output["latex"].name]
    figure = (figures / "scaling.svg").read_text(encoding="utf-8")
    study.write(document, output["page"], figure, links)


def attached_text(file: Path) -> str | None:
    """Return the text of an attached file, None if there is none.

    The script of `escala submit` has `.` as its folder: readers of the document submit it in the
    folder of their project.
    """
    if not file.exists():
        return None
    text = file.read_text(encoding="utf-8", errors="replace")
    if file.name != JOB_SCRIPT:
        return text
    return re.sub(r"(?m)(--chdir=|^cd )[^\n\"]+", r"\1.", text)


def data_files(split: Path) -> str:
    """Return in words how many files training reads of a split, and how large they are."""
    from escala.data import base, files

    try:
        if (split / files.STATES).exists():
            named = [path for path, _ in read_json(split / files.STATES).values()]
            sizes = [
                file.status.st_size for path in named for file in files.files(Path(path), path)
            ]
        else:
            description = base.description(split)
            sizes = [(split / name).stat().st_size for name in base.files(description)]
    except (OSError, InputError):
        return UNAVAILABLE
    if not sizes:
        return "no files that Escala knows"
    return f"{with_noun(len(sizes), 'file')}, {size(sum(sizes))}; the largest {size(max(sizes))}"


def check_runs(output: dict[str, Path], settings: SimpleNamespace, **files: Path) -> None:
    """List the runs of a session's table that did not end ok, and fail if there are any.

    Parameters
    ----------
    settings : `page`, whether the call makes the page. A call that only reports measured runs also
        sets `table`, and `all`, the number of planned runs.
    files : `table`, unless the settings have it.
    """
    file = files.get("table") or Path(settings.table)
    paths = [Path(row["file"]) for row in table.read(file)]
    if not list_failures(paths, settings.page, getattr(settings, "all", None)):
        raise SystemExit(1)


def list_failures(paths: Sequence[Path], page: bool, planned: int | None = None) -> bool:
    """Print the runs that did not end ok, and what to do; return whether all did.

    Parameters
    ----------
    paths : the files `run.json`.
    page : whether the call made the page of these runs.
    planned : the number of planned runs, if the call only reports measured runs.
    """
    if planned and planned > len(paths):
        print(f"{len(paths)} of {planned} runs are measured; the other runs are left out.")
    runs = {path: read_result(path) for path in paths}
    failed = {path: run for path, run in runs.items() if run["status"] != "ok"}
    folders = sorted({f"results/{run['experiment']}" for run in runs.values()})
    if failed:
        for path, run in failed.items():
            print(f"{path}: {run['status']}: {run['reason']}")
        retry = "; ".join(call(f"retry {folder}") for folder in folders)
        print(
            f"{len(failed)} of {len(runs)} runs did not end ok. To repeat only the failed runs, "
            f"and the runs of the same repeats that they are compared with: {retry}; then the same "
            "command again."
        )
        _say_results(paths, folders, page)
        return False
    print(f"All {len(runs)} runs ended ok." if len(runs) > 1 else "The only run ended ok.")
    timed = [run for run in runs.values() if run["instrument"] is None]
    repeated = sum(bool(earlier(run)) for run in timed)
    disturbed = sum(bool(is_disturbed(run)) for run in timed)
    if repeated or disturbed:
        print(
            "Measured again because other work disturbed their repeat: "
            f"{with_noun(repeated, 'run')}; still disturbed: {disturbed}."
        )
    _say_results(paths, folders, page)
    return True


def _say_results(paths: Sequence[Path], folders: list[str], page: bool) -> None:
    """Print where the runs are. If the call made the page, print the answer and the report."""
    for document in (Path(folder, "study.html") for folder in folders):
        if document.exists():
            print(f"Scaling study to hand in: {document}, and study.pdf, .md and .tex next to it.")
    if not page:
        where = paths[0] if len(paths) == 1 else ", ".join(f"{folder}/runs" for folder in folders)
        print(f"Results: {where}. A call without a target makes the page of all runs.")
        return
    from escala.report.summary import read_sentences

    for folder in folders:
        if (summary := Path(folder, "summary.md")).exists():
            print(*read_sentences(summary), sep="\n")
        if Path(folder, "index.html").exists():
            print(
                f"Answer: {folder}/index.html, to open in a browser, and as text "
                f"{folder}/summary.md; tables/ and figures/ are alongside them."
            )
        if summary.exists():
            print(
                f"Report, every figure and table in one file: {call('report')}, and -e FILE as in "
                "this call. With --report-after-run it is written next."
            )
