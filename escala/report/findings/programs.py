"""Tell how the epochs of programs, which are run as they are, are known, and what is not known."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.comparable import SAME_ROWS
from escala.programs.marks import HOOK, OUTPUT, WHOLE
from escala.report.findings.best_use import answers
from escala.report.findings.words import Finding, Tables, joined, quoted, sentence, with_labels
from escala.report.tables.views import named_by, programs

POSITION = 11
SECTION = "answer"

_KNOWN = {
    HOOK: "its epochs are known by its hook",
    OUTPUT: "its epochs are known by its output",
    WHOLE: "it tells of no epochs, so its times are of whole runs, start-up included",
}
#: What a program takes from its command, with the placeholders of which it needs one.
_VARIED = {"batch": ("rows", "rows_of_rank"), "epochs": ("epochs",), "seed": ("seed",)}


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe each program: how its times are known, what is unavailable, and what is its own."""
    runs = tables["runs"][tables["runs"]["current"]]
    answer = [row.workload for row in answers(tables)[:1]]
    for workload in programs(tables):
        program_runs = runs[runs["workload"] == workload]
        ok = program_runs[program_runs["status"] == "ok"]
        if ok.empty:
            continue
        for text, first in _known(workload, ok, tables):
            yield Finding(sentence(text), "runs", first=first and workload in answer)
        if ok["ranks"].max() > 1:
            yield Finding(sentence(_divided(workload, tables)), "epochs")


def _known(workload: str, ok: pd.DataFrame, tables: Tables) -> Iterator[tuple[str, bool]]:
    """Tell what is known of a program and what is not, and whether the first screen tells it."""
    ways = [_KNOWN[way] for way in _KNOWN if (ok["known_by"] == way).any()]
    first = ", without the first" if ok["first_epoch_seconds"].notna().any() else ""
    yield f"{quoted(workload)} is a program, run as it is: {joined(ways)}{first}", False
    scored = (tables["scores"]["workload"] == workload).any()
    has_no_rows, has_no_steps = (
        ok[name].isna().any() for name in ("samples_per_second", "step_median_seconds")
    )
    unknown = [
        "whether its processes end with the same weights",
        *["rows of an epoch"] * bool(has_no_rows),
        "time and parts of a step" if has_no_steps else "parts of a step",
        *["scores"] * (not scored),
    ]
    yield f"not known of {quoted(workload)}: {joined(unknown)}", True
    if WHOLE in set(ok["known_by"]):
        start = f"how much of a run of {quoted(workload)} is its start, such as imports"
        yield f"{start}, is not known", True
    own = [what for what, names in _VARIED.items() if named_by(ok).isdisjoint(names)]
    if own:
        missing = joined([f"`{{{_VARIED[what][0]}}}`" for what in own])
        names = "names none of" if len(own) > 1 else "does not name"
        decides = f"{quoted(workload)} decides on its {joined(own)}"
        yield f"{decides}: its command {names} {missing}", False


def _rows_of_epochs(epochs: pd.DataFrame, keys: list[str]) -> pd.Series:
    """Return the median rows of the epochs of current runs that ended ok, if they are known."""
    epochs = epochs[epochs["current"] & (epochs["status"] == "ok")]
    return epochs.groupby(keys, sort=False)["rows"].median().dropna()


def _are_alike(one: float, other: float) -> bool:
    return max(one, other) <= (1 + SAME_ROWS) * min(one, other)


def _divided(workload: str, tables: Tables) -> str:
    """Compare the rows of an epoch of one process and of several, if the program tells them."""
    epochs = with_labels(tables["epochs"], tables)
    epochs = epochs[(epochs["workload"] == workload) & (epochs["status"] == "ok")]
    rows = _rows_of_epochs(epochs, ["label"])
    if len(rows) < epochs["label"].nunique() or rows.empty:
        return (
            f"whether several processes divide the work of {quoted(workload)}, or each do all of "
            "it, is unavailable"
        )
    least, most = rows.idxmin(), rows.idxmax()
    if not _are_alike(rows[most], rows[least]):
        return (
            f"not the same work: an epoch of {quoted(most)} has {rows[most]:.0f} rows, and one of "
            f"{quoted(least)} {rows[least]:.0f}"
        )
    return f"an epoch of {quoted(workload)} has {rows[most]:.0f} rows, in every configuration"
