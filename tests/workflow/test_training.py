"""Ranks that really train: what they agree on, and what each of them does."""

from __future__ import annotations

import contextlib
import errno
import shutil
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
from Bio import SeqIO
from sklearn.metrics import confusion_matrix, log_loss

from escala.core.errors import InputError
from escala.core.files import atomic, read_json, sha256_file, write_json
from escala.data import KINDS
from escala.data.genomes.familiarity import learn
from escala.predict.classify import predict
from escala.predict.model import load
from escala.record.invariants import invariant_fault
from escala.record.run import measure
from escala.training.process import digest
from escala.training.rank import _busy_neighbours
from tests.conftest import CLASSES
from tests.workflow.conftest import measured

ROWS = 161


@pytest.mark.parametrize("weighting", ["rows", "ranks"])
def test_a_step_is_the_mean_of_its_rows_or_of_its_ranks(weighting):
    """A last step in which ranks have unequal rows, and one has none."""
    from escala.training.shards import divisors

    per_row = [np.array([1.0, 2.0, 6.0]), np.array([10.0]), np.array([])]
    divisor_of_rank = divisors(per_row, weighting)
    total = sum(
        rows.sum() / divisor for rows, divisor in zip(per_row, divisor_of_rank, strict=True)
    )
    # A rank without rows has no loss, and still counts as a rank.
    means = {"rows": np.concatenate(per_row).mean(), "ranks": (3.0 + 10.0 + 0.0) / 3}
    assert total == pytest.approx(means[weighting])


def test_parts_are_computed_one_after_the_other():
    """Together they would take the memory of the whole batch."""
    import tensorflow as tf

    from escala.engines.tensorflow.step import accumulate as in_parts

    present, most = [], []

    def visit(weight: np.ndarray) -> np.ndarray:
        present.append(weight)
        time.sleep(0.02)
        most.append(len(present))
        present.pop()
        return weight

    def compute(codes, labels, weights, divisor):
        # Stateless, as all that a model computes: TensorFlow may do several at the same time.
        total = tf.numpy_function(visit, [tf.reduce_sum(weights)], tf.float32, stateful=False)
        total.set_shape(())
        return [total / divisor], total, total

    rows, accumulated = 15, tf.function(in_parts(compute, 8))
    codes, labels = tf.zeros((rows, 3), tf.uint8), tf.zeros(rows, tf.int64)
    (gradient,), total, _ = accumulated(codes, labels, tf.ones(rows), tf.constant(4.0))
    assert (float(gradient), float(total)) == (3.75, 15.0)
    assert (len(most), max(most)) == (8, 1)


@pytest.mark.torch
@pytest.mark.all_cores
def test_a_slow_rank_is_given_fewer_rows(small_split, request_for, tmp_path):
    """Rank 1 is so slow that no other process on the machine can make rank 0 the slower one.

    On some machines it gets no rows: a step costs it more than rank 0 needs for the whole batch.
    """
    settings = {"batch": {"rows": 16, "per": "global"}, "max_steps": 2}
    request = request_for("ddp-hybrid", "1x2", knobs={"slowdown": [1, 5]}, **settings)
    fast, slow = measured(request, small_split, tmp_path)["ranks"]["fractions"]
    assert fast > slow and fast + slow == pytest.approx(1)


@pytest.mark.torch
def test_without_shards_takes_each_rank_all_rows(small_split, request_for, tmp_path):
    request = request_for("ddp-gloo", "1x2", knobs={"shard": False})
    [epoch] = measured(request, small_split, tmp_path)["epochs"]
    assert epoch["rows"] == 2 * ROWS and epoch["distinct_rows"] == ROWS


def test_busy_neighbours_keep_a_core_busy_until_they_are_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("STARTED_BY", str(tmp_path))

    def busy() -> int:
        found = 0
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = process.environ().get("STARTED_BY") == str(tmp_path)
                found += ours and "while True: pass" in " ".join(process.cmdline())
        return found

    with _busy_neighbours(2):
        assert busy() == 2
    assert not busy()


def test_ranks_that_disagree_fail_the_run():
    """Whether they agree is told by the digests of their weights."""
    weights = np.arange(6, dtype=np.float32)
    same, other = digest([weights]), digest([np.nextafter(weights, 7)])
    assert same == digest([weights.copy()]) != other
    ranks = [{"weights_sha256": [each]} for each in (same, other)]
    assert "2 different sets of weights" in invariant_fault([], ranks, pd.DataFrame(), 0)


