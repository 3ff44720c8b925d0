"""Scores of predicted classes, by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from escala.record.evaluation import MOST_CLASSES, evaluate

CLASSES = ["COVID", "DENGUE", "EBOLA"]


def scored(matches: list[tuple[int, int]]) -> dict:
    labels, predictions = np.array(matches).T
    return evaluate(labels, predictions, CLASSES)


def test_scores_are_those_of_the_definitions():
    found = scored([(0, 0), (0, 0), (0, 1), (1, 1), (2, 0)])
    assert found["confusion_matrix"] == [[2, 1, 0], [0, 1, 0], [1, 0, 0]]
    assert (found["rows"], found["accuracy"]) == (5, pytest.approx(0.6))
    # Precision, recall, F1 and support of each class.
    for name, scores in zip(
        CLASSES, [(2 / 3, 2 / 3, 2 / 3, 3), (1 / 2, 1, 2 / 3, 1), (0, 0, 0, 1)], strict=True
    ):
        assert list(found["per_class"][name].values()) == pytest.approx(scores)
    assert list(found["macro"].values()) == pytest.approx([7 / 18, 5 / 9, 4 / 9, 5])
    assert list(found["weighted"].values()) == pytest.approx([0.5, 0.6, 8 / 15, 5])
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_class_never_predicted_has_precision_0_without_a_warning(recwarn):
    found = scored([(0, 0), (1, 0), (2, 2)])
    assert found["per_class"]["DENGUE"] == {"precision": 0, "recall": 0, "f1": 0, "support": 1}
    assert found["per_class"]["COVID"]["precision"] == 0.5
    assert not list(recwarn)


def test_a_class_without_rows_keeps_its_place_and_has_no_score():
    found = scored([(0, 0), (2, 0), (2, 2)])
    unknown = {"precision": None, "recall": None, "f1": None, "support": 0}
    assert found["per_class"]["DENGUE"] == unknown
    assert found["macro"]["recall"] == pytest.approx((1 + 0.5) / 2)
    assert found["classes"] == list(found["per_class"]) == CLASSES
    assert found["confusion_matrix"] == [[1, 0, 0], [0, 0, 0], [1, 0, 1]]


def test_a_class_may_be_called_like_an_average():
    found = evaluate(np.array([0, 1, 1]), np.array([0, 1, 0]), ["accuracy", "macro avg"])
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["per_class"]["accuracy"]["recall"] == 1


@pytest.mark.parametrize("classes", [MOST_CLASSES, MOST_CLASSES + 1])
def test_what_grows_with_the_classes_is_kept_of_some_only(classes):
    labels = np.arange(3 * classes) % classes
    found = evaluate(labels, np.where(labels, labels, 1), [f"c{n}" for n in range(classes)])
    assert found["accuracy"] == pytest.approx(1 - 1 / classes)
    assert found["macro"]["recall"] == pytest.approx(1 - 1 / classes)
    assert ("confusion_matrix" in found) == ("per_class" in found) == (classes <= MOST_CLASSES)
