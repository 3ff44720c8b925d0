"""Collect the runs of an experiment in tables, as CSV files checked against their schemas."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from escala import cli
from escala.experiment.references import DEFAULT_REFERENCES
from escala.probes import PROBES

#: Files alongside the dataset.json of a split; they depend on the kind of data.
OF_SPLIT = ("leakage.json", "test_labels.npy", "test_genomes.npy", "test_similarity.npy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    files = partial(parser.add_argument, nargs="*", default=[], type=Path)
    content = partial(parser.add_argument, type=cli.json_or_file, metavar="JSON")
    parser.add_argument("--runs", required=True, nargs="+", type=Path, metavar="run.json")
    files("--series", metavar="run.json", help="of duplicates of references, and of ladders")
    content("--rungs", default=[], help="the rungs of ladders whose runs are --series")
    content(
        "--references",
        default=DEFAULT_REFERENCES,
        help="the references of configurations, the main one first",
    )
    content("--probe-settings", default={}, help="the settings of the probes, by their names")
    parser.add_argument("--datasets", required=True, nargs="+", type=Path, metavar="dataset.json")
    files("--classes", metavar="classes.csv")
    files("--probed", metavar="run.json")
    parser.add_argument("--predictions", type=Path, metavar="predictions.json")
    parser.add_argument("--pilot", type=Path, metavar="pilot.json")
    files("--history", metavar="PARQUET", help="of one history")
    parser.add_argument(
        "--output", required=True, nargs="+", type=Path, metavar="CSV", help="the tables to write"
    )
    arguments = parser.parse_args()

    def make() -> None:
        from escala.report import tables

        frames = tables.tables(
            run_files=arguments.runs,
            dataset_files=arguments.datasets,
            class_files=arguments.classes,
            probe_files=arguments.probed,
            series_files=arguments.series,
            rungs=arguments.rungs,
            references=arguments.references,
            probe_settings=arguments.probe_settings,
            predictions_file=arguments.predictions,
            pilot_file=arguments.pilot,
            history_files=arguments.history,
        )
        tables.write(frames, arguments.output[0].parent)

    cli.serve_or_make(
        "tables",
        code="scripts.tables",
        inputs={str(path): path for path in _read(arguments)},
        parameters={
            "runs": list(map(str, arguments.runs)),
            "rungs": arguments.rungs,
            "references": arguments.references,
            "probe_settings": arguments.probe_settings,
        },
        outputs={path.name: path for path in arguments.output},
        make=make,
    )


def _read(arguments: argparse.Namespace) -> Iterator[Path]:
    """Yield the files that the tables are made of, including those alongside the named files."""
    yield from filter(None, (*arguments.classes, arguments.predictions, arguments.pilot))
    yield from arguments.history
    for run in arguments.probed:
        yield run
        probe = PROBES[run.parent.name.partition(".")[0]]
        for pattern in (f"ranks/*.{probe.name}.*", *probe.products):
            yield from sorted(run.parent.glob(pattern))
    for run in [*arguments.runs, *arguments.series]:
        yield run
        yield from sorted(run.parent.glob("sessions/*.json"))
        yield from run.parent.glob("predictions.npy")
    for dataset in arguments.datasets:
        yield dataset
        yield from filter(Path.exists, map(dataset.with_name, OF_SPLIT))


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