@pytest.fixture
def validated_split(small_split, tmp_path) -> Path:
    """The same split with a validation side: every second of its test rows."""
    folder = shutil.copytree(small_split, tmp_path / "data" / "split")
    (tmp_path / "data" / "records.tsv").symlink_to(small_split.parent / "records.tsv")
    (tmp_path / "data" / "sequences").symlink_to(small_split.parent / "sequences")
    description = read_json(folder / "dataset.json")
    for part in ("", "_labels"):
        rows = np.load(folder / f"test{part}.npy")[::2]
        np.save(folder / f"validation{part}.npy", rows)
    description["rows"]["validation"] = len(rows)
    description["sha256"] = {p.name: sha256_file(p) for p in folder.glob("*.npy")}
    write_json(folder / "dataset.json", description)
    return folder


STOPPING = {"monitor": "validation", "patience": 1, "min_delta": 0.0, "restore_best": False}


def test_no_training_is_stopped_by_the_test_rows(small_split, request_for, tmp_path):
    request = request_for("single", "1x1", validate=True, early_stopping=STOPPING)
    with pytest.raises(InputError, match="test rows must not decide"):
        measure(request, small_split, tmp_path / "run.json", 300)


def test_early_stopping_on_the_validation_side_restores_the_best_model_which_is_kept(
    validated_split, request_for, tmp_path
):
    stopping = STOPPING | {"min_delta": 100.0, "restore_best": True}
    settings = dict.fromkeys(("tensorboard", "save_model", "validate"), True)
    settings |= {"epochs": 5, "max_steps": 5, "early_stopping": stopping}
    result = measured(request_for("single", "1x1", **settings), validated_split, tmp_path)
    assert result["training"]["stopped_early"] and result["training"]["epochs_done"] == 2
    assert_shown_by_tensorboard(tmp_path, result)
    assert_kept_as_evaluated(tmp_path, validated_split, result)
    assert_classifies_whole_genomes_as_evaluated(tmp_path, validated_split)
    # The loss fell by less than 100 in the second epoch, so the model is that of the first.
    assert result["training"]["best_epoch"] == 1
    codes, labels = (np.load(validated_split / f"validation{p}.npy") for p in ("", "_labels"))
    probabilities = load(tmp_path).probabilities(codes)
    first, second = result["epochs"]
    expected = log_loss(labels, probabilities, labels=range(len(CLASSES)))
    assert first["validation_loss"] == pytest.approx(expected, rel=1e-5)
    assert first["validation_loss"] != pytest.approx(second["validation_loss"], rel=1e-5)
    right = (probabilities.argmax(axis=1) == labels).mean()
    assert first["validation_accuracy"] == pytest.approx(right)


