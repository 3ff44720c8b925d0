"""Tell whether networks learn: by the largest class of the test rows, and by the baselines.

The times of a network that learns nothing say little about training.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from escala.analysis.rates import rate_interval
from escala.core.readable import in_words
from escala.report.findings.best_use import shown
from escala.report.findings.words import Finding, Tables, among, quoted, with_labels
from escala.report.tables.views import names_of_rows

POSITION = 59
SECTION = "scores"
LEARNS, DOES_NOT_LEARN, UNKNOWN = "learns", "does not learn", "unknown"


class Learning(NamedTuple):
    """Whether a configuration learns; numbers are None where they are unknown.

    Attributes
    ----------
    kind : `LEARNS` if the interval of the accuracy is above `largest_class`, else `DOES_NOT_LEARN`;
        `UNKNOWN` without classes, without an accuracy of whole epochs, and of a program, which may
        call anything its accuracy.
    accuracy, low, high : the median over runs, with Wilson's 95 % interval over the test rows.
    largest_class : the fraction of the test rows that are of the largest class.
    baseline, workload : the best accuracy of a workload of the dataset that is fitted at once.
    """

    kind: str
    accuracy: float | None = None
    low: float | None = None
    high: float | None = None
    largest_class: float | None = None
    baseline: float | None = None
    workload: str | None = None


def learning(tables: Tables, names: tuple) -> Learning:
    """Return whether a configuration learns.

    Parameters
    ----------
    names : the values of `CONFIGURATION`.
    """
    configurations = tables["configurations"]
    row = among(configurations, {names}).dropna(subset=["accuracy"])
    rows = among(tables["pooled"], {names})["actual"]
    if row.empty or row["training_kind"].iloc[0] == "command" or not rows.sum():
        return Learning(UNKNOWN)
    interval = rate_interval(row["accuracy"].iloc[0] * rows.sum(), rows.sum())
    largest = float(rows.max() / rows.sum())
    is_fit = (configurations["training_kind"] == "fit") & (configurations["dataset"] == names[0])
    fits = configurations[is_fit].dropna(subset=["accuracy"]).sort_values("accuracy")
    best = fits[["accuracy", "workload"]].iloc[-1] if len(fits) else (None, None)
    return Learning(LEARNS if interval.low > largest else DOES_NOT_LEARN, *interval, largest, *best)


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
