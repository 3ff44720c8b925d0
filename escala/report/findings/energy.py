"""Describe what the answer costs in energy."""

from __future__ import annotations

from collections.abc import Iterator

from escala.report.findings.verdicts import (
    Ratio,
    answering,
    interval,
    names_of_reference,
    names_of_rows,
    own_names,
)
from escala.report.findings.words import Finding, Tables, a, quoted, sentence
from escala.report.tables.energy import MODEL
from escala.report.tables.views import unit

POSITION = 51
SECTION = "cost"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Compare the energy of an epoch with that of the reference, or say why it is unavailable."""
    table = tables["energy"]
    whole = table[table["basis"] == "all devices"]
    of = dict(zip(names_of_rows(whole), whole.itertuples(), strict=True))
    for row in answering(tables):
        energy = of.get(own_names(row))
        if energy is None:
            continue
        label = quoted(row.label)
        if energy.kind == "unavailable":
            why = quoted(energy.reason)
            yield Finding(f"The energy of {label} is unavailable: {why}.", "energy")
        elif energy.pairs and names_of_reference(energy) == names_of_reference(row):
            ratio = Ratio(
                energy.energy_ratio, energy.energy_ratio_low, energy.energy_ratio_high, energy.pairs
            )
            verb = "takes" if energy.kind == "measured" else "is estimated to take"
            model = " by the stated power model" if energy.source == MODEL else ""
            yield Finding(
                sentence(
                    f"{a(unit(tables, row.workload))} of {label} {verb} {ratio.value:.2f} times "
                    f"the energy of one of {quoted(row.reference_label)}{model}{interval(ratio)}"
                ),
                "energy",
            )
