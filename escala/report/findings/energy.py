"""Tell which configuration takes the least energy, as far as energy was measured."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.verdicts import FASTER, NO_VERDICT, SLOWER
from escala.core.readable import counted
from escala.report.findings.compared import Ratio, interval, names_of_reference
from escala.report.findings.words import Finding, Tables, a, quoted, sentence, with_labels
from escala.report.tables.energy import MODEL
from escala.report.tables.views import is_among, names_of_rows, unit

POSITION = 51
SECTION = "cost"
QUESTION = "energy"
ASKS = "Which configuration takes the least energy?"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Compare the least energy of an epoch with that of the main reference, or say why not."""
    table = with_labels(tables["energy"], tables)
    configurations = tables["configurations"]
    others = configurations.loc[configurations["other_model"].notna()]
    whole = table[(table["basis"] == "all devices") & ~is_among(table, {*names_of_rows(others)})]
    for (dataset, workload), rows in whole.groupby(["dataset", "workload"], sort=False):
        task = f"{dataset} {workload} "
        known = rows[rows["kind"] != "unavailable"]
        others = known[known["matches"] > 0]
        others = others[[n != names_of_reference(r) for n, r in _named(others)]]
        if known.empty:
            row = rows.iloc[0]
            text = f"the energy of {quoted(row['label'])} is unavailable: {quoted(row['reason'])}"
            yield Finding(sentence(text), "energy", task=task)
        elif not others.empty:
            least = others.loc[others["energy_ratio"].idxmin()]
            yield Finding(sentence(_least(least, tables)), "energy", task=task)


def _named(rows: pd.DataFrame) -> Iterator[tuple]:
    return zip(names_of_rows(rows), rows.itertuples(), strict=True)


def _least(row: pd.Series, tables: Tables) -> str:
    ends = (row[f"energy_ratio{end}"] for end in ("", "_low", "_high"))
    ratio = Ratio(*ends, int(row["matches"]))
    verdict = f"{row['verdict']}: "
    if row["verdict"] == NO_VERDICT:
        verdict = f"no verdict from {counted(ratio.matches, 'paired run')}: "
    elif row["verdict"] in (FASTER, SLOWER):
        verdict = ""
    verb = "takes" if row["kind"] == "measured" else "is estimated to take"
    model = " by the stated power model" if row["source"] == MODEL else ""
    one = a(unit(tables, row["workload"]))
    return (
        f"{verdict}{one} of {quoted(row['label'])} {verb} {ratio.value:.2f} times the energy of "
        f"{one} of {quoted(row['reference_label'])}{model}{interval(ratio)}"
    )
