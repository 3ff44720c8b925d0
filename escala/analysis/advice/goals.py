"""Goals of an advice."""

from __future__ import annotations

#: Goal -> the unit of its amount.
GOALS = {
    "time": "s",
    "time-with-wait": "s",
    "core-hours": "core-hours",
    "energy": "J",
    "deadline": "core-hours",
}
TIME, TIME_WITH_WAIT, CORE_HOURS, ENERGY, DEADLINE = GOALS
