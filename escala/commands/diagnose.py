"""Print where the time of a step goes, from a Horovod timeline of any training.

The bounds of what the exchange adds assume Horovod's default cycle of 1 ms (HOROVOD_CYCLE_TIME).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from escala.core.errors import InputError

EXAMPLES = """\
example:
  escala diagnose /path/timeline.json
"""


def add(parser: argparse.ArgumentParser) -> None:
    text = "file of HOROVOD_TIMELINE, whole or cut short, also as .gz, .bz2 or .xz"
    parser.add_argument("timeline", type=Path, help=text)


def run(arguments: argparse.Namespace) -> None:
    from escala.analysis.diagnosis import diagnose, lines

    if not arguments.timeline.is_file():
        remedy = "name the file of HOROVOD_TIMELINE"
        raise InputError("timeline", str(arguments.timeline), "is no file", remedy)
    print("\n".join(lines(diagnose(arguments.timeline))))
