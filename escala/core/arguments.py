"""Parse the arguments of commands: texts with lines, subcommands, and numbers within bounds."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any


def raw_parser(description: str | None, **options: Any) -> argparse.ArgumentParser:
    """Return a parser whose description and epilog keep their lines, as examples need them."""
    return argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )


def subcommands(
    description: str | None, **options: Any
) -> tuple[argparse.ArgumentParser, Callable[..., argparse.ArgumentParser]]:
    """Return a parser that requires a subcommand, and a function that adds one.

    The function takes the name of a subcommand, the function that runs it, and its help text. It
    returns the parser of the subcommand. The parsed arguments have the function that runs the
    selected subcommand as `command`. `options` are those of the parser.
    """
    parser = raw_parser(description, **options)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(command=run)
        return added

    return parser, add


def whole_number(text: str) -> int:
    """Return a whole number from 1; a type of `argparse`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1")
    return int(text)


def from_zero(text: str) -> float:
    """Return a finite number from 0; a type of `argparse`."""
    number = _number(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0")
    return number


def above_zero(text: str) -> float:
    """Return a finite number above 0; a type of `argparse`."""
    number = _number(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def _number(text: str) -> float:
    """Return a number, or NaN for other text: no bound holds for it."""
    try:
        return float(text)
    except ValueError:
        return math.nan
