"""Scores against their definitions, counted one row at a time."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.record.evaluation import evaluate

CLASSES = ["COVID", "DENGUE", "EBOLA"]
pairs = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=60)


def ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def scored(pairs: list[tuple[int, int]]) -> dict:
    labels, predictions = np.array(pairs).T
    return evaluate(labels, predictions, CLASSES)


@settings(deadline=None, max_examples=40)
@given(pairs)
def test_scores_are_those_of_the_definitions(pairs):
    found = scored(pairs)
    matrix = [[sum(pair == (t, p) for pair in pairs) for p in range(3)] for t in range(3)]
    assert found["confusion_matrix"] == matrix
    assert found["rows"] == len(pairs)
    assert found["accuracy"] == pytest.approx(sum(t == p for t, p in pairs) / len(pairs))
    rows = []
    for number, name in enumerate(CLASSES):
        hits, support = matrix[number][number], sum(matrix[number])
        if not support:
            nothing = dict.fromkeys(("precision", "recall", "f1")) | {"support": 0}
            assert found["per_class"][name] == nothing
            continue
        precision = ratio(hits, sum(row[number] for row in matrix))
        recall = ratio(hits, support)
        f1 = ratio(2 * precision * recall, precision + recall)
        rows.append((precision, recall, f1, support))
        scores = {"precision": precision, "recall": recall, "f1": f1, "support": support}
        assert found["per_class"][name] == pytest.approx(scores)
    for position, score in enumerate(("precision", "recall", "f1")):
        values, weights = [r[position] for r in rows], [r[3] for r in rows]
        assert found["macro"][score] == pytest.approx(np.mean(values))
        assert found["weighted"][score] == pytest.approx(np.average(values, weights=weights))
    assert found["macro"]["support"] == found["weighted"]["support"] == len(pairs)
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
