"""The tables of references against themselves, of drift, and of what a pilot asks for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from escala.analysis.comparable import left_out, matched, newest_of_repeats
from escala.analysis.statistics import VALUES_FOR_INTERVAL, Interval, ratio_interval
from escala.analysis.verdicts import MIN_MEASUREMENTS, leave_out_disturbed, noise_floor
from escala.analysis.verdicts import drift as drift_of
from escala.report.tables import base
from escala.report.tables.base import Evidence, Tables


def noise(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each reference that the experiment runs twice in each repeat."""
    first = base.by_configuration(filter(base.is_timed, evidence.runs))
    for names, duplicates in base.by_configuration(evidence.duplicates).items():
        newest = newest_of_repeats(matched(filter(base.is_timed, duplicates), first.get(names, ())))
        found, _, stays_disturbed = leave_out_disturbed(newest)
        number, ratio = len(found.runs), ratio_interval(base.ratios(found))
        yield {
            **base.named(names),
            "matches": number,
            "sessions": len({run["session"] for run in found.runs}),
            "kind": base.least_certain(map(base.kind, (*found.runs, *found.references))),
            "reason": left_out(number, found.refused) if number else _unmatched(duplicates),
            **ratio.columns("ratio"),
            "floor": None
            if stays_disturbed or number < VALUES_FOR_INTERVAL
            else noise_floor(ratio),
            **base.data_of(duplicates[0], base.ABOUT),
        }


def _unmatched(duplicates: list) -> str:
    """Return why a reference has no ratio to itself."""
    if any(run["current"] and run["status"] != "ok" for run in duplicates):
        return f"second runs failed: {base.failures(duplicates)}"
    return "no second run that ended ok, not resumed, shares session and repeat with a first one"


def drift(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each session, with how its times changed."""
    sessions: dict[str, list] = {}
    for run in filter(base.is_timed, (*evidence.runs, *evidence.duplicates)):
        if run["training"]["kind"] != "fit":
            sessions.setdefault(run["session"], []).append(run)
    for session, runs in sorted(sessions.items()):
        by_name = base.by_configuration(runs)
        moments = {
            names: [datetime.fromisoformat(run["started"]).timestamp() for run in each]
            for names, each in by_name.items()
        }
        found = drift_of(
            moments, {n: [*map(base.seconds_per_epoch, e)] for n, e in by_name.items()}
        )
        every = [moment for each in moments.values() for moment in each]
        change = found.change if found else Interval(None, None, None)
        reason = "all runs began at the same moment"
        if len(runs) < MIN_MEASUREMENTS:
            reason = f"{len(runs)} runs, and a drift is judged by at least {MIN_MEASUREMENTS}"
        yield {
            "session": session,
            "runs": len(runs),
            "configurations": len(by_name),
            "seconds": max(every) - min(every),
            "kind": "measured" if found else "unavailable",
            "reason": None if found else reason,
            **change.columns("change"),
            "p_value": found.p_value if found else None,
            "detected": found.detected if found else None,
        }


def pilot(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield how many matches each comparison needs by the pilot, if there is one."""
    plan = evidence.pilot
    for row in plan["comparisons"] if plan else ():
        cut = None if row["needed"] is None else row["needed"] > plan["at_most"]
        yield row | {key: plan[key] for key in ("half_width", "repeats")} | {"cut": cut}
