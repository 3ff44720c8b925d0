"""Fitted workloads against scikit-learn on its own, and models that are kept and read again."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from fixtures_runs import CLASSES
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from test_networks import canonical

from escala.core.errors import InputError, Unavailable
from escala.core.files import sha256_file
from escala.data.base import Spec
from escala.engines import environments
from escala.predict import model as trained_models
from escala.predict.model import load
from escala.training.process import digest
from escala.workloads import WORKLOADS, workload
from escala.workloads.models import WEIGHTS, write_description

OF_GENOMES = [name for name, each in WORKLOADS.items() if each.data_kind == "genomes"]
SETTINGS = {"k": 3, "C": 2.0, "max_iterations": 500, "save_model": True}
ROWS, LENGTH = 90, 60
CODES = Spec("codes", (LENGTH,), "uint8")
DATA = {
    "classes": CLASSES,
    "inputs": [CODES._asdict()],
    "targets": {"name": "labels", "shape": [], "dtype": "int64"},
    "sha256": {"train.npy": "0" * 64},
}
KNOBS = {"convolution": "layers", "optimizer": "keras"}


def sequences(classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random sequences whose letters are drawn with other fractions in each class; some unknown."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, ROWS)
    fractions = random.dirichlet(np.ones(4) * 3, classes)
    codes = np.stack([random.choice(4, LENGTH, p=fractions[label]) + 1 for label in labels])
    codes[random.random(codes.shape) < 0.02] = 0
    return codes.astype(np.uint8), labels


def in_letters(codes: np.ndarray) -> list[str]:
    return ["".join("-ACGT"[code] for code in row) for row in codes]


def pipeline(k: int, C: float):
    def words(text: str) -> list[str]:
        found = (text[i : i + k] for i in range(len(text) - k + 1))
        return [canonical(word) for word in found if "-" not in word]

    return make_pipeline(
        CountVectorizer(analyzer=words), Normalizer(), LogisticRegression(C=C, max_iter=500)
    )


@pytest.mark.parametrize("classes", [2, 5])
def test_kmer_logreg_is_scikit_learns_pipeline(classes):
    codes, labels = sequences(classes)
    new, _ = sequences(classes, seed=1)
    work = workload("kmer-logreg")
    counts = np.bincount(labels, minlength=classes)
    weights = work.fit((codes,), labels, counts, SETTINGS)
    independent = pipeline(3, 2.0).fit(in_letters(codes), labels)
    for some in (codes, new):
        found = work.probabilities(weights, (some,))
        assert found.dtype == np.float32
        expected = independent.predict_proba(in_letters(some))
        # Both stop at a gradient of 1e-4, one of them in float32.
        np.testing.assert_allclose(found, expected, atol=2e-3)


def test_a_class_without_training_rows_has_probability_0():
    codes, labels = sequences(3)
    counts = np.bincount(labels := np.where(labels == 1, 3, labels), minlength=5)
    work = workload("kmer-logreg")
    found = work.probabilities(work.fit((codes,), labels, counts, SETTINGS), (codes,))
    assert (found[:, [1, 4]] == 0).all() and (found[:, [0, 2, 3]] > 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("seed", range(2))
def test_majority_is_scikit_learns_of_the_rows_before_balancing(seed):
    original = np.random.default_rng(seed).integers(0, 9, 40)
    counts = np.bincount(original, minlength=9)
    balanced = np.repeat(np.arange(9), 20)
    codes = np.ones((len(balanced), 10), np.uint8)
    weights = workload("majority").fit((codes,), balanced, counts, {})
    found = workload("majority").probabilities(weights, (codes,))
    dummy = DummyClassifier(strategy="prior").fit(np.zeros((40, 1)), original)
    expected = np.zeros(9)
    expected[dummy.classes_] = dummy.class_prior_
    np.testing.assert_allclose(found, np.tile(expected, (len(codes), 1)), rtol=1e-6)
    assert (found.argmax(axis=1) == dummy.predict(np.zeros((1, 1)))).all()


def kept(folder, name: str):
    """Keep a model as a run does; return its probabilities for some codes."""
    codes, labels = sequences(5)
    work = workload(name)
    if WORKLOADS[name].is_fitted:
        weights = work.fit((codes,), labels, np.bincount(labels, minlength=5), SETTINGS)
        np.savez(folder / WEIGHTS, **weights)
        arrays, expected = weights.values(), work.probabilities(weights, (codes,))
    else:
        network = work.build((CODES,), (5,), {}, KNOBS)
        np.savez(folder / WEIGHTS, *network.get_weights())
        arrays, expected = network.get_weights(), network.predict(codes, verbose=0)
    write_description(folder, name, KNOBS, SETTINGS, DATA, digest(arrays))
    return codes, expected


def changed(folder, **content) -> None:
    """Change what `model.json` says; its digest of the weights is brought up to date."""
    path = folder / "model.json"
    description = json.loads(path.read_text())
    content = {"sha256": sha256_file(folder / WEIGHTS)} | content
    path.write_text(json.dumps(description | content))


@pytest.mark.parametrize("name", OF_GENOMES)
def test_a_kept_model_classifies_as_it_did(tmp_path, name):
    codes, expected = kept(tmp_path, name)
    model = load(tmp_path)
    assert (model.workload, model.classes, model.inputs) == (name, CLASSES, (CODES,))
    assert model.description["data"]["sha256"] == {"train.npy": "0" * 64}
    found = model.probabilities(codes)
    assert found.shape == (ROWS, 5) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert model.probabilities(codes[:0]).shape == (0, 5)
    for wrong in (codes.astype(int), codes[:, 1:]):
        with pytest.raises(ValueError, match="reads uint8 of shape"):
            model.probabilities(wrong)


class Hostile:
    """Leaves a file where its pickle is read."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *(("kmer-logreg", how) for how in ("missing", "pickled", "no zip")),
        *(("virus-cnn", how) for how in ("shape", "text", "pickled")),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_one_message(tmp_path, name, how):
    kept(tmp_path, name)
    file, mark = tmp_path / WEIGHTS, tmp_path / "mark"
    if how == "no zip":
        file.write_bytes(pickle.dumps(Hostile(mark)))
    else:
        with np.load(file) as stored:
            arrays = dict(stored)
        first = next(iter(arrays))
        wrong = {
            "shape": arrays[first][..., None],
            "text": np.full(arrays[first].shape, "1"),
            "pickled": np.array([Hostile(mark)], object),
        }
        del arrays[first]
        np.savez(file, **arrays, **({first: wrong[how]} if how in wrong else {}))
    changed(tmp_path)
    with pytest.raises(InputError, match="does not hold the weights of this model"):
        load(tmp_path)
    assert not mark.exists()


