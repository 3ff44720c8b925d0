"""Describe how the time of a training step is divided, or say that it was not measured."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pandas as pd

from escala.analysis.attribution import OFF_CORE, OVERLAP, WHOLE
from escala.analysis.best_use import MORE_DOES_NOT_PAY, PAYS, UNAVAILABLE, BestUse
from escala.analysis.verdicts import FASTER, NOT_DISTINGUISHABLE
from escala.core.environment import call
from escala.core.readable import in_words
from escala.probes.clocks import Clocks
from escala.programs.marks import HOOK
from escala.report.findings.best_use import answers, shown
from escala.report.findings.words import Finding, Tables, among, quoted, with_labels
from escala.report.tables.views import names_of_rows, programs, trained_by_steps
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES

POSITION = 20
SECTION = "why"

#: Runs with clocks explain a difference between timing runs only if they show the same one within
#: this factor. On two idle cores of a virtual machine seven equal runs differed by up to 1.33.
AGREES = 2.0

_CLOCKS = "clocks: {enabled: true}"
_PART_NAMES = {
    "input": "on input",
    "dispatch": "entering and leaving the step",
    "compute": "computing forward and backward",
    "optimiser": "in the optimiser",
    OFF_CORE: "off the core",
    "skew": "waiting for the slowest rank",
    "transfer": "in transfer and reduction",
    "copies": "copying to and from buffers",
    "negotiation": "in negotiation and cycles",
}


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe how the time of a step of rank 0 is divided, if its clocks were read.

    Where they were not, the reason of an answer is not known, and this comes before all else.
    """
    for row in _unmeasured(tables):
        yield Finding(_not_measured(row, tables), "attribution")
    pairs = [(answer, other) for answer in answers(tables) for other in answer.alternatives]
    quicker, tied = (
        {
            (quoted(answer.label), quoted(other.label))
            for answer, other in pairs
            if other.verdict == verdict
        }
        for verdict in (FASTER, NOT_DISTINGUISHABLE)
    )
    for label, parts in clocked(tables):
        for text in _texts(label, parts, quicker, tied):
            yield Finding(text, "attribution", "attribution")


def _unmeasured(tables: Tables) -> list[BestUse]:
    """Return the answers that were timed, with neither parts of a step nor a ladder."""
    measured = set(names_of_rows(tables["attribution"].dropna(subset=["part"])))
    explained = set(tables["ladder"]["workload"])
    return [
        row for row in answers(tables)
        if row.verdict != UNAVAILABLE
        and row.names not in measured and row.workload not in explained
    ]  # fmt: skip


def _not_measured(row: BestUse, tables: Tables) -> str:
    """Return a sentence: the reason of an answer was not measured, and how to measure it.

    Where no call can measure it, the sentence has the reason for that instead.
    """
    label = quoted(row.label)
    what = f"where the time of {label} goes"
    if row.verdict in (PAYS, MORE_DOES_NOT_PAY):
        what = f"why {label} takes less time than {quoted(row.closest.label)}"
    how = f"to see it, add `{_CLOCKS}` to the experiment, then call `{call('run -e FILE')}`"
    if row.workload in programs(tables):
        how = "parts of a program's step are not known"
        if HOOK in set(tables["runs"].loc[tables["runs"]["workload"] == row.workload, "known_by"]):
            how += "; `torch-trace: {enabled: true}` traces PyTorch's"
    elif not (ended := among(tables["attribution"], {row.names})["reason"].dropna()).empty:
        how = f"the run with clocks has no parts: {quoted(ended.iloc[0])}"
    elif (strategy := STRATEGIES.get(row.names[2])) and not strategy.waits():
        how = "its processes make no steps together"
    elif strategy and not strategy.records_for(Clocks.name):
        how = "its engine does not record when the parts of a step begin and end"
    return f"Not measured: {what}; {how}."


def clocked(tables: Tables) -> list[tuple[str, pd.DataFrame]]:
    """Return the parts of a step of rank 0 of the configurations that findings describe.

    Each is a quoted label with rows of the table `attribution`. If no configuration that answers
    has clocks, all configurations are returned that have.
    """
    tables = trained_by_steps(tables)
    table = with_labels(tables["attribution"].dropna(subset=["part"]), tables)
    table = table[table["rank"] == 0]
    if not among(table, {row.names for row in answers(tables)}).empty:
        table = among(table, shown(tables))
    groups = table.groupby("label", sort=False)
    return [(quoted(label), parts.set_index("part")) for label, parts in groups]


