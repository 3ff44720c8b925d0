"""The outcome of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: a status of the run schema and, unless it is ok, the reason.

    Of a run that is ok, `stopped_seconds` are those for which processes of it stood still.
    """

    status: str
    reason: str | None = None
    stopped_seconds: float = 0.0
