"""Report the runs of an experiment: tables, figures, the summary and the page."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from escala import cli
from escala.cache import code
from escala.measure import table
from escala.probes import PROBES
from escala.strategies.base import TRACE

#: Files alongside the dataset.json of a split; they depend on the kind of data.
SPLIT_FILES = ("leakage.json", "test_labels.npy", "test_genomes.npy", "test_similarity.npy")


def main() -> None:
    given = cli.options(
        __doc__,
        title=str,
        question=str,
        settings=cli.json_or_file,  # `escala.report.products.settings` of the experiment.
        measurements=Path,  # The table of them.
        datasets=[Path],
        predictions=[Path],  # If there are any, and so the pilot.
        pilot=[Path],
        history=[Path],
        run_figures=[Path],  # Linked to.
        output=Path,  # The folder of the experiment's results.
    )
    rows = table.read(given.measurements)
    runs, series, probed = table.timing_runs(rows), table.series_runs(rows), table.probe_runs(rows)
    traces = [Path(run).with_name(TRACE) for run in given.settings["traced"]]
    links = [*given.run_figures, *filter(Path.exists, traces)]
    links = [path.relative_to(given.output).as_posix() for path in links]
    cli.serve_or_make(
        "report",
        code=code.project(),
        inputs={str(path): path for path in [*_read(given), *_read_runs([*runs, *series], probed)]},
        parameters=given.settings
        | {"title": given.title, "question": given.question}
        | {"runs": list(map(str, runs)), "links": links},
        outputs={
            name: given.output / name for name in ("tables", "figures", "summary.md", "index.html")
        },
        make=lambda: _make(given, runs, series, probed, links),
    )


def _make(
    given: Namespace, runs: list[Path], series: list[Path], probed: list[Path], links: list[str]
) -> None:
    from escala.core.files import atomic
    from escala.report import tables
    from escala.report.figures import common, figure
    from escala.report.page import page
    from escala.report.summary import summary

    settings, folder = given.settings, given.output
    frames = tables.tables(
        run_files=runs,
        dataset_files=given.datasets,
        probe_files=probed,
        series_files=series,
        rungs=settings["rungs"],
        references=settings["references"],
        scaling=settings["scaling"],
        probe_settings=settings["probe_settings"],
        predictions_file=next(iter(given.predictions), None),
        pilot_file=next(iter(given.pilot), None),
        history_files=given.history,
    )
    tables.write(frames, folder / "tables")
    frames = tables.read(folder / "tables")
    drawn = {}
    for name in settings["figures"]:
        began, file = perf_counter(), folder / "figures" / f"{name}.svg"
        with common.style():
            common.save(figure(name).draw(frames), file)
        drawn[name] = file.read_text(encoding="utf-8")
        print(f"figure {name}: {perf_counter() - began:.1f} s", flush=True)
    files = [f"figures/{name}.svg" for name in drawn] + [f"tables/{name}.csv" for name in frames]
    about = frames, settings["experiment"], given.title
    texts = {
        "summary.md": summary(*about, files, given.question),
        "index.html": page(*about, drawn, files + links, given.question),
    }
    for name, text in texts.items():
        with atomic(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _read(given: Namespace) -> Iterator[Path]:
    """Yield the files that the tables are made of besides runs, with those alongside them."""
    yield from (*given.predictions, *given.pilot, *given.history)
    for dataset in given.datasets:
        yield dataset
        yield from filter(Path.exists, map(dataset.with_name, SPLIT_FILES))


def _read_runs(timed: list[Path], probed: list[Path]) -> Iterator[Path]:
    """Yield the files of runs that the tables are made of."""
    for run in probed:
        yield run
        probe = PROBES[run.parent.name.partition(".")[0]]
        for pattern in (f"ranks/*.{probe.name}.*", *probe.products):
            yield from sorted(run.parent.glob(pattern))
    for run in timed:
        yield run
        yield from sorted(run.parent.glob("sessions/*.json"))
        yield from run.parent.glob("predictions.npy")


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
