"""The outcome of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run or of a part of it: a status of the run schema, and why it is not ok.

    Of a run that is ok, `stopped_seconds` are those for which processes of it stood still. `found`
    is what was found of it, as a part of its run.json.
    """

    status: str
    reason: str | None = None
    stopped_seconds: float = 0.0
    found: Mapping[str, Any] = field(default_factory=dict)


def merge(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return one record of parts: mappings are merged, lists are joined, others replace earlier."""
    found: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            before = found.get(key)
            if isinstance(value, Mapping):
                value = merge(before if isinstance(before, Mapping) else {}, value)
            elif isinstance(value, list) and isinstance(before, list):
                value = before + value
            found[key] = value
    return found
