"""Parse the arguments of commands: help with line breaks, subcommands, numbers within bounds."""

from __future__ import annotations

import argparse
import difflib
import math
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, NoReturn

from escala.core import console
from escala.core.console import say
from escala.core.errors import InputError

_CHOICE = re.compile(r"argument (.+): invalid choice: '(.*)' \(choose from (.+)\)", re.DOTALL)
#: The most allowed values in a remedy. They are listed if no value is similar to the wrong value.
_MOST_NAMED = 6


class Parser(argparse.ArgumentParser):
    """A parser whose errors have a remedy: the most similar words, and where all words are listed.

    The lines of its description and its epilog are not joined, because they may be examples.
    """

    def __init__(self, formatter_class=argparse.RawDescriptionHelpFormatter, **options: Any):
        super().__init__(formatter_class=formatter_class, allow_abbrev=False, **options)

    #: A remedy for an unknown option, printed after similar options.
    hint = ""

    def parse_known_args(self, args=None, namespace=None):
        # argparse would let the command report the unknown word; only the subcommand knows its
        # options.
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            if not word.startswith("-"):
                self._refuse("the call", word, "is one word too many")
            reason = f"is not an option of {self.prog}"
            self._refuse("the call", word, reason, self._option_string_actions, self.hint)
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        if choice := _CHOICE.fullmatch(message):
            name, word, values = choice.groups()
            # Newer versions of Python list the choices without quotes.
            self._refuse(name, word, "is unknown", re.findall("[^', ]+", values))
        self._end(InputError("the call", None, message, f"`{self.prog} --help` describes it"))

    def _refuse(
        self, where: str, word: str, reason: str, known: Collection[str] = (), hint: str = ""
    ) -> NoReturn:
        remedies = [f"`{self.prog} --help` lists all", *filter(None, [hint])]
        if near := difflib.get_close_matches(word, known, 2):
            remedies.insert(0, f"perhaps it is {' or '.join(near)}")
        elif 0 < len(known) <= _MOST_NAMED:
            remedies.insert(0, f"give one of {', '.join(known)}")
        self._end(InputError(where, word, reason, "; ".join(remedies)))

    def _end(self, error: InputError) -> NoReturn:
        say(error)
        self.exit(console.WRONG)


def subcommands(parser: Parser) -> Callable[[str, Callable, str], Parser]:
    """Let a parser require a subcommand; return a function that adds one.

    The function takes the name of a subcommand, the function that runs it, and its help text. It
    returns the parser of the subcommand. The attribute `command` of the parsed arguments is the
    function of the selected subcommand.
    """
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable, text: str) -> Parser:
        form = argparse.HelpFormatter
        subparser = commands.add_parser(name, help=text, description=text, formatter_class=form)
        subparser.set_defaults(command=run)
        return subparser

    return add


def whole_number(text: str) -> int:
    """Return a whole number from 1; a type of `argparse`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1")
    return int(text)


def from_zero(text: str) -> float:
    """Return a finite number from 0; a type of `argparse`."""
    return _number(text, lambda number: number >= 0, "from 0")


def above_zero(text: str) -> float:
    """Return a finite number above 0; a type of `argparse`."""
    return _number(text, lambda number: number > 0, "above 0")


def _number(text: str, is_allowed: Callable[[float], bool], bound: str) -> float:
    with suppress(ValueError):
        if is_allowed(number := float(text)) and number < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"{text} is not a number {bound}")
