"""How a run ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """How a run ended: a status of the run schema and, unless it is ok, the reason."""

    status: str
    reason: str | None = None
