"""Judge at the looks of a session that decides when it stops: their level, and what ends it.

All looks together give a false verdict on the next time with a probability below 1 - `LEVEL`, and
on the session alone of about 1 - `LEVEL`. They share their runs, so six looks err less often than
the sum of theirs (docs/decisions/intervals.md). The first has too few runs for signed ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from escala.analysis.statistics import LEVEL, MATCHES_FOR_INTERVAL, Interval
from escala.analysis.verdicts import NO_VERDICT, verdict

#: The level of each look. By signed ranks it needs seven paired runs.
LOOK_LEVEL = 1 - 0.0157
#: A smaller difference is no reason to go on.
MARGIN = 0.05
#: Results of a look after which the session needs no more runs, although there is no verdict. The
#: last one is a difference that only further sessions could show.
NO_DIFFERENCE, NO_SAVING = "no difference above 5 %", "no saving above 5 %"
LESS_THAN_SESSIONS = "no more than sessions differ by"


def level_of(sequential: object) -> float:
    """Return the level of the intervals of an experiment, by whether its session decides."""
    return LOOK_LEVEL if sequential else LEVEL


def judge_session(row: Mapping[str, Any], threshold: float = 0.0) -> str:
    """Return whether a time is above or below 1 + `threshold` of another, in this session alone.

    Parameters
    ----------
    row : of the table `speedup`.
    threshold : 0.05 is 5 %.

    Returns
    -------
    `SLOWER` or `FASTER` if the whole interval is above or below, `NOT_DISTINGUISHABLE`, or
    `NO_VERDICT` if paired runs are too few for the level, or too many stay disturbed.
    """
    if row["stays_disturbed"] or row["matches"] < MATCHES_FOR_INTERVAL:
        return NO_VERDICT
    ends = (row[f"session_ratio{end}"] for end in ("", "_low", "_high"))
    ratio = Interval(*(end and end / (1 + threshold) for end in ends))
    return verdict(ratio, row["matches"]).kind


def futility(in_session: Interval, uses: str, between: float) -> str | None:
    """Return why more runs of a session need not decide a comparison; None if they may.

    Parameters
    ----------
    in_session : the time of a configuration divided by that of an alternative, in this session.
    uses : `more`, `less` or `as much` resources that the alternative uses. If one of both
        uses more, only a saving by this one counts.
    between : the result of `session_half_width`, at the level of this interval.
    """
    if not (in_session.low and in_session.high):
        return None

    def excludes(margin: float) -> tuple[bool, bool]:
        """Return whether no difference exceeds a margin, and whether none that counts does."""
        no_saving = in_session.low >= math.exp(-margin)
        no_loss = in_session.high <= math.exp(margin)
        return no_saving and no_loss, (uses == "more" or no_saving) and (uses == "less" or no_loss)

    is_equal, is_decided = excludes(-math.log1p(-MARGIN))
    if is_decided:
        return NO_DIFFERENCE if is_equal else NO_SAVING
    return LESS_THAN_SESSIONS if excludes(between)[1] else None
