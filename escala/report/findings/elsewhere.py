"""Describe the time that runs spend outside their training steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from escala.report.findings.best_use import shown
from escala.report.findings.words import Finding, Tables, among, quoted, with_labels
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
    yield from (Finding(text, "configurations") for text in _texts(trained_by_steps(tables)))


def _texts(tables: Tables) -> Iterator[str]:
    if tables["runs"].empty:
        yield "No workload was trained over epochs."
        return
    timed = with_labels(tables["configurations"], tables)
    timed = timed[timed["kind"] != "unavailable"]
    if timed.empty:
        why = "no run ended ok" + " at one sitting" * any_ok(tables)
        yield f"The time outside the training steps is unavailable: {why}."
    selected, whole = among(timed, shown(tables)), whole_runs(tables)
    for _, row in (timed if selected.empty else selected).iterrows():
        if row["training_kind"] != "command":
            spent = {
                task: row[[f"{part}_seconds" for part in parts]].sum()
                for task, parts in _TASKS.items()
            }
            columns = [f"{part}_seconds" for parts in _TASKS.values() for part in parts]
            least = "at least " * bool(row[columns].isna().any())
            yield _most(row, spent, row["wall_seconds"], "the training steps", least)
        # Outside a whole run there is nothing.
        elif row["workload"] not in whole:
            yield _beside_epochs(row)


def _most(
    row: pd.Series, spent: Mapping[str, float], whole: float, what: str, least: str = ""
) -> str:
    """Describe the sum of some tasks; `least` is put before it if a part of it is unknown."""
    most = max(spent, key=spent.__getitem__)
    return (
        f"{quoted(row['label'])} spends {least}{sum(spent.values()):.1f} of {whole:.1f} s outside "
        f"{what}, most of it {most}."
    )


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
    return _most(row, spent, row["program_seconds"], "the epochs that count")
