"""Collect the runs of an experiment in tables, as CSV files checked against their schemas."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from escala import cli
from escala.experiment.references import DEFAULT_REFERENCES
from escala.probes import PROBES

#: Arrays about the test rows; they depend on the kind of data.
OF_TEST_ROWS = ("labels", "genomes", "similarity")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", required=True, nargs="+", type=Path, metavar="run.json")
    parser.add_argument("--paired", nargs="*", default=[], type=Path, metavar="run.json")
    parser.add_argument(
        "--pairs",
        type=cli.json_or_file,
        default=[],
        metavar="JSON",
        help="the pairs of ladders whose runs are --paired",
    )
    parser.add_argument(
        "--references",
        type=cli.json_or_file,
        default=DEFAULT_REFERENCES,
        metavar="JSON",
        help="the references of configurations, the main one first",
    )
    parser.add_argument(
        "--probe-settings",
        type=cli.json_or_file,
        default={},
        metavar="JSON",
        help="the settings of the probes, by their names",
    )
    parser.add_argument("--datasets", required=True, nargs="+", type=Path, metavar="dataset.json")
    parser.add_argument("--classes", nargs="*", default=[], type=Path, metavar="classes.csv")
    parser.add_argument("--probed", nargs="*", default=[], type=Path, metavar="run.json")
    parser.add_argument("--predictions", type=Path, metavar="predictions.json")
    parser.add_argument("--pilot", type=Path, metavar="pairs.json")
    parser.add_argument(
        "--history", nargs="*", default=[], type=Path, metavar="PARQUET", help="of one history"
    )
    parser.add_argument(
        "--output",
        required=True,
        nargs="+",
        type=Path,
        metavar="CSV",
        help="the tables to write",
    )
    arguments = parser.parse_args()

    def make() -> None:
        from escala.report import tables

        frames = tables.tables(
            arguments.runs,
            arguments.datasets,
            arguments.classes,
            arguments.probed,
            arguments.paired,
            arguments.pairs,
            arguments.references,
            arguments.probe_settings,
            arguments.predictions,
            arguments.pilot,
            arguments.history,
        )
        tables.write(frames, arguments.output[0].parent)

    cli.serve_or_make(
        "tables",
        code="scripts.tables",
        inputs={str(path): path for path in _read(arguments)},
        parameters={
            "runs": list(map(str, arguments.runs)),
            "pairs": arguments.pairs,
            "references": arguments.references,
            "probe_settings": arguments.probe_settings,
        },
        outputs={path.name: path for path in arguments.output},
        make=make,
    )


def _read(arguments: argparse.Namespace) -> Iterator[Path]:
    """Yield the files that the tables are made of, including those beside the named files."""
    yield from arguments.classes
    yield from filter(None, (arguments.predictions, arguments.pilot))
    yield from arguments.history
    for run in arguments.probed:
        yield run
        probe = PROBES[run.parent.name.partition(".")[0]]
        for pattern in (f"ranks/*.{probe.name}.*", *probe.products):
            yield from sorted(run.parent.glob(pattern))
    for run in [*arguments.runs, *arguments.paired]:
        yield run
        yield from sorted(run.parent.glob("sessions/*.json"))
        yield from run.parent.glob("predictions.npy")
    for dataset in arguments.datasets:
        beside = ("leakage.json", *(f"test_{part}.npy" for part in OF_TEST_ROWS))
        yield dataset
        yield from filter(Path.exists, map(dataset.with_name, beside))


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
