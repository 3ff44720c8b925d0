"""Keep the measurements of many sessions, and query them.

The history is the folder that ESCALA_HISTORY names; the default is .escala/history in the working
directory. Several processes may use it at the same time.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from escala.analysis import history
from escala.core.arguments import Parser, subcommands
from escala.core.console import say
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.readable import align, with_noun

EXAMPLES = """\
examples:
  escala history add results/demo         keep its runs
  escala history query --sql "SELECT workload, count(*) FROM measurements GROUP BY ALL"
"""


def add(parser: Parser) -> None:
    command = subcommands(parser)
    keep = command("add", _add, "add the runs of experiments")
    keep.add_argument(
        "experiments", type=Path, nargs="+", metavar="EXPERIMENT", help="a folder results/NAME"
    )
    ask = command("query", _query, "print the result of a query")
    ask.add_argument("--sql", required=True, help="the query, such as FROM measurements")
    ask.add_argument("--csv", action="store_true", help="print CSV")


def run(arguments: argparse.Namespace) -> int | None:
    return arguments.command(history.location(), arguments)


def _add(folder: Path, arguments: argparse.Namespace) -> int:
    from escala.report.history import add as add_runs

    added = add_runs(folder, arguments.experiments, warn=say)
    for error in added.unreadable.values():
        say(error)
    print(
        f"{folder}: {with_noun(added.runs, 'run')} of {with_noun(len(added.files), 'session')} "
        f"added, {added.measurements} of these runs as measurements; {added.known} already there"
    )
    return 1 if added.unreadable else 0


def _query(folder: Path, arguments: argparse.Namespace) -> int:
    """Print the result of a query. Return 1 if a file is damaged; damaged files are not read."""
    if not folder.is_dir():
        raise InputError(
            history.LOCATION,
            str(folder),
            "is not a folder of a history",
            f"add an experiment: {call('history add results/NAME')}",
        )
    warnings: list[str] = []
    with history.read(folder, warn=warnings.append) as database:
        table = history.query(database, arguments.sql)
    for text in warnings:
        say(text)
    if arguments.csv:
        from escala.analysis.tables import no_formula

        for row in [table.columns, *table.rows]:
            cells = (no_formula(cell) if isinstance(cell, str) else cell for cell in row)
            csv.writer(sys.stdout).writerow(cells)
    else:
        print("\n".join(align([table.columns, *table.rows])))
    return 1 if warnings else 0
