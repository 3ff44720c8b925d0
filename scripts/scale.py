"""Predict the speed of 2 to 64 ranks, or of any layouts, from a calibration.

Prints the speed-up of each exchange over one rank, by scaling and network, and up to which layout
more ranks pay. docs/how-to/scale.md explains the output.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

from tqdm import tqdm

from escala import cli
from escala.analysis.cost_model.collectives import LIBRARIES, MPI
from escala.core.arguments import whole_number
from escala.runtime.layout import Layout
from escala.strategies.costs import BETWEEN_NODES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("calibration", type=Path, help="docs/reference/calibration.md describes it")
    parser.add_argument("--work", help="its name in the calibration; needed if there are several")
    scaling = parser.add_argument_group(
        "scaling", "One of these at least. ROWS are those of a step of one rank."
    )
    scaling.add_argument(
        "--strong",
        type=whole_number,
        metavar="ROWS",
        help="the ranks divide these rows: the same updates",
    )
    scaling.add_argument(
        "--weak",
        type=whole_number,
        metavar="ROWS",
        help="each rank has these rows: larger, fewer steps",
    )
    scaling.add_argument(
        "--unsharded",
        type=whole_number,
        metavar="ROWS",
        help="each rank has these rows, and trains on all data (shard: false)",
    )
    parser.add_argument(
        "--layouts",
        nargs="+",
        type=_layout,
        metavar="NODESxPROCS",
        help="default: 2x1 4x1 8x1 16x1 32x1 64x1",
    )
    parser.add_argument(
        "--networks",
        nargs="+",
        help="of the calibration, or 100mbit, 1gbit, 10gbit, infiniband-40gbit; default: all these",
    )
    parser.add_argument(
        "--exchanges",
        nargs="+",
        help=f"{', '.join(BETWEEN_NODES)}; each may be followed by +fp16, +sparse (rows of "
        "embeddings are gathered) or +accumulation4 (a step in 4 parts)",
    )
    parser.add_argument("--library", choices=LIBRARIES, default=MPI, help="default: %(default)s")
    parser.add_argument(
        "--cores", type=whole_number, default=1, help="of a process; default: %(default)s"
    )
    parser.add_argument(
        "--cores-per-node",
        type=whole_number,
        help="of the nodes; default: those of the calibrated node",
    )
    parser.add_argument(
        "--measured",
        nargs="+",
        type=Path,
        default=[],
        metavar="run.json",
        help="timing runs of this work, to stand beside predictions",
    )
    parser.add_argument(
        "--draws", type=whole_number, default=100, help="for the intervals; default: %(default)s"
    )
    parser.add_argument("--csv", type=Path, help="table to write")
    parser.add_argument("--figure", nargs="+", type=Path, help="files to write, .svg or .png")
    arguments = parser.parse_args()
    rows = {name: getattr(arguments, name) for name in ("strong", "weak", "unsharded")}
    rows = {name: number for name, number in rows.items() if number is not None}
    if not rows:
        parser.error("--strong, --weak or --unsharded is needed")

    from escala.analysis import scale
    from escala.analysis.cost_model import calibration, networks
    from escala.core.files import atomic
    from escala.report import scale as report
    from escala.report.figures import common

    calibrated = calibration.read(arguments.calibration)
    if arguments.cores_per_node:
        calibrated = replace(calibrated, cores_per_node=arguments.cores_per_node)
    if arguments.work is None and len(calibrated.works) > 1:
        parser.error(f"--work is needed, one of {', '.join(calibrated.works)}")
    work = arguments.work or next(iter(calibrated.works))
    known = [name for name in calibrated.networks if name != calibration.LOCAL]
    table = scale.simulated(
        calibrated,
        work,
        rows,
        arguments.layouts or scale.LAYOUTS,
        arguments.networks or list(dict.fromkeys([*known, *networks.PRESETS])),
        arguments.exchanges,
        arguments.library,
        arguments.cores,
        arguments.draws,
        progress=partial(tqdm, desc="predict", unit=" series", delay=2, leave=False, disable=None),
    )
    runs = scale.measured(arguments.measured, arguments.library, arguments.cores)
    beside = scale.beside(table, runs)
    print("\n".join(report.lines(table, beside)))
    if arguments.csv:
        with atomic(arguments.csv) as temporary:
            table.to_csv(temporary, index=False)
    if arguments.figure:
        with common.style():
            common.save(report.draw(table, beside, f"Predicted speed of {work}"), *arguments.figure)


def _layout(text: str) -> Layout:
    try:
        return Layout.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
