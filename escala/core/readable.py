"""Numbers in the form in which people read them."""

from __future__ import annotations


def size(number: float) -> str:
    """Return a number of bytes in readable form: `512 bytes`, `1.5 MiB`, `2.0 GiB`."""
    for exponent, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 2**exponent:
            return f"{number / 2**exponent:.1f} {unit}"
    return f"{number:.0f} bytes"