def _texts(
    label: str, parts: pd.DataFrame, quicker: Collection[tuple], tied: Collection[tuple]
) -> Iterator[str]:
    """Compare a step with the main reference, and name its largest part and its overlap.

    Parameters
    ----------
    quicker : pairs of quoted labels; by the answers, the first takes less time than the second.
    tied : pairs whose times cannot be told apart, so that there is nothing to explain.
    """
    pair = label, quoted(str(parts["reference_label"].iloc[0]))
    if pair not in tied and pair[::-1] not in tied:
        yield from _more(label, parts, quicker)
    fractions = parts["fraction"].reindex(_PART_NAMES).dropna()
    if not fractions.empty:
        part, text = fractions.idxmax(), ""
        if fractions[part] >= 1 - fractions.sum():  # What is not known may hide a larger part.
            text = f", {100 * fractions[part]:.0f} % of it {_PART_NAMES[part]}"
        yield f"A step of {label} takes {1000 * parts.loc[WHOLE, 'seconds']:.1f} ms{text}."
    overlap = 1000 * parts["seconds"].get(OVERLAP, 0.0)
    if overlap > 0:
        yield (
            f"In a step of {label}, {overlap:.1f} ms of exchange go on alongside other parts, and "
            "may slow them."
        )


def _more(label: str, parts: pd.DataFrame, quicker: Collection[tuple]) -> Iterator[str]:
    """Explain by how much a step differs from the main reference, if both were measured.

    The largest part that changed in the same direction is named. Where the runs with clocks show
    another difference than the timing runs, or these another one than the answer, nothing is
    explained.
    """
    more = 1000 * parts["difference_seconds"]
    first = parts.iloc[0]
    timed, part_differences = 1000 * first["timed_difference_seconds"], more.reindex(_PART_NAMES)
    if pd.isna(more[WHOLE]) or pd.isna(timed) or part_differences.isna().all():
        return
    reference, steps = quoted(first["reference_label"]), first["reference_steps"]
    agree = abs(timed) <= AGREES * abs(more[WHOLE]) and abs(more[WHOLE]) <= AGREES * abs(timed)
    opposite = (label, reference) if timed >= 0 else (reference, label)
    if more[WHOLE] * timed <= 0 or not agree or opposite in quicker:
        yield (
            f"How {label} differs from {reference} is not explained: a step takes "
            f"{_difference(timed)} in the timing runs, and {_difference(more[WHOLE])} with clocks."
        )
        return
    number = in_words(int(steps)) if steps == int(steps) else f"{steps:.2g}"
    than = f"{'a step' if steps == 1 else f'{number} steps'} of {reference}"
    text = f"A step of {label} takes {_difference(timed)} than {than}"
    part = (timed * part_differences).idxmax()
    unknown = more[WHOLE] - part_differences.sum()
    if timed * part_differences[part] > 0 and abs(part_differences[part]) >= abs(unknown):
        text += f": {_interval(parts, part)} {_PART_NAMES[part]}"
    yield f"{text}."
    runs = in_words(int(first["matches"])) + (" run" if first["matches"] == 1 else " runs")
    yield f"In {runs} with clocks, a step of {label} takes {_interval(parts, WHOLE)} than {than}."
    ranks = [Layout.parse(first[name]).ranks for name in ("layout", "reference_layout")]
    seconds = 1000 * parts.loc["compute", "seconds"]
    is_alike = first["variant"] == first["reference_variant"]
    if ranks[0] > ranks[1] and is_alike and not pd.isna(seconds - more["compute"]):
        share = (seconds - more["compute"]) * ranks[1] / ranks[0]
        yield (
            f"A step of {label} computes for {seconds:.1f} ms; an equal share of the computing of "
            f"{reference} would be {share:.1f} ms."
        )


def _interval(parts: pd.DataFrame, part: str) -> str:
    """Describe the difference of a part with its interval, in which less than none is negative."""
    more, low, high = (
        1000 * parts.loc[part, f"difference{end}_seconds"] for end in ("", "_low", "_high")
    )
    if pd.isna(low):
        return _difference(more)
    low, high = (low, high) if more >= 0 else (-high, -low)
    return f"{_difference(more)} ({low:.1f}{'–' if low >= 0 else ' to '}{high:.1f})"


def _difference(milliseconds: float) -> str:
    """Describe how much more or less time something takes."""
    return f"{abs(milliseconds):.1f} ms {'more' if milliseconds >= 0 else 'less'}"
