"""Compare the configurations that answer with the references besides the main one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from escala.report.findings.verdicts import (
    NO,
    NOT_DISTINGUISHABLE,
    YES,
    answering,
    interval,
    names_of_reference,
    of_epochs,
    own_names,
    processes,
    take,
)
from escala.report.findings.words import Finding, Tables, quoted, sentence, with_labels
from escala.report.tables.views import trained_by_steps

POSITION = 12
SECTION = "answer"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Compare with each further reference, and this reference with the main one."""
    of_steps = trained_by_steps(tables)
    speedup = with_labels(of_steps["speedup"], of_steps)
    rows = defaultdict(list)
    for row in speedup.itertuples():
        rows[own_names(row)].append(row)
    for answer in answering(tables):
        for row in rows[own_names(answer)]:
            if row.reference == 1:
                continue
            yield _finding(_comparison(row))
            for other in rows[names_of_reference(row)]:
                if other.reference == 1 and other.kind != "unavailable":
                    yield _finding(_of_reference(other))


def _finding(text: str) -> Finding:
    return Finding(sentence(text), "speedup", "speedup")


def _comparison(row) -> str:
    """Compare a configuration with a reference other than the main one."""
    label = quoted(row.reference_label)
    if row.kind == "unavailable":
        return f"{quoted(row.label)} has no ratio to {label}: {quoted(row.reason)}"
    found, subject = of_epochs(row), processes(row)
    other, bounds = f"{processes(row, 'reference_')} ({label})", interval(found)
    if row.global_batch != row.reference_global_batch:
        return (
            f"{subject} {take(row)} {found.ratio:.2f} of the time per epoch of {other}{bounds}, "
            "with different batches"
        )
    if found.verdict in (YES, NO):
        less = "less" if found.verdict == YES else "more"
        return f"{subject} {take(row)} {less} time than {other}: {found.ratio:.2f} of it{bounds}"
    if found.verdict == NOT_DISTINGUISHABLE:
        return (
            f"{subject} and {other} are not distinguishable: {found.ratio:.2f} of the time{bounds}"
        )
    return (
        f"{found.verdict}: {subject} {take(row)} {found.ratio:.2f} of the time of {other}{bounds}"
    )


def _of_reference(row) -> str:
    """Compare a reference with the main one."""
    found = of_epochs(row)
    return (
        f"{processes(row)} ({quoted(row.label)}) {take(row)} {found.ratio:.2f} of the time of "
        f"{processes(row, 'reference_')}{interval(found)}"
    )
