"""Describe how good the models are, whether they learn, and what their scores depend on."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.comparable import CONFIGURATION
from escala.analysis.rates import DOES_NOT_LEARN, UNKNOWN, judge_learning
from escala.analysis.statistics import MATCHES_FOR_INTERVAL
from escala.analysis.verdicts import SAME, Ratio
from escala.core.readable import in_words, with_interval, with_noun
from escala.experiment.runs import MAIN
from escala.programs.marks import BEST
from escala.record.collect import MOST_CLASSES
from escala.report.findings.context import Report
from escala.report.findings.words import (
    Finding,
    Names,
    among,
    join_words,
    list_names,
    quote,
    significant,
    span,
)
from escala.report.tables.scores import ACCURACY
from escala.report.tables.views import (
    add_labels,
    all_programs,
    any_ok,
    classes_without_tests,
    names_of_rows,
    placeholders_of,
    programs,
)

#: The columns that name a configuration and a reference.
COMPARED = (*CONFIGURATION, "reference")
#: Table and figure of scores by class.
_BY_CLASS = "pooled", "classification_reports"


def learns(report: Report) -> Iterator[Finding]:
    """Tell whether the configurations that findings describe learn, and more than a baseline.

    If they learn nothing, their times say little about training.
    """
    several = report.tables["configurations"]["dataset"].nunique() > 1
    rows = among(report.table("configurations"), report.shown)
    for (dataset, workload), group in rows.groupby(["dataset", "workload"], sort=False):
        names_of = dict(zip(group["label"], names_of_rows(group), strict=True))
        by_label = {label: judge_learning(report.tables, key) for label, key in names_of.items()}
        by_label = {label: one for label, one in by_label.items() if one.kind != UNKNOWN}
        if not by_label:
            text = (
                f"whether {quote(workload)} learns is not judged: no accuracy over classes is known"
            )
            yield Finding(text, "configurations", first=True)
            continue
        on, texts = f" on {quote(dataset)}" if several else "", []
        best = max(by_label, key=lambda label: by_label[label].accuracy)
        failing = [label for label, one in by_label.items() if one.kind == DOES_NOT_LEARN]
        for label in [best] if len(failing) == len(by_label) else failing:
            learning = by_label[label]
            under = f" under {report.names(label)}" * (len(failing) < len(by_label))
            subject = f"{quote(workload)}{under}{on}"
            runs = among(report.tables["runs"], {names_of[label]})
            epochs = int(runs["epochs_done"].max())
            texts += [
                f"{subject} reaches an accuracy of {learning.accuracy:.2f} after "
                f"{in_words(epochs)} epoch{'s' * (epochs > 1)}; always naming the largest class "
                f"gives {learning.largest_class:.2f}",
                f"the times of {subject} are of a model that does not learn",
            ]
        learning = by_label[best]
        if learning.kind != DOES_NOT_LEARN:
            texts.append(
                f"{quote(workload)} learns{on}: an accuracy of {learning.accuracy:.2f}, where "
                f"always naming the largest class gives {learning.largest_class:.2f}"
            )
        if learning.baseline is not None and learning.baseline > learning.high:
            texts.append(
                f"{quote(learning.baseline_workload)} reaches an accuracy of "
                f"{learning.baseline:.2f}{on}, and {quote(workload)} at most "
                f"{learning.accuracy:.2f}"
            )
        for text in texts:
            yield Finding(text, "configurations", "mean_scores", first=True)


def accuracies(report: Report) -> Iterator[Finding]:
    """Describe the accuracy of each workload on each dataset, or tell why there are no scores."""
    tables = report.tables
    rows = pd.concat([tables[name][["dataset", "leaky"]] for name in ("reports", "scores")])
    if rows.empty:
        why = "no run ended ok"
        if any_ok(tables) and all_programs(tables):
            why = f"{list_names(programs(tables))} reported none"
        elif any_ok(tables):
            why = "no run that ended ok trained over whole epochs"
        yield Finding(f"the scores are unavailable: {why}", "runs", "mean_scores")
    for dataset in sorted(rows.loc[rows["leaky"].astype(bool), "dataset"].unique()):
        text = f"scores on {quote(dataset)} are too good, because its split is leaky"
        yield Finding(text, "runs", "mean_scores")
    scored = add_labels(tables["configurations"], tables["runs"]).dropna(subset=["accuracy"])
    for (dataset, workload), group in scored.groupby(["dataset", "workload"], sort=False):
        worst, best = group.loc[group["accuracy"].idxmin()], group.loc[group["accuracy"].idxmax()]
        low, high = (f"{row.accuracy:.3f}" for row in (worst, best))
        values = low
        if low != high:
            values = f"{low} ({report.names(worst.label)}) to {high} ({report.names(best.label)})"
        text = f"the median accuracy of {quote(workload)} on {quote(dataset)} is {values}"
        compares = tuple(
            report.names.comparison(
                row.label,
                row.reference_label,
                "difference of mean accuracy",
                Ratio(row.difference, row.low, row.high, row.matches),
                0.0,
            )
            for row in over_repeats(report).itertuples()
            if (row.dataset, row.workload, row.score) == (dataset, workload, ACCURACY)
            and row.reference == MAIN
        )
        yield Finding(text, "configurations", "mean_scores", compares=compares)


def worst_classes(report: Report) -> Iterator[Finding]:
    """Name the classes of the lowest precision and of the lowest recall."""
    pooled = report.without_fits.table("pooled")
    for rate in ("precision", "recall") if len(pooled) else ():
        known, value = pooled.dropna(subset=[rate]), "unavailable"
        if len(known):
            row = known.loc[known[rate].idxmin()]
            number = with_interval(*row[[rate, f"{rate}_low", f"{rate}_high"]], ".3f")
            value = f"{number}, that of {quote(row['class'])} under {report.names(row['label'])}"
        yield Finding(f"the lowest {rate} of a class is {value}", *_BY_CLASS)


def differences(report: Report) -> Iterator[Finding]:
    """Describe how scores differ from those of the main reference.

    With enough paired runs, the intervals are over repeats, which differ in their seeds. With
    fewer, the intervals are over the test rows, for the trained models only: other seeds would
    give other models and other differences.
    """
    report = report.without_fits
    repeats, tables = over_repeats(report), report.tables
    runs = dict(list(tables["runs"].groupby("workload")))
    unseeded = [name for name in programs(tables) if "seed" not in placeholders_of(runs[name])]
    is_seeded, is_one_split = ~repeats["workload"].isin(unseeded), repeats["splits"] == 1
    bound_clause = "no mean score differs from that of {references} by more than {bound}"
    for what_varies, rows in (
        ("seeds only", repeats[is_one_split & is_seeded]),
        ("seeds and splits", repeats[~is_one_split & is_seeded]),
        ("repeats", repeats[~is_seeded]),
    ):
        # For each score, the comparison of the fewest paired runs leaves the largest uncertainty.
        same, clauses = rows[(rows["reference"] == MAIN) & (rows["verdict"] == SAME)], []
        for score, of_score in same.groupby("score", sort=False):
            row = of_score.loc[of_score["matches"].idxmin()]
            pairs = f"paired runs within {row['bound']:g}" if row["bound"] else "equal paired runs"
            clauses.append(
                f"{in_words(row['matches'])} {pairs} do not exclude a larger difference of "
                f"{quote(score)} in up to {100 * row['beyond_bound_fraction']:.0f} % of runs"
            )
        for clause in (*clauses, *_describe_differences(rows, bound_clause, "score", report.names)):
            yield Finding(f"over {what_varies}, {clause}", "mean_scores", "mean_scores")
    bound_clause = "no class differs from {references} by more than {bound} in precision or recall"
    over_test_rows = _over_test_rows(report, repeats)
    for clause in _describe_differences(over_test_rows, bound_clause, "rate", report.names):
        text = f"over test rows only, {clause}"
        yield Finding(text, "score_differences", "classification_reports")


def _over_test_rows(report: Report, repeats: pd.DataFrame) -> pd.DataFrame:
    """Return the differences of precision and recall by class, with the columns of `over_repeats`.

    Parameters
    ----------
    repeats : the result of `over_repeats`; its comparisons are left out.
    """
    over, scores = set(names_of_rows(repeats, COMPARED)), report.table("score_differences")
    is_left = [names not in over for names in names_of_rows(scores, COMPARED)]
    scores = scores[pd.Series(is_left, scores.index, bool)]
    rates = [
        scores.assign(
            what=[f"{rate} of {quote(name)}" for name in scores["class"]],
            low=scores[f"{rate}_difference_low"],
            high=scores[f"{rate}_difference_high"],
        )
        for rate in ("precision", "recall")
    ]
    return pd.concat(rates, ignore_index=True).dropna(subset=["low", "high"])


def over_repeats(report: Report) -> pd.DataFrame:
    """Return the differences of `mean_scores` that have enough paired runs, with labels.

    The column `what` has the score in words, and `low` and `high` have the interval.
    """
    means = report.table("mean_scores")
    means = means[means["matches"] >= MATCHES_FOR_INTERVAL]
    return means.assign(
        what=[f"mean {quote(name)}" for name in means["score"]],
        low=means["difference_low"],
        high=means["difference_high"],
    )


def _describe_differences(
    rows: pd.DataFrame, bound_clause: str, noun: str, names: Names
) -> Iterator[str]:
    """Bound the differences from the main reference, and name the largest that excludes 0.

    Parameters
    ----------
    rows : as `over_repeats` returns them.
    bound_clause : on the largest difference, to be formatted with `references` and `bound`.
    noun : the word for what differs.
    """
    # Equal differences have no interval.
    known = rows[rows["reference"] == MAIN].dropna(subset=["low", "high"]).reset_index(drop=True)
    if known.empty:
        return
    bounds = known[["low", "high"]].abs().max(axis=1)
    references = list_names(known["reference_label"].unique(), write=names)
    yield bound_clause.format(references=references, bound=significant(bounds.max()))
    excluded = bounds[(known["low"] > 0) | (known["high"] < 0)]
    if len(excluded):
        row = known.loc[excluded.idxmax()]
        low, high = (significant(row[end], signed=True) for end in ("low", "high"))
        others = f", like {with_noun(len(excluded) - 1, f'further {noun}')}" * (len(excluded) > 1)
        yield (
            f"the {row['what']} under {names(row['label'])} differs from that under "
            f"{names(row['reference_label'])} ({low} to {high}){others}"
        )


def workload_scores(report: Report) -> Iterator[Finding]:
    """Describe each score that a workload defines itself, by its medians."""
    scores = report.table("scores").groupby("score", sort=False)
    by_score = {name: rows.groupby("label", sort=False)["value"].median() for name, rows in scores}
    for name, medians in by_score.items():
        # If the best value of a program's score is the last value, it tells nothing new.
        if name.startswith(BEST) and medians.equals(by_score.get(name.removeprefix(BEST))):
            continue
        low, high = medians.idxmin(), medians.idxmax()
        values = f"{medians[low]:.4g} for {report.names(low)}"
        if len(medians) > 1 and medians[low] == medians[high]:
            values = f"{medians[low]:.4g} for every configuration"
        elif low != high:
            values += f" and {medians[high]:.4g} for {report.names(high)}"
        text = f"the median of {quote(name)} is {values}"
        yield Finding(text, "scores", "mean_scores")


def classes_without_scores(report: Report) -> Iterator[Finding]:
    """Tell which datasets and classes have no scores by class, and why."""
    for dataset, levels in report.tables["reports"].groupby("dataset", sort=False)["level"]:
        if "class" not in set(levels):
            text = (
                f"scores of single classes of {quote(dataset)} are not kept, because there are "
                f"more than {MOST_CLASSES}; `predictions.npy` of a run has the class of each row"
            )
            yield Finding(text, "reports", "mean_scores")
    if unscored := classes_without_tests(report.tables["pooled"]):
        text = f"there are no test rows, and hence no scores, of {list_names(unscored)}"
        yield Finding(text, *_BY_CLASS)


def baselines(report: Report) -> Iterator[Finding]:
    """Describe each score of each baseline, which has no model, by its median over splits."""
    keys = ["dataset", "baseline", "score"]
    for names, values in report.tables["baselines"].groupby(keys, sort=False)["value"]:
        dataset, baseline, score = map(quote, names)
        text = f"on {dataset}, {score} of the baseline {baseline} is {values.median():.4g}"
        yield Finding(text, "baselines")


def largest_of_epochs(report: Report) -> Iterator[Finding]:
    """Describe the largest value of each score over the epochs of a run, and its epoch.

    For each score, only the configuration with the largest median over runs is named.
    """
    scores = report.table("epoch_scores")
    if scores.empty:
        return
    runs = [*CONFIGURATION, "repeat", "session"]
    largest = scores.loc[scores.groupby([*runs, "score"], sort=False)["value"].idxmax()]
    sides = join_words(sorted(scores["validated_on"].unique()))
    for score, score_rows in largest.groupby("score", sort=False):
        by_label = score_rows.groupby("label", sort=False)
        medians = by_label["value"].median()
        label = medians.idxmax()
        text = (
            f"by the {sides} rows, {quote(score)} is largest for {report.names(label)}: a median "
            f"of {medians[label]:.4g}, after epoch {span(by_label.get_group(label)['epoch'])}"
        )
        yield Finding(text, "epoch_scores", "accuracy_per_epoch")


def leakage(report: Report) -> Iterator[Finding]:
    """Describe, for each split, how scores depend on similar genomes in training."""
    tables, table, texts = report.tables, report.tables["leakage"], []
    if table.empty and not any_ok(tables) and not all_programs(tables):
        texts = [
            "what near-duplicates in training add to the scores is unavailable: no run ended ok"
        ]
    for name, group in table.groupby("dataset", sort=False):
        dataset, split_by = quote(name), quote(group["split_by"].iloc[0])
        fraction = 100 * group["similar_fraction"].median()
        # A fraction below 1 % is not shown as 0 %.
        number = f"{fraction:.0f} %" if fraction == 0 or fraction >= 1 else f"{fraction:.1g} %"
        texts.append(
            f"on {dataset}, split by {split_by}, {number} of the test rows have a near-duplicate "
            "in training"
        )
        for workload, runs in group.groupby("workload", sort=False):
            on_new_rows = runs["rest_accuracy"].dropna()
            on_new = "and unavailable on rows without near-duplicate, as there are none"
            if len(on_new_rows):
                on_new = f"and {on_new_rows.median():.3f} on rows without near-duplicate"
            on_all = f"{runs['accuracy'].median():.3f} on all test rows"
            texts.append(f"on {dataset}, the accuracy of {quote(workload)} is {on_all}, {on_new}")
        not_separable = sorted(set(";".join(group["not_separable"].dropna()).split(";")) - {""})
        if not_separable:
            classes = quote(", ".join(not_separable))
            texts.append(f"on {dataset}, {classes} cannot be separated and has no score")
    yield from (Finding(text, "leakage", "splits") for text in texts)