def assert_shown_by_tensorboard(run: Path, result: dict) -> None:
    """Its own reader finds every epoch's values in the event files."""
    # The command's own module; it needs more than the reader of events.
    import tensorboard.main  # noqa: F401
    import tensorflow as tf
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    shown = {
        tag: [float(tf.make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }
    epochs = result["epochs"]
    for tag in ("loss", "accuracy", "validation_loss", "validation_accuracy", "train_seconds"):
        assert shown.pop(tag) == pytest.approx([epoch[tag] for epoch in epochs], rel=1e-6)
    seconds = [epoch["train_seconds"] / epoch["steps"] for epoch in epochs]
    assert shown.pop("step_seconds") == pytest.approx(seconds, rel=1e-6)
    rate = result["training"]["learning_rate"]
    assert shown.pop("learning_rate") == pytest.approx([rate] * len(epochs))
    assert not shown


def assert_kept_as_evaluated(run: Path, split: Path, result: dict) -> None:
    """The predictions and the model alongside a run are those its scores were taken from."""
    codes, labels = np.load(split / "test.npy"), np.load(split / "test_labels.npy")
    predictions = np.load(run / "predictions.npy", allow_pickle=False)
    assert predictions.dtype == np.int64
    matrix = confusion_matrix(labels, predictions, labels=range(len(CLASSES)))
    assert matrix.tolist() == result["evaluation"]["confusion_matrix"]
    model = load(run)
    assert (model.workload, model.classes) == (result["workload"], CLASSES)
    assert model.description["weights_sha256"] == result["weights_sha256"]
    assert model.description["data"]["sha256"] == result["data"]["sha256"]
    np.testing.assert_array_equal(model.probabilities(codes).argmax(axis=1), predictions)


def assert_classifies_whole_genomes_as_evaluated(run: Path, split: Path) -> None:
    """The model is of rows that begin where genomes do: given whole, these are classified alike."""
    records = pd.read_csv(split.parent / "records.tsv", sep="\t")
    tested = records.iloc[np.load(split / "test_genomes.npy")]
    genomes = {
        record.id: str(record.seq)
        for name in CLASSES
        for record in SeqIO.parse(split.parent / "sequences" / f"{name}.fasta", "fasta")
    }
    assert min(map(len, genomes.values())) > 2 * 300, "there is more to a genome than its beginning"
    query = "".join(f">{name}\n{genomes[name]}\n" for name in tested["accession"])
    (run / "query.fasta").write_text(query)
    learn(split, run / "familiarity.npz")
    known, table = run / "familiarity.npz", run / "table.tsv"
    table = predict(KINDS["genomes"], run / "query.fasta", run, known, 0.05, table)
    expected = np.array(CLASSES)[np.load(run / "predictions.npy")]
    assert table["predicted"].tolist() == expected.tolist()
    assert table["unlike_anything_seen"].mean() <= 0.05


@pytest.fixture
def no_tensorflow(imported):
    """Whoever imports TensorFlow in a rank fails."""
    imported("import sys; sys.modules['tensorflow'] = None")


@pytest.mark.parametrize("workload", ["kmer-logreg", "majority"])
def test_a_fit_is_measured_like_any_run(
    small_split, request_for, tmp_path, no_tensorflow, workload
):
    request = request_for("single", "1x1", workload=workload, save_model=True)
    result = measured(request, small_split, tmp_path / "run")
    assert result["training"]["steps_per_epoch"] is None
    assert result["training"]["parameters"] == {"kmer-logreg": 5 * 2081, "majority": 5}[workload]
    assert result["ranks"]["threads"] == {"intra_op": 1, "inter_op": 1}
    assert result["seconds"]["first_step"] is None
    (epoch,) = result["epochs"]
    assert (epoch["steps"], epoch["rows"]) == (1, ROWS)
    assert epoch["train_seconds"] == result["seconds"]["train"] > 0
    codes, labels = (np.load(small_split / f"{name}.npy") for name in ("train", "train_labels"))
    probabilities = load(tmp_path / "run").probabilities(codes)
    right = probabilities[np.arange(ROWS), labels]
    assert epoch["loss"] == pytest.approx(-np.log(right).mean(), rel=1e-4)
    assert epoch["accuracy"] == pytest.approx((probabilities.argmax(axis=1) == labels).mean())
    assert_kept_as_evaluated(tmp_path / "run", small_split, result)
    if workload == "kmer-logreg":
        assert result["evaluation"]["accuracy"] > 0.9


def test_a_fit_that_fails_is_a_status_and_keeps_nothing(
    small_split, request_for, tmp_path, no_tensorflow
):
    request = request_for("single", "1x1", workload="kmer-logreg", C=-1.0, save_model=True)
    result = measured(request, small_split, tmp_path / "run", "failed")
    assert "InvalidParameterError" in result["reason"]
    assert not {"model.npz", "model.json", "predictions.npy"} & {
        path.name for path in (tmp_path / "run").iterdir()
    }


@pytest.mark.parametrize("name", ["predictions.npy", "model.json"])
def test_what_cannot_be_kept_fails_the_run(small_split, request_for, tmp_path, monkeypatch, name):
    """As on a full disk; what was written before it is removed."""
    real = atomic

    def full(path, **options):
        if Path(path).name == name:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return real(path, **options)

    monkeypatch.setattr("escala.core.files.atomic", full)
    monkeypatch.setattr("escala.record.collect.atomic", full)
    request = request_for("single", "1x1", workload="majority", save_model=True)
    result = measured(request, small_split, tmp_path, "failed")
    assert "No space left" in result["reason"]
    assert result["evaluation"] is None and result["epochs"] == []
    assert not list(tmp_path.glob("model.*")) and not (tmp_path / "predictions.npy").exists()