def with_input(length: object) -> dict:
    return {"data": DATA | {"inputs": [CODES._asdict() | {"shape": [length]}]}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"workload": "os"}, "is not a workload here"),
        ({"knobs": "layers"}, "knobs.*is missing, or not a dict"),
        (with_input(3), "does not hold the weights"),
        (with_input(-5), "model.json: 'data.inputs': holds a shape"),
        ({"data": DATA | {"targets": None}}, "'data.inputs': is missing, or does not describe"),
        ({"data": DATA | {"classes": ["A"]}}, "'data.classes': holds fewer than two names"),
        ({"data": DATA | {"classes": ["A", "A"]}}, "'data.classes': holds a name twice"),
        ({"data": DATA | {"classes": ["=1", "A"]}}, "'data.classes': holds a name that no class"),
        ({"data": DATA | {"sha256": None}}, "'data.sha256': is missing, or not a dict"),
        ({"format": 4}, "is not a description of format 3"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(tmp_path, content, reason):
    with pytest.raises(InputError, match="no model was kept here"):
        load(tmp_path)
    kept(tmp_path, "virus-cnn")
    whole = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(whole + b"x")
    with pytest.raises(InputError, match="is missing or damaged"):
        load(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(whole)
    changed(tmp_path, **content)
    with pytest.raises(InputError, match=reason):
        load(tmp_path)


@pytest.mark.torch
def test_a_network_of_tensorflow_classifies_where_only_pytorch_is(tmp_path, monkeypatch):
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name="tensorflow")

    found = environments.python

    def python(engine: str) -> str:
        if engine == "tensorflow":
            raise Unavailable("TensorFlow is not installed")
        return found(engine)

    codes, expected = kept(tmp_path, "virus-cnn")
    with monkeypatch.context() as patch:
        patch.setattr(environments, "python", lambda engine: "/bin/false")
        with pytest.raises(InputError, match=r"cannot be used here: /bin/false.*ended with"):
            load(tmp_path)
    monkeypatch.setattr(trained_models, "import_module", missing)
    monkeypatch.setattr(environments, "python", python)
    model = load(tmp_path)
    np.testing.assert_allclose(model.probabilities(codes), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(model.predictions(codes), expected.argmax(1))


def test_a_keras_file_is_never_opened(tmp_path, monkeypatch):
    """Keras imports what such a file names, its safe mode notwithstanding."""
    import tensorflow as tf

    monkeypatch.syspath_prepend(tmp_path)
    mark, file = tmp_path / "mark", tmp_path / "model.keras"
    (tmp_path / "hostile_layers.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    named = {"module": "hostile_layers", "class_name": "Any", "config": {}}
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("config.json", json.dumps(named | {"registered_name": None}))
        archive.writestr("metadata.json", "{}")
        archive.writestr("model.weights.h5", b"")
    kept(tmp_path, "virus-cnn")
    load(tmp_path)
    assert not mark.exists()
    with pytest.raises(TypeError):
        tf.keras.models.load_model(file, safe_mode=True)
    assert mark.exists(), "Keras ran the code"


def test_fits_are_read_without_tensorflow(tmp_path):
    codes, expected = kept(tmp_path, "kmer-logreg")
    np.save(tmp_path / "codes.npy", codes)
    program = (
        "import json, sys, numpy as np; from escala.predict.model import load\n"
        f"found = load({str(tmp_path)!r}).probabilities(np.load({str(tmp_path / 'codes.npy')!r}))\n"
        "print(json.dumps(['tensorflow' in sys.modules, found.tolist()]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    imported, found = json.loads(done.stdout)
    assert not imported
    np.testing.assert_allclose(found, expected, rtol=1e-6)
