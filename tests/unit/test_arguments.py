"""Subcommands run what they name, and numbers out of their bounds are refused."""

from __future__ import annotations

import argparse
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escala.core import arguments

BOUNDS = {
    arguments.whole_number: lambda number: number >= 1 and number == int(number),
    arguments.from_zero: lambda number: number >= 0,
    arguments.above_zero: lambda number: number > 0,
}


@pytest.mark.parametrize("kind", BOUNDS, ids=lambda kind: kind.__name__)
@given(number=st.integers(-(10**18), 10**18) | st.floats())
def test_a_number_is_returned_or_refused(kind, number):
    allowed = math.isfinite(number) and BOUNDS[kind](number)
    if kind is arguments.whole_number and isinstance(number, float):
        allowed = False  # "1.0" is not written as a whole number.
    if allowed:
        assert kind(str(number)) == (number if kind is arguments.whole_number else float(number))
    else:
        with pytest.raises(argparse.ArgumentTypeError):
            kind(str(number))


@pytest.mark.parametrize("kind", BOUNDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("text", ["", "two", "nan", "inf", "1e999", "0x10"])
def test_other_text_is_refused_with_its_reason(kind, text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a"):
        kind(text)


def test_a_subcommand_is_required_and_has_its_function(capsys):
    parser, command = arguments.subcommands("Do things.")
    command("first", print, "do one thing").add_argument("what")
    command("second", len, "do another thing")
    parsed = parser.parse_args(["first", "this"])
    assert (parsed.command, parsed.what) == (print, "this")
    with pytest.raises(SystemExit):
        parser.parse_args([])
    assert "COMMAND" in capsys.readouterr().err
    assert "do another thing" in parser.format_help()
