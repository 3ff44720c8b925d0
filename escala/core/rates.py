"""Rates of links, as an experiment writes them."""

from __future__ import annotations

import re

from escala.core.errors import InputError

_RATE = re.compile(r"([1-9][0-9]{0,4})(kbit|mbit|gbit)")
_BITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def bits_per_second(rate: str) -> int:
    """Return a rate such as `100mbit` as a number.

    Raises
    ------
    InputError : it is not a rate.
    """
    match = _RATE.fullmatch(rate)
    if match is None:
        raise InputError(
            "rate", rate, "is not a rate", "write it as 10mbit, 100mbit or 1gbit, or write native"
        )
    return int(match[1]) * _BITS[match[2]]
