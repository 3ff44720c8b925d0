"""Lines and numbers of what a program printed."""

from __future__ import annotations

import math
import re

import pytest

from escala.programs import printed

#: As people write them: any characters; digits and a point; decimals; by a mistake, the last digit.
PATTERNS = (
    r"loss (?P<loss>\S+)",
    r"loss (?P<loss>[0-9.]+)",
    r"loss\D*(?P<loss>\d+\.?\d*)",
    r"loss.*(?P<loss>\d)",
)
NUMBERS = {
    "0.25": 0.25, "-0.25": -0.25, "+3": 3, ".5": 0.5, "12": 12, "-12": -12, "\u22120.5": -0.5,
    "3.21e-05": 3.21e-05, "-1E+3": -1000, "1e-4": 1e-4, "2.5D-03": 0.0025,
    "1,234.5": 1234.5, "1,234,567": 1234567, "0,0625": 0.0625,
    "nan": math.nan, "NaN": math.nan, "-nan": math.nan, "inf": math.inf, "-inf": -math.inf,
    "Infinity": math.inf,
}  # fmt: skip


def read(pattern: str, *lines: str) -> tuple[list[dict[str, float] | None], list[str]]:
    """Return the numbers of each line, None of one that does not match, and the notes."""
    numbers = printed.Numbers({"epoch", "rows"})
    found = [printed.search(re.compile(pattern), line) for line in lines]
    values = [None if each is None else numbers.values(each[1]) for each in found]
    return values, numbers.settle()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("after", ["", " acc", ", step", "%", "]"])
def test_a_number_is_read_whole_by_whatever_pattern_finds_it(pattern, after):
    for text, value in NUMBERS.items():
        [values], notes = read(pattern, f"epoch 3 loss {text}{after}")
        assert values == {"loss": pytest.approx(value, nan_ok=True)}, (text, notes)
        assert notes == []


@pytest.mark.parametrize(
    ("pattern", "line", "values"),
    [
        # What follows a number does not hide that it is another one than the pattern expects.
        (r"^loss (?P<loss>[0-9.]+)$", "loss -0.5", {"loss": -0.5}),
        (r"loss (?P<loss>[0-9.]+) (?P<a>[0-9.]+)", "loss 2e-05 0.5", {"loss": 2e-5, "a": 0.5}),
        (r"loss (?P<a>\d\.\d{4}) (?P<b>\de-\d+)", "loss nan 1e-04", {"a": math.nan, "b": 1e-4}),
        (r"(?P<loss>\d+\.\d+)$", "2026-11-28 12:00:00,123", None),
        # A later number is not taken for one that is not finite.
        (r"loss\D+(?P<loss>\d+\.\d+)", "loss nan acc 0.9", {"loss": math.nan}),
        (r"epoch (?P<epoch>\d+)", "[INF] epoch 3", {"epoch": 3}),
        # Numbers side by side, of which the pattern takes one or each.
        (r"epoch-(?P<epoch>\d+)", "epoch-3 loss", {"epoch": 3}),
        (r"(?P<epoch>\d+)/10", "Epoch 3/10", {"epoch": 3}),
        (r"^(?P<epoch>\d+),(?P<loss>[0-9.]+)", "3,-0.5,1", {"epoch": 3, "loss": -0.5}),
        (r"^(?P<epoch>\d+),(?P<loss>[0-9.]+)", "3,125,1", {"epoch": 3, "loss": 125}),
        (r"^(?P<epoch>\d+)", "3,0.25,12", {"epoch": 3}),
        (r",(?P<loss>[0-9.]+),", "3,2.5e-05,12", {"loss": 2.5e-5}),
        (r"loss (?P<loss>\S+)", "loss tensor(0.25, requires_grad=True)", {"loss": 0.25}),
        (r"(?P<parameters>[0-9.]+)M", "12.5M", {"parameters": 12.5}),
        (r"rows (?P<rows>\S+)", "rows 1,250", {"rows": 1250}),
        (r"a(?: b (?P<b>\d+))?", "a", {}),
    ],
)  # fmt: skip
def test_a_number_is_that_of_its_group(pattern, line, values):
    [found], notes = read(pattern, line)
    assert found == (values and pytest.approx(values, nan_ok=True))
    assert notes == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"loss (?P<loss>\S+)", "loss nothing"),
        (r"loss (?P<loss>\S+)", "loss nanometer"),
        (r"loss (?P<loss>.*)", "loss 0.5 acc 0.9"),
        (r"rows (?P<rows>\S+)", "rows 1.5k"),
        (r"rows (?P<rows>[0-9.]+)", "rows 1.5M"),
        (r"rows (?P<rows>\S+)", "rows 0x10"),
        (r"rows (?P<rows>\S+)", "rows 1_000"),
        (r"rows (?P<rows>[0-9.]+)", "rows 1'000"),
        (r"rows (?P<rows>\S+)", "rows 1\u202f000,5"),
        (r"at (?P<seconds>\S+)", "at 1:30"),
        (r"loss (?P<loss>[0-9.]+)", "loss 1.#QNAN"),
    ],
)
def test_what_is_no_single_number_is_left_out_and_named(pattern, line):
    [found], [note] = read(pattern, line)
    assert found == {}
    [name] = re.compile(pattern).groupindex
    assert note.startswith(f"{name} '") or note.startswith(f'{name} "')
    assert note.endswith(" is no number, and is left out")


