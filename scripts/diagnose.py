"""Print where the time of a step goes, from a Horovod timeline of any training.

The bounds of what the exchange adds assume Horovod's default cycle of 1 ms (HOROVOD_CYCLE_TIME).
"""

from __future__ import annotations

from pathlib import Path

from escala import cli
from escala.core.arguments import Parser


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument(
        "timeline",
        type=Path,
        help="file of HOROVOD_TIMELINE, whole or cut short, also as .gz, .bz2 or .xz",
    )
    arguments = parser.parse_args()

    from escala.analysis.diagnosis import diagnose, lines

    print("\n".join(lines(diagnose(arguments.timeline))))


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
