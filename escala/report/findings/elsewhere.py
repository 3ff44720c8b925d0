"""Describe the time that runs spend outside their training steps."""

from __future__ import annotations

from escala.report.findings.words import Tables, with_labels
from escala.report.tables.views import any_ok, is_main_reference, trained_by_steps

POSITION = 30


def sentence(tables: Tables, name: str) -> str:
    """Describe the time outside the steps, of each main reference and the fastest other."""
    tables = trained_by_steps(tables)
    timed = with_labels(tables["configurations"], tables)
    timed = timed[timed["kind"] != "unavailable"]
    if tables["runs"].empty:
        return "No workload was trained over epochs."
    if timed.empty:
        why = "no run ended ok" + " at one sitting" * any_ok(tables)
        return f"Where the time goes outside the training steps is unavailable: {why}."
    shown = []
    for _, group in timed.groupby(["dataset", "workload"], sort=False):
        main = is_main_reference(group, tables["configurations"])
        others = group[~main].sort_values("train_seconds_per_epoch")
        shown += [*group[main].head(1).itertuples(), *others.head(1).itertuples()]
    return "Outside the training steps (medians, measured), " + "; ".join(map(_parts, shown)) + "."


def _parts(row) -> str:
    compiling = row.first_step_seconds + row.first_prediction_seconds
    rest = row.loading_seconds + row.build_seconds + row.broadcast_seconds + row.save_seconds
    return (
        f"{row.label} spends {row.startup_seconds:.1f} s starting up, {compiling:.1f} s in the "
        f"first steps and the first prediction, which compile, {row.evaluation_seconds:.1f} s in "
        f"the evaluation and {rest:.1f} s loading, building, broadcasting and saving, of "
        f"{row.wall_seconds:.1f} s in all"
    )
