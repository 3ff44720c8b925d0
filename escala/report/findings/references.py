"""Compare the configurations that answer with the references besides the main one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from escala.analysis.verdicts import FASTER, NO_VERDICT, SLOWER
from escala.report.findings.compared import Compared, interval, rows_of
from escala.report.findings.verdicts import answering
from escala.report.findings.words import Finding, Tables, of, quoted, sentence, with_labels
from escala.report.tables.views import same_batch, trained_by_steps

POSITION = 12
SECTION = "answer"
LESS_OR_MORE = {FASTER: "less", SLOWER: "more"}


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Compare with each further reference, and this reference with the main one."""
    tables_by_steps = trained_by_steps(tables)
    rows: defaultdict[tuple, list[Compared]] = defaultdict(list)
    for row in rows_of(with_labels(tables_by_steps["speedup"], tables_by_steps)):
        rows[row.names].append(row)
    for answer in answering(tables):
        for row in rows[answer.names]:
            if row.reference == 1:
                continue
            yield _finding(_comparison(row, row.unit(tables)))
            for other in rows[row.reference_names]:
                if other.reference == 1 and other.kind != "unavailable":
                    yield _finding(_compared_with_main(other))


def _finding(text: str) -> Finding:
    return Finding(sentence(text), "speedup", "speedup")


def _comparison(row: Compared, unit: str) -> str:
    """Compare a configuration with a reference other than the main one.

    Parameters
    ----------
    unit : the word for what the times are of.
    """
    subject, other = quoted(row.label), quoted(row.reference_label)
    if row.kind == "unavailable":
        return f"{subject} has no ratio to {other}: {quoted(row.reason)}"
    ratio = row.epochs
    fraction, bounds = f"{ratio.value:.2f} {of(ratio.value)}", interval(ratio)
    if not same_batch(row):
        return (
            f"{subject} takes {fraction} the time per {unit} of {other}{bounds}, with "
            "different batches"
        )
    found = row.on_its_own
    if found.verdict == NO_VERDICT:
        return f"{found.brief}: {subject} takes {fraction} the time of {other}{bounds}"
    if found.verdict in LESS_OR_MORE:
        less = LESS_OR_MORE[found.verdict]
        return f"{subject} takes {less} time than {other}: {fraction} it{bounds}"
    return f"{subject} and {other} are {found.verdict}: {fraction} the time{bounds}"


def _compared_with_main(row: Compared) -> str:
    """Compare a reference with the main one."""
    ratio = row.epochs
    return (
        f"{quoted(row.label)} takes {ratio.value:.2f} {of(ratio.value)} the time of "
        f"{quoted(row.reference_label)}{interval(ratio)}"
    )
