"""Collect the runs of an experiment in tables, as CSV files checked against their schemas."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from escala import cli
from escala.cache import code
from escala.measure import table
from escala.probes import PROBES

#: Files alongside the dataset.json of a split; they depend on the kind of data.
SPLIT_FILES = ("leakage.json", "test_labels.npy", "test_genomes.npy", "test_similarity.npy")


def main() -> None:
    given = cli.options(
        __doc__,
        measurements=Path,  # The table of them.
        rungs=cli.json_or_file,  # Of the ladders.
        references=cli.json_or_file,  # Of configurations, the main one first.
        scaling=cli.json_or_file,  # The key of this name, null without a scaling study.
        probe_settings=cli.json_or_file,  # By the names of the probes.
        datasets=[Path],
        classes=[Path],
        predictions=[Path],  # If there are any, and so the pilot.
        pilot=[Path],
        history=[Path],
        output=[Path],
    )
    rows = table.read(given.measurements)
    runs, series, probed = table.timed(rows), table.in_series(rows), table.tabulated(rows)

    def make() -> None:
        from escala.report import tables

        frames = tables.tables(
            run_files=runs,
            dataset_files=given.datasets,
            class_files=given.classes,
            probe_files=probed,
            series_files=series,
            rungs=given.rungs,
            references=given.references,
            scaling=given.scaling,
            probe_settings=given.probe_settings,
            predictions_file=next(iter(given.predictions), None),
            pilot_file=next(iter(given.pilot), None),
            history_files=given.history,
        )
        tables.write(frames, given.output[0].parent)

    cli.serve_or_make(
        "tables",
        code=code.project(),
        inputs={str(path): path for path in [*_read(given), *_read_runs([*runs, *series], probed)]},
        parameters={
            "runs": list(map(str, runs)),
            "rungs": given.rungs,
            "references": given.references,
            "scaling": given.scaling,
            "probe_settings": given.probe_settings,
        },
        outputs={path.name: path for path in given.output},
        make=make,
    )


def _read(given: Namespace) -> Iterator[Path]:
    """Yield the files that the tables are made of besides runs, with those alongside them."""
    yield from (*given.classes, *given.predictions, *given.pilot, *given.history)
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
