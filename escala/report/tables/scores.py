"""The tables of the data and of scores: of runs, over runs, as differences, and without a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from escala.analysis.comparable import Measurement, is_fit
from escala.analysis.rates import pool_rates, rate_differences
from escala.analysis.statistics import Interval, mean_interval
from escala.analysis.verdicts import equivalence
from escala.core.files import read_json
from escala.data import LEAKAGE, kind_of
from escala.experiment.runs import Configuration, references_for
from escala.report.tables import base
from escala.report.tables.base import Evidence, Tables

STAGES = ("records", "kept", "train", "balanced", "test")


def classes(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each class of each split whose rows are counted by class."""
    for split in map(read_json, map(Path, evidence.dataset_files)):
        for label, counts in split.get("counts", {}).items():
            yield {
                **{key: split[key] for key in ("dataset", "split_seed", *base.ABOUT)},
                "class": label,
                **{stage: counts.get(stage) for stage in STAGES},
            }


def baselines(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield each score that a dataset declares to be reached without any model."""
    for path in map(Path, evidence.dataset_files):
        split = read_json(path)
        about = {key: split[key] for key in ("dataset", "split_seed", *base.ABOUT)}
        for baseline, scores in split.get("baselines", {}).items():
            for score, value in scores.items():
                yield about | {"baseline": baseline, "score": score, "value": value}


def leakage(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield accuracy on test rows with and without a near-duplicate among the training rows.

    There is a row for each classified run whose dataset offers this audit. Alongside
    the dataset.json of its split are `test_labels.npy`, `test_similarity.npy` (float32, the
    similarity of each test row's genome to the most similar training genome, NaN if unknown) and
    `leakage.json`, with the `similarity` from which two genomes are near-duplicates.
    """
    splits = {}
    for path in map(Path, evidence.dataset_files):
        split = read_json(path)
        splits[split["dataset"], split["split_seed"]] = split, path.parent
    for run in evidence.classified:
        split, folder = splits[run["dataset"], run["data"]["split_seed"]]
        if LEAKAGE not in kind_of(split).audits:
            continue
        labels, similarity, predictions = (
            np.load(file, allow_pickle=False)
            for file in (
                folder / "test_labels.npy",
                folder / "test_similarity.npy",
                Path(run["file"]).with_name("predictions.npy"),
            )
        )
        # Rows that SMOTEN made on both sides of the split count as copies, and so do rows
        # of unknown similarity.
        limit = read_json(folder / "leakage.json")["similarity"]
        is_new, is_right = similarity < np.float32(limit), predictions == labels
        yield {
            **base.names_of(run),
            "split_by": split["split"]["by"],
            "not_separable": ";".join(split["not_separable"]) or None,
            "similarity": limit,
            "test_rows": len(labels),
            "similar_fraction": float((~is_new).mean()),
            "accuracy": float(is_right.mean()),
            "macro_f1": run["evaluation"]["macro"]["f1"],
            "rest_accuracy": float(is_right[is_new].mean()) if is_new.any() else None,
            **base.data_of(run),
        }


#: The score of every classification. A workload that defines scores has its scores instead.
ACCURACY = "accuracy"
#: Two accuracies count as the same if they differ by at most this. Other scores have an unknown
#: unit, and count as the same only if they are equal.
SAME_ACCURACY = 0.02

#: Pairs of a reference's run and a configuration's run.
Matches = Sequence[tuple[Measurement, Measurement]]


def scores(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield each score of a workload that defines scores, of each evaluated run."""
    for run in evidence.evaluated:
        for name, value in (run["evaluation"] or {}).get("scores", {}).items():
            yield base.names_of(run) | {"score": name, "value": value} | base.data_of(run)


def epoch_scores(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield each score that a workload gives after an epoch, of each evaluated run."""
    for run in evidence.evaluated:
        about = {"validated_on": run["training"]["validated_on"], **base.data_of(run)}
        for epoch in run["epochs"]:
            for name, value in epoch.get("scores", {}).items():
                row = {"epoch": epoch["epoch"], "score": name, "value": value}
                yield base.names_of(run) | row | about


def confusion(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each cell of the matrix of each run that is scored by class."""
    for run in evidence.scored_by_class:
        evaluation, about = run["evaluation"], base.names_of(run) | base.data_of(run)
        for true, row in zip(evaluation["classes"], evaluation["confusion_matrix"], strict=True):
            for predicted, count in zip(evaluation["classes"], row, strict=True):
                yield about | {"true_class": true, "predicted_class": predicted, "rows": count}


def reports(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield scores by class, their averages, and the accuracy of each classified run."""
    for run in evidence.classified:
        evaluation, about = run["evaluation"], base.names_of(run) | base.data_of(run)
        for label, class_scores in evaluation.get("per_class", {}).items():
            yield about | {"level": "class", "class": label} | class_scores
        for level in ("macro", "weighted"):
            yield about | {"level": level} | evaluation[level] | {"support": evaluation["rows"]}
        whole = {"accuracy": evaluation["accuracy"], "support": evaluation["rows"]}
        yield about | {"level": "accuracy"} | whole


def pooled(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield precision, recall and F1 of each class of each configuration, pooled over runs."""
    for names, runs in base.by_configuration(evidence.scored_by_class).items():
        splits = [run["data"]["split_seed"] for run in runs]
        matrices = [np.array(run["evaluation"]["confusion_matrix"]) for run in runs]
        rates = pool_rates(matrices, splits)
        for label, rate in zip(runs[0]["evaluation"]["classes"], rates, strict=True):
            # A class without test rows has no scores. Rows predicted as this class are errors of
            # their true classes.
            unknown = Interval(None, None, None)
            precision, recall = (rate.precision, rate.recall) if rate.actual else (unknown, unknown)
            rows = rate.predicted + rate.actual
            yield {
                **base.name_columns(names),
                "class": label,
                "runs": len(runs),
                "splits": len(set(splits)),
                **precision.columns("precision"),
                **recall.columns("recall"),
                "f1": 2 * rate.true_positives / rows if rate.actual else None,
                "true_positives": rate.true_positives,
                "predicted": rate.predicted,
                "actual": rate.actual,
                **base.data_of(runs[0], base.ABOUT),
            }


def mean_scores(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield the mean of each score of a configuration, and its difference from each reference.

    A repeat has one split and one seed of weights and order, so that the runs of a repeat differ by
    their configuration only. The intervals are Student's (1908, *The probable error of a mean*,
    Biometrika 6), over repeats. If all repeats have the same split, the intervals leave out the
    effect of test rows and training rows. Several splits share rows, so their intervals are rather
    too narrow.
    """
    groups = base.by_configuration(evidence.evaluated)
    for names, runs in groups.items():
        # All runs of a fit are in one process.
        references = [] if is_fit(runs[0]) else list(_references(names, runs, groups, evidence))
        for reference, matches in references or [({}, [])]:
            for score in dict.fromkeys(score for run in runs for score in scores_of(run)):
                with_score = [run for run in runs if score in scores_of(run)]
                scores = [scores_of(run)[score] for run in with_score]
                differences = [
                    scores_of(run)[score] - scores_of(reference_run)[score]
                    for reference_run, run in matches
                    if score in scores_of(reference_run) and score in scores_of(run)
                ]
                # A program may report a score of this name in another unit.
                is_of_classes = score == ACCURACY and all(
                    ACCURACY in (run["evaluation"] or {}) for match in matches for run in match
                )
                bound = SAME_ACCURACY if is_of_classes else 0.0
                judged = equivalence(differences, bound, evidence.level) if differences else None
                yield {
                    **base.name_columns(names),
                    **reference,
                    "score": score,
                    "runs": len(with_score),
                    "splits": len({run["data"]["split_seed"] for run in with_score}),
                    **mean_interval(scores, evidence.level).columns("mean"),
                    "matches": len(differences),
                    **mean_interval(differences, evidence.level).columns("difference"),
                    "bound": bound if judged else None,
                    "verdict": judged and judged.kind,
                    "beyond_bound_fraction": judged and judged.rate,
                    "kind": "measured" if differences else "unavailable",
                    **base.data_of(runs[0], base.ABOUT),
                }


def scores_of(run: Measurement) -> dict[str, float]:
    """Return the scores of a run on all test rows, by name; a program may report none."""
    evaluation: Mapping = run["evaluation"] or {}
    accuracy = {ACCURACY: evaluation[ACCURACY]} if ACCURACY in evaluation else {}
    return accuracy | evaluation.get("scores", {})


def _references(
    names: tuple, runs: Sequence[Measurement], groups: Mapping[tuple, list], evidence: Evidence
) -> Iterator[tuple[dict, Matches]]:
    """Yield the columns that name each reference of a configuration, and the matches with it."""
    for number, reference in references_for(Configuration(*names[2:]), evidence.references):
        matches = on_same_rows(runs, groups.get((*names[:2], *reference), []))
        yield base.reference_columns(number, reference), matches


def on_same_rows(runs: Iterable[Measurement], references: Iterable[Measurement]) -> Matches:
    """Match each run with the reference's run on the same rows and seeds, if that exists.

    Scores do not depend on time or machine, so the runs may be of different sessions.
    """

    def rows_and_seeds(run: Measurement) -> tuple:
        return run["repeat"], *sorted(run["data"]["sha256"].items())

    by_rows = {rows_and_seeds(reference): reference for reference in references}
    return [(by_rows[key], run) for run in runs if (key := rows_and_seeds(run)) in by_rows]


def score_differences(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield the differences of precision and recall to a reference on the same rows, by class."""
    groups = base.by_configuration(evidence.scored_by_class)
    splits = {Path(path).parent: read_json(Path(path)) for path in evidence.dataset_files}
    folders = {(split["dataset"], split["split_seed"]): folder for folder, split in splits.items()}
    for names, runs in groups.items():
        for reference, matches in _references(names, runs, groups, evidence):
            if not matches:
                continue
            rows, classes = _rows_of_matches(matches, folders), runs[0]["evaluation"]["classes"]
            for label, differs in enumerate(rate_differences(*rows, len(classes))):
                in_class = rows[0] == label
                yield {
                    **base.name_columns(names),
                    **reference,
                    "class": classes[label],
                    "runs": len(matches),
                    "splits": len({run["data"]["split_seed"] for _, run in matches}),
                    "rows": int(in_class.sum()),
                    "genomes": len(np.unique(rows[3][in_class])),
                    **differs.precision.columns("precision_difference"),
                    **differs.recall.columns("recall_difference"),
                    **base.data_of(runs[0], base.ABOUT),
                }


def _rows_of_matches(matches: Matches, folders: Mapping[tuple, Path]) -> np.ndarray:
    """Return label, both predicted classes and number of the genome of each row, shape (4, rows).

    A tested row occurs once for each match. A genome has the same number in every split. Rows that
    SMOTEN made, or that are not from a genome, each have a different negative number, the same in
    every repeat of a split.

    Parameters
    ----------
    folders : of each split, by dataset and seed of the split.
    """
    tested: list[np.ndarray] = []
    numbers: dict[Path, np.ndarray] = {}
    for match in matches:
        folder = folders[match[1]["dataset"], match[1]["data"]["split_seed"]]
        files = [folder / "test_labels.npy"]
        files += [Path(run["file"]).with_name("predictions.npy") for run in match]
        labels, *predicted = (np.load(file, allow_pickle=False) for file in files)
        if folder not in numbers:
            file, genomes = folder / "test_genomes.npy", np.full(len(labels), -1)
            if file.is_file():
                genomes = np.load(file, allow_pickle=False)
            used = sum(map(len, numbers.values()))
            negative = -1 - used - np.arange(len(labels))
            numbers[folder] = np.where(genomes < 0, negative, genomes)
        tested.append(np.stack([labels, *predicted, numbers[folder]]))
    return np.concatenate(tested, axis=1)
