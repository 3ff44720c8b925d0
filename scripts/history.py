"""Keep the measurements of many sessions, and follow a configuration over time and machines.

The history is the folder that ESCALA_HISTORY names; the default is .escala/history in the working
directory. Several processes may use it at the same time.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from escala import cli
from escala.analysis import history
from escala.core.arguments import from_zero, subcommands, whole_number
from escala.core.console import say
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.readable import aligned, counted

if TYPE_CHECKING:
    import duckdb


def main() -> int | None:
    arguments = parser().parse_args()
    return arguments.command(history.location(), arguments)


EXAMPLES = """\
examples:
  escala history add results/demo         keep its measurements
  escala history query                    list the queries
  escala history query sessions           run one of them
  escala history query --sql "SELECT workload, count(*) FROM measurements GROUP BY ALL"
  escala history changes --quantity ratio
  escala history plot history.svg
"""
#: Formats of a figure, by the suffix of its file.
PICTURES = (".svg", ".png", ".pdf")


def parser() -> argparse.ArgumentParser:
    parser, command = subcommands(__doc__, prog="escala history", epilog=EXAMPLES)
    add = command("add", _add, "add the measurements of experiments")
    add.add_argument(
        "experiments", type=Path, nargs="+", metavar="EXPERIMENT", help="a folder results/NAME"
    )
    ask = command("query", _query, "print a table; without a name, list the queries")
    ask.add_argument("name", nargs="?", choices=[*history.QUERIES], help="one of the queries")
    ask.add_argument("--sql", help="your own query, in place of a name")
    ask.add_argument("--csv", action="store_true", help="print CSV")
    change = command("changes", _changes, "list changes that recur in several sessions")
    plot = command("plot", _plot, "draw configurations over time, machines and versions")
    plot.add_argument("output", type=Path, nargs="+", metavar="FILE", help="an SVG, PNG or PDF")
    for each in (change, plot):
        each.add_argument(
            "--quantity",
            choices=("time", "ratio"),
            default="time",
            help="training seconds of an epoch (default), or their ratio to one process",
        )
        each.add_argument("--recurrence", type=whole_number, help="sessions that show a change (5)")
        each.add_argument("--before", type=whole_number, help="fewest sessions before a change (7)")
        each.add_argument("--least", type=from_zero, help="smallest change: 0.05 is 5 %% (default)")
    for each in (ask, change, plot):
        each.add_argument(
            "--where", default="true", metavar="SQL", help="a condition on the measurements to read"
        )
    return parser


def _warn(text: str) -> None:
    say(f"history: {text}")


def _add(folder: Path, arguments: argparse.Namespace) -> int:
    from escala.report.history.rows import add

    added = add(folder, arguments.experiments, warn=_warn)
    for error in added.unreadable.values():
        _warn(str(error))
    print(
        f"{folder}: {counted(added.measurements, 'measurement')} of "
        f"{counted(len(added.files), 'session')} added, {added.known} already there"
    )
    return 1 if added.unreadable else 0


def _read(folder: Path, where: str) -> tuple[duckdb.DuckDBPyConnection, int]:
    """Read a history that is there.

    Returns
    -------
    Its database, and the exit code of a command that reads it: 1 if a file is damaged.
    """
    if not folder.is_dir():
        raise InputError(
            history.LOCATION,
            str(folder),
            "is not a folder of a history",
            f"add an experiment: {call('history add results/NAME')}",
        )
    warnings: list[str] = []
    database = history.read(folder, where, warn=warnings.append)
    for text in warnings:
        _warn(text)
    return database, 1 if warnings else 0


def _query(folder: Path, arguments: argparse.Namespace) -> int:
    if (arguments.name is None) == (arguments.sql is None):
        if arguments.name:
            raise InputError("--sql", arguments.sql, "is given alongside a name", "leave one out")
        for name in history.QUERIES:
            print(f"{name}: {history.describe_query(name)}")
        return 0
    sql = arguments.sql or history.named_query(arguments.name)
    database, code = _read(folder, arguments.where)
    with database:
        table = history.query(database, sql)
    if arguments.csv:
        from escala.analysis.tables import no_formula

        for row in [table.columns, *table.rows]:
            cells = (no_formula(each) if isinstance(each, str) else each for each in row)
            csv.writer(sys.stdout).writerow(cells)
    else:
        print("\n".join(aligned([table.columns, *table.rows])))
    return code


def _changes(folder: Path, arguments: argparse.Namespace) -> int:
    from escala.report.history import series

    database, code = _read(folder, arguments.where)
    with database:
        found = series.series(database, arguments.quantity)
    print("\n".join(series.lines(found, arguments.quantity, **_limits(arguments))))
    return code


def _plot(folder: Path, arguments: argparse.Namespace) -> int:
    from escala.report.figures import common
    from escala.report.history import figure, series

    for path in arguments.output:
        if path.suffix not in PICTURES:
            known = ", ".join(PICTURES)
            raise InputError("FILE", str(path), "has no suffix of a figure", f"one of {known}")
        if not path.parent.is_dir():
            remedy = f"mkdir -p {shlex.quote(str(path.parent))}"
            raise InputError("FILE", str(path), "is in no folder", remedy)
    database, code = _read(folder, arguments.where)
    with database:
        found = series.series(database, arguments.quantity)
    with common.style():
        drawn = figure.draw(found, arguments.quantity, **_limits(arguments))
        common.save(drawn, *arguments.output)
    print(f"drawn: {', '.join(map(str, arguments.output))}")
    return code


def _limits(arguments: argparse.Namespace) -> dict:
    """Return the limits of a change that are given."""
    given = {name: getattr(arguments, name) for name in ("recurrence", "before", "least")}
    return {name: value for name, value in given.items() if value is not None}


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
