"""Data that are no classes, in several inputs, with a validation side."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from escala.core.files import sha256_file, write_json
from escala.data.base import Arrays
from escala.engines.tensorflow.functions import Functions
from escala.predict.model import load
from escala.record import collect
from escala.record.run import INVALID
from escala.training.epoch import validate
from tests.workflow.conftest import add_workload, measured
from tests.workloads.regression import model as regression
from tests.workloads.regression import scores

ROWS = {"train": 50, "validation": 9, "test": 13}
RATE = {"value": 0.05, "reference_batch": 16, "rule": "constant"}


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """Rows of half-precision signals (4, 3) and a word, with two numbers that depend on both."""
    folder, random = tmp_path / "split", np.random.default_rng(0)
    folder.mkdir()
    weights, word_weights = random.normal(size=(12, 2)), random.normal(size=(7, 2))
    for side, rows in ROWS.items():
        signal = random.normal(size=(rows, 4, 3)).astype(np.float16)
        word = random.integers(0, 7, rows, np.int32)
        np.save(folder / f"{side}.signal.npy", signal)
        np.save(folder / f"{side}.word.npy", word)
        numbers = signal.reshape(rows, -1) @ weights + word_weights[word]
        np.save(folder / f"{side}.numbers.npy", numbers.astype(np.float32))

    def array(name: str, shape: list[int], dtype: str) -> dict:
        return {"name": name, "shape": shape, "dtype": dtype, "file": f"{{side}}.{name}.npy"}

    description = {
        "provenance": "files",
        "leaky": False,
        "split_seed": 0,
        "inputs": [array("signal", [4, 3], "float16"), array("word", [], "int32")],
        "targets": array("numbers", [2], "float32"),
        "rows": ROWS,
        "sha256": {path.name: sha256_file(path) for path in folder.glob("*.npy")},
    }
    write_json(folder / "dataset.json", description)
    return folder


@pytest.mark.parametrize(
    "strategy", ["mirrored", pytest.param("horovod-gloo", marks=pytest.mark.sweep)]
)
def test_numbers_are_predicted_from_several_inputs_and_scored_by_the_workload(
    split, request_for, tmp_path, monkeypatch, strategy
):
    add_workload("regression", tmp_path / "site", monkeypatch)
    request = request_for(
        strategy, "1x2", workload="regression", epochs=12, validate=True, save_model=True,
        learning_rate=RATE, batch={"rows": 16, "per": "global"}, knobs={"accumulation": 3},
    )  # fmt: skip
    result = measured(request, split, tmp_path)
    first, *_, last = result["epochs"]
    assert last["loss"] < first["loss"] / 2
    table = collect.read_steps(tmp_path / "ranks", len(result["ranks"]["cores"]))
    assert table.groupby("epoch")["rows"].sum().tolist() == [ROWS["train"]] * 12

    arrays = {path.stem: np.load(path) for path in split.glob("*.npy")}
    predictions = np.load(tmp_path / "predictions.npy", allow_pickle=False)
    assert (predictions.dtype, predictions.shape) == (np.float32, (ROWS["test"], 2))
    errors = predictions - arrays["test.numbers"]
    rmse = pytest.approx(np.sqrt((errors**2).mean()), rel=1e-5)
    assert result["evaluation"] == {"rows": ROWS["test"], "scores": {"rmse": rmse}}

    model = load(tmp_path)
    found = model.probabilities(arrays["test.signal"], arrays["test.word"])
    np.testing.assert_allclose(found, predictions, rtol=1e-5, atol=1e-6)
    found = model.probabilities(arrays["validation.signal"], arrays["validation.word"])
    errors = np.abs(found - arrays["validation.numbers"])
    assert result["training"]["validated_on"] == "validation"
    assert last["validation_loss"] == pytest.approx((errors**2).mean(), rel=1e-4)
    assert last["validation_accuracy"] == pytest.approx((errors < 1).all(axis=1).mean())


def test_a_score_that_is_no_number_is_named_and_the_rest_is_kept(
    split, request_for, tmp_path, monkeypatch
):
    add_workload("regression", tmp_path / "site", monkeypatch)
    monkeypatch.setattr(scores, "score", lambda *_: {"rmse": 0.5, "r2": np.float32("nan")})
    request = request_for("single", "1x1", workload="regression", learning_rate=RATE)
    result = measured(request, split, tmp_path, "failed")
    assert result["reason"].startswith("score r2 is nan: ")
    assert "leave out a score" in result["reason"]
    assert len(result["epochs"]) == 1 and result["evaluation"] is None
    assert not (tmp_path / INVALID).exists()


def test_a_mean_of_row_scores_that_is_no_number_ends_the_training(split):
    data = Arrays(split)
    model = regression.build(data.inputs, (2,), {}, {})
    undefined = SimpleNamespace(
        row_losses=regression.row_losses,
        predict=regression.predict,
        correct=regression.correct,
        row_scores=lambda targets, outputs: {"ratio": targets[:, 0] / tf.zeros_like(outputs[:, 0])},
    )
    specs = (*data.inputs, data.targets)
    evaluate = Functions(undefined, {}).compile_evaluation(model, specs, tf.reduce_sum)

    def evaluated(inputs, targets):
        return evaluate(*inputs, targets)

    group = SimpleNamespace(total=lambda values: values)
    place = SimpleNamespace(process=0, processes=1)
    alone = SimpleNamespace(place=place, group=group, evaluate=evaluated, rows_at_once=256)
    with pytest.raises(ValueError, match=r"^score ratio is .*`row_scores` must give a finite"):
        validate(alone, data, "validation")
