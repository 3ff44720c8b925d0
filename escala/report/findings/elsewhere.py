"""Describe the time that runs spend outside their training steps."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.report.findings.verdicts import names_of_rows, shown
from escala.report.findings.words import Finding, Tables, quoted, with_labels
from escala.report.tables.views import any_ok, trained_by_steps, whole_runs

POSITION = 30
SECTION = "why"

#: What runs do outside their steps, with the columns of `configurations` that hold its time.
_TASKS = {
    "starting up": ("startup",),
    "compiling in the first steps": ("first_step", "first_prediction"),
    "evaluating": ("evaluation",),
    "writing checkpoints": ("checkpoint",),
    "loading, building and saving": ("loading", "build", "broadcast", "averaging", "save"),
}


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe the time outside the steps, of what answers and of its reference."""
    tables = trained_by_steps(tables)
    if tables["runs"].empty:
        yield _finding("No workload was trained over epochs.")
        return
    timed = with_labels(tables["configurations"], tables)
    timed = timed[timed["kind"] != "unavailable"]
    if timed.empty:
        why = "no run ended ok" + " at one sitting" * any_ok(tables)
        yield _finding(f"The time outside the training steps is unavailable: {why}.")
        return
    chosen = shown(tables)
    is_shown = pd.Series([each in chosen for each in names_of_rows(timed)], timed.index, bool)
    whole = whole_runs(tables)
    for _, row in (timed[is_shown] if is_shown.any() else timed).iterrows():
        if row["training_kind"] == "command":
            # Outside a whole run there is nothing.
            text = None if row["workload"] in whole else _beside_epochs(row)
        else:
            text = _outside(row)
        if text:
            yield _finding(text)


def _finding(text: str) -> Finding:
    return Finding(text, "configurations")


def _beside_epochs(row: pd.Series) -> str:
    """Describe the time that a program spends outside the epochs that count."""
    known = {
        "starting up": row["startup_seconds"],
        "in its first epoch": row["first_epoch_seconds"],
    }
    if pd.isna(row["startup_seconds"]):
        known = {"starting up and in its first epoch": row["first_epoch_seconds"]}
    spent = {task: seconds for task, seconds in known.items() if not pd.isna(seconds)}
    outside = row["program_seconds"] - row["total_train_seconds"]
    spent["between and after the epochs"] = outside - sum(spent.values())
    return (
        f"{quoted(row['label'])} spends {outside:.1f} of {row['program_seconds']:.1f} s outside "
        f"the epochs that count, most of it {max(spent, key=spent.__getitem__)}."
    )


def _outside(row: pd.Series) -> str:
    spent = {
        task: row[[f"{part}_seconds" for part in parts]].sum() for task, parts in _TASKS.items()
    }
    return (
        f"{quoted(row['label'])} spends {sum(spent.values()):.1f} of {row['wall_seconds']:.1f} s "
        f"outside the training steps, most of it {max(spent, key=spent.__getitem__)}."
    )
