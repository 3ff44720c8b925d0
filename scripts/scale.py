"""Predict the speed of 2 to 64 ranks, or of any layouts, from a calibration.

Prints the speed-up of each exchange over one rank, by scaling and network, and up to which layout
more ranks pay. docs/how-to/scale.md explains the output.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from escala import cli
from escala.core.arguments import Parser, whole_number
from escala.core.engines import COLLECTIVES
from escala.runtime.layout import Layout

_SCALINGS = {
    "strong": "the ranks divide these rows: the same updates",
    "weak": "each rank has these rows: larger, fewer steps",
    "unsharded": "each rank has these rows, and trains on all data (shard: false)",
}


def main() -> None:
    parser = _parser()
    arguments = parser.parse_args()
    rows = {name: each for name in _SCALINGS if (each := getattr(arguments, name)) is not None}
    if not rows:
        parser.error("--strong, --weak or --unsharded is needed")

    from escala.analysis import scale
    from escala.analysis.cost_model.calibration import LOCAL
    from escala.analysis.cost_model.networks import PRESETS
    from escala.analysis.cost_model.reading import read
    from escala.core.files import atomic

    calibrated = read(arguments.calibration)
    if arguments.cores_per_node:
        calibrated = replace(calibrated, cores_per_node=arguments.cores_per_node)
    if arguments.work is None and len(calibrated.works) > 1:
        parser.error(f"--work is needed, one of {', '.join(calibrated.works)}")
    known = [name for name in calibrated.networks if name != LOCAL]
    table = scale.simulated(
        calibrated,
        arguments.work or next(iter(calibrated.works)),
        rows,
        arguments.layouts or scale.LAYOUTS,
        arguments.networks or list(dict.fromkeys([*known, *PRESETS])),
        arguments.exchanges,
        arguments.library,
        arguments.cores,
        arguments.draws,
    )
    print("\n".join(scale.lines(table)))
    if arguments.csv:
        with atomic(arguments.csv) as temporary:
            table.to_csv(temporary, index=False)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(description=__doc__)
    parser.add_argument("calibration", type=Path, help="docs/reference/calibration.md describes it")
    parser.add_argument("--work", help="its name in the calibration; needed if there are several")
    scaling = parser.add_argument_group(
        "scaling", "One of these at least. ROWS are those of a step of one rank."
    )
    for name, what in _SCALINGS.items():
        scaling.add_argument(f"--{name}", type=whole_number, metavar="ROWS", help=what)
    default = "default: %(default)s"
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
        default=["allreduce", "factors"],
        help="values of dense_exchange; each may be followed by +fp16, +sparse (rows of embeddings "
        f"are gathered) or +accumulation4 (a step in 4 parts); {default}",
    )
    first, *_ = COLLECTIVES
    parser.add_argument("--library", choices=COLLECTIVES, default=first, help=default)
    parser.add_argument("--cores", type=whole_number, default=1, help=f"of a process; {default}")
    parser.add_argument(
        "--cores-per-node",
        type=whole_number,
        help="of the nodes; default: those of the calibrated node",
    )
    parser.add_argument(
        "--draws", type=whole_number, default=100, help=f"for the intervals; {default}"
    )
    parser.add_argument("--csv", type=Path, help="table to write")
    return parser


def _layout(text: str) -> Layout:
    try:
        return Layout.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
