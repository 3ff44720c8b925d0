"""Build the table of references against themselves, which gives the noise floor."""

from __future__ import annotations

from collections.abc import Iterator

from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.analysis.verdicts import noise_floor
from escala.record.comparable import CONFIGURATION, left_out, newest_of_repeats, paired
from escala.report.tables import runs
from escala.report.tables.base import (
    Evidence,
    by_configuration,
    frame,
    interval_of_matches,
    is_timed,
    poorest,
    reasons,
)


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each reference that the experiment runs twice in each repeat."""
    first = by_configuration(filter(is_timed, evidence.found))
    for names, second in by_configuration(evidence.again).items():
        pairs = newest_of_repeats(paired(filter(is_timed, second), first.get(names, ())))
        twice, once = (
            frame("runs", map(runs.row, side)) for side in (pairs.runs, pairs.references)
        )
        seconds = "train_seconds_per_epoch"
        quotients = twice[seconds].to_numpy() / once[seconds].to_numpy()
        ratio = interval_of_matches(quotients, pairs, evidence)
        yield {
            **dict(zip(CONFIGURATION, names, strict=True)),
            "pairs": len(twice),
            "sessions": twice["session"].nunique(),
            "kind": poorest([*twice["kind"], *once["kind"]]),
            "reason": left_out(len(twice), pairs.refused) if len(twice) else _unpaired(second),
            **ratio.columns("ratio"),
            "floor": noise_floor(ratio) if len(twice) >= VALUES_FOR_INTERVAL else None,
            "provenance": second[0]["data"]["provenance"],
            "leaky": second[0]["data"]["leaky"],
        }


def _unpaired(second: list) -> str:
    """Return why a reference has no ratio to itself."""
    failed = [run for run in second if run["current"] and run["status"] != "ok"]
    if failed:
        return f"second runs failed: {reasons(frame('runs', map(runs.row, failed)))}"
    return "no second run that ended ok, not resumed, shares session and repeat with a first one"
