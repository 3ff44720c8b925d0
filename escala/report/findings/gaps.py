"""Name the runs that failed, and how to repeat them."""

from __future__ import annotations

from escala.report.findings.words import PAIRS_FOR_INTERVAL, Tables, count, quoted, with_labels

POSITION = 80


def sentence(tables: Tables, name: str) -> str:
    """Describe what failed, and what to do about it."""
    runs = with_labels(tables["runs"], tables)
    current = runs[runs["current"]]
    failed = current[current["status"] != "ok"]
    more = (
        f"; with one repeat there are no intervals: set `repeats` to {PAIRS_FOR_INTERVAL} or more"
    )
    few = more * (current["repeat"].nunique() == 1)
    if failed.empty:
        return f"All {count(len(current), 'timing run')} ended ok{few}."
    groups = failed.fillna({"reason": ""}).groupby(["label", "status", "reason"], sort=False)
    reasons = [
        f"{label} rep {', '.join(map(str, group['repeat']))} ({status}"
        + (f": {quoted(reason)})" if reason else ")")
        for (label, status, reason), group in groups
    ]
    return (
        f"{len(failed)} of {count(len(current), 'timing run')} did not end ok: "
        f"{'; '.join(reasons)}; to repeat just these, run "
        f"`uv run python scripts/retry.py results/{name}` and then the same Snakemake command "
        f"again{few}."
    )
