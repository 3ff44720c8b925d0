"""Tell whether networks learn: by the largest class of the test rows, and by the baselines.

The times of a network that learns nothing say little about training.
"""

from __future__ import annotations

from collections.abc import Iterator

from escala.analysis.rates import DOES_NOT_LEARN, UNKNOWN, learning
from escala.core.readable import in_words
from escala.report.findings.best_use import shown
from escala.report.findings.words import Finding, Tables, among, quoted, with_labels
from escala.report.tables.views import names_of_rows

POSITION = 59
SECTION = "scores"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Name what learns nothing, and what a baseline is better than, of what answers."""
    several = tables["configurations"]["dataset"].nunique() > 1
    rows = among(with_labels(tables["configurations"], tables), shown(tables))
    for (dataset, workload), group in rows.groupby(["dataset", "workload"], sort=False):
        found = {
            label: (names, each)
            for label, names in zip(group["label"], names_of_rows(group), strict=True)
            if (each := learning(tables, names)).kind != UNKNOWN
        }
        if not found:
            continue
        on = f" on {quoted(dataset)}" if several else ""
        best = max(found, key=lambda label: found[label][1].accuracy)
        failing = [label for label in found if found[label][1].kind == DOES_NOT_LEARN]
        for label in [best] if len(failing) == len(found) else failing:
            names, each = found[label]
            under = f" under {quoted(label)}" if len(failing) < len(found) else ""
            subject = f"{quoted(workload)}{under}{on}"
            epochs = int(among(tables["runs"], {names})["epochs_done"].max())
            for text in (
                f"{subject} reaches an accuracy of {each.accuracy:.2f} after {in_words(epochs)} "
                f"epoch{'s' * (epochs > 1)}; always naming the largest class gives "
                f"{each.largest_class:.2f}.",
                f"The times of {subject} are those of a network that does not learn.",
            ):
                yield Finding(text, "configurations", "mean_scores", first=True)
        each = found[best][1]
        if each.baseline is not None and each.baseline > each.high:
            text = (
                f"{quoted(each.workload)} reaches an accuracy of {each.baseline:.2f}{on}, and "
                f"{quoted(workload)} at most {each.accuracy:.2f}."
            )
            yield Finding(text, "configurations", "mean_scores", first=True)
