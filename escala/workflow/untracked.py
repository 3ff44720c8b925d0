"""Parameters of rules that a job needs, and whose change is no reason to run it again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


class Untracked:
    """Hold a parameter that Snakemake does not record; in a shell command it is JSON.

    Snakemake records parameters of the types that it can compare, and this is none of them.

    Parameters
    ----------
    value : returns what JSON can hold; called only for a job that runs.
    """

    def __init__(self, value: Callable[[], Any]):
        self._value = value

    def __str__(self) -> str:
        return json.dumps(self._value())