def test_a_comma_means_the_same_in_all_numbers_of_a_name():
    def losses(*texts: str) -> list[float | None]:
        found, _ = read(r"loss (?P<loss>\S+)", *(f"loss {text}" for text in texts))
        return [each.get("loss") for each in found]

    assert losses("1,234", "12,345") == [None, None], "two ways"
    assert losses("1,234", "0,987") == [1.234, 0.987]
    assert losses("1,234", "1,234.5") == [1234, 1234.5]
    assert losses("1,234", "999.5") == [1234, 999.5]
    assert losses("1.234,5", "2,5") == [1234.5, 2.5]
    assert losses("0.25", "0,25", "1,234") == [0.25, 0.25, None], "nobody writes both"


def lines(*pieces: tuple[bytes, float]) -> list[tuple[str, float]]:
    found = printed.Lines()
    return [line for data, time in pieces for line in found.feed(data, time)] + list(found.end())


def test_lines_are_read_as_a_person_reads_them():
    colours = "\x1b[32mepoch\x1b[0m 1 \x1b]0;title\x07\x1b[1mloss\x1b[0m 0.5\n"
    assert lines((colours.encode(), 1.0)) == [("epoch 1 loss 0.5", 1.0)]
    # As `tput` ends a colour, and as bars write over what they wrote.
    others = "\ufeff\x1b(B\x1b[mepoch\x1b(B 1 loss 0.9\x1b[K\x08\x08\x1b[1m.5\x1b7\x1b8\n"
    assert lines((others.encode(), 1.0)) == [("epoch 1 loss 0.5", 1.0)]
    # As Keras draws a bar: back to its beginning, and then a return.
    bar = b"".join(b"%d/3 - loss: 0.5" % n + b"\b" * 18 + b"\r" for n in (1, 2, 3)) + b"\n"
    assert [line for line, _ in lines((bar, 1.0)) if line] == [
        f"{n}/3 - loss: 0.5" for n in (1, 2, 3)
    ]
    assert lines((b"abc\b\b\b\b\bx\n", 1.0)) == [("xbc", 1.0)]
    both = "época 1\n".encode() + "época 2\n".encode("latin-1")
    pieces = [(both[n : n + 1], float(n)) for n in range(len(both))]
    assert [line for line, _ in lines(*pieces)] == ["época 1", "época 2"]


@pytest.mark.parametrize("letter", [".", "é"])
def test_of_a_long_line_the_beginning_and_the_end_are_read(letter):
    dots = (letter * 50_000).encode()
    for pieces in (
        [(b"first" + dots + b"last\n", 1.0)],
        [
            (b"first", 1.0),
            *((dots[n : n + 999], 2.0) for n in range(0, len(dots), 999)),
            (b"last", 3.0),
        ],
    ):
        [(line, _)] = lines(*pieces)
        assert line.startswith(f"first{letter}") and line.endswith(f"{letter}last")
        assert len(line.encode()) <= 2 * printed.LONGEST + 1
        assert set(line) == set(f"firstlast{letter}\n")
