"""Numbers in the form in which people read them."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `1 run`, `2 runs`, or with `many` as the plural."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def size(number: float) -> str:
    """Return a number of bytes in readable form: `512 bytes`, `1.5 MiB`, `2.0 GiB`."""
    for exponent, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 2**exponent:
            return f"{number / 2**exponent:.1f} {unit}"
    return f"{number:.0f} bytes"
