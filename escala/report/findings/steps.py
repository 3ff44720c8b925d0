"""Describe how the time of a training step is divided."""

from __future__ import annotations

import pandas as pd

from escala.analysis.attribution import OVERLAP, PARTS, UNEXPLAINED, WHOLE
from escala.report.findings.words import Tables, joined, with_labels
from escala.report.tables.views import trained_by_steps

POSITION = 40

_PART_NAMES = {
    "input": "on input",
    "dispatch": "entering and leaving the compiled step",
    "compute": "computing forward and backward",
    "optimiser": "in the optimiser",
    "skew": "waiting for the slowest rank",
    "transfer": "in transfer and reduction",
    "copies": "copying to and from fusion buffers",
    "negotiation": "in negotiation and cycles",
}
#: Parts of a step are named from this share of it on.
SHARE_NAMED = 0.005


def sentence(tables: Tables, name: str) -> str:
    """Describe how the time of a step of rank 0 is divided, if its clocks were read."""
    tables = trained_by_steps(tables)
    table = tables["attribution"].dropna(subset=["part"])
    if table.empty:
        return ""
    named = with_labels(table[table["rank"] == 0], tables)
    shown = [
        _shares(label, parts) + _more(parts) for label, parts in named.groupby("label", sort=False)
    ]
    return f"Within a training step (medians, rank 0), {'; '.join(shown)}."


def _more(parts: pd.DataFrame) -> str:
    """Describe how the parts of a step differ from those of the main reference."""
    by_part = parts.set_index("part")
    own, other = by_part["median_seconds"], by_part["reference_median_seconds"]
    if pd.isna(other[WHOLE]):
        return ""
    more, overlap = 1000 * (own - other), 1000 * own[OVERLAP]
    most = more.reindex(PARTS).dropna().sort_values(key=abs, ascending=False)
    named = most[most.abs() >= 1000 * SHARE_NAMED * own[WHOLE]]
    said = [f"{ms:+.1f} ms {_PART_NAMES[part]}" for part, ms in named.items()]
    return (
        f" ({more[WHOLE]:+.1f} ms against {parts['reference_label'].iloc[0]}"
        + (f": {', '.join(said)}" if said else "")
        + (f"; {overlap:.1f} ms of exchange go on beside these" if overlap > 0 else "")
        + ")"
    )


def _shares(label: str, parts: pd.DataFrame) -> str:
    by_part = parts.set_index("part")
    whole, unexplained = by_part.loc[WHOLE], by_part.loc[UNEXPLAINED]
    shares = by_part["share"].reindex(PARTS).dropna().sort_values(ascending=False)
    said = [
        f"{100 * share:.0f} % {_PART_NAMES[part]}"
        for part, share in shares.items()
        if share >= SHARE_NAMED
    ]
    slowdown = (
        "" if pd.isna(whole.slowdown) else f", {whole.slowdown:.2f} times that of timing runs"
    )
    rest = (
        "the rest is unavailable" if pd.isna(unexplained.share)
        else f"and {100 * unexplained.share:.1f} % are unexplained"
    )  # fmt: skip
    step = f"{1000 * whole.median_seconds:.1f} ms{slowdown}"
    return f"{label} spends of {step}, {joined(said)}, {rest}"
