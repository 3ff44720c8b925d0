"""Describe what the answer costs, in core time and in energy."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.report.findings.best_use import to_main
from escala.report.findings.compared import Compared, Ratio, interval, names_of_reference
from escala.report.findings.words import Finding, Tables, a, quoted, sentence
from escala.report.tables.energy import MODEL
from escala.report.tables.views import names_of_rows

POSITION = 50
SECTION = "cost"
_SECONDS_PER_HOUR = 3600


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Compare the core time, then the energy, with those of the reference."""
    rows = list(to_main(tables))
    for row in rows:
        if row.kind != "unavailable" and not pd.isna(row.efficiency):
            yield from _core_time(row, tables)
    table = tables["energy"]
    whole = table[table["basis"] == "all devices"]
    energies = dict(zip(names_of_rows(whole), whole.itertuples(), strict=True))
    for row in rows:
        if row.names in energies and (text := _energy(row, energies[row.names], tables)):
            yield Finding(text, "energy")


def _core_time(row: Compared, tables: Tables) -> Iterator[Finding]:
    """Compare the core time of an epoch and of a whole run with those of the reference."""
    label, reference = quoted(row.label), quoted(row.reference_label)
    cores = Ratio(1 / row.efficiency, 1 / row.efficiency_high, 1 / row.efficiency_low, row.matches)
    one = a(row.unit(tables))
    text = (
        f"{one} of {label} takes {cores.value:.2f} times the core time (cores × seconds) "
        f"of {one} of {reference}{interval(cores)}"
    )
    yield Finding(sentence(text), "speedup", "speedup")
    table = tables["configurations"]
    wall = dict(zip(names_of_rows(table), table["wall_seconds"] / _SECONDS_PER_HOUR, strict=True))
    mine = row.cores * wall[row.names]
    theirs = row.reference_cores * wall[row.reference_names]
    if not pd.isna(mine + theirs):
        yield Finding(
            f"A whole run of {label} takes {mine:.2g} core-hours, and a run of {reference} "
            f"{theirs:.2g}.",
            "configurations",
        )


def _energy(row: Compared, energy, tables: Tables) -> str:
    """Compare the energy of an epoch with that of the reference, or say why it is unavailable.

    Parameters
    ----------
    energy : the row of the table `energy` of all devices.
    """
    label = quoted(row.label)
    if energy.kind == "unavailable":
        return f"The energy of {label} is unavailable: {quoted(energy.reason)}."
    if not energy.matches or names_of_reference(energy) != row.reference_names:
        return ""
    ratio = Ratio(
        energy.energy_ratio, energy.energy_ratio_low, energy.energy_ratio_high, energy.matches
    )
    verb = "takes" if energy.kind == "measured" else "is estimated to take"
    one = a(row.unit(tables))
    model = " by the stated power model" if energy.source == MODEL else ""
    return sentence(
        f"{one} of {label} {verb} {ratio.value:.2f} times the energy of "
        f"{one} of {quoted(row.reference_label)}{model}{interval(ratio)}"
    )
