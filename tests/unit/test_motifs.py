"""Sequences with and without a motif: their simulation, the files of users, and the model."""

from __future__ import annotations

import gzip
from math import prod
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from Bio.Seq import Seq

from escala.core.errors import InputError
from escala.data.base import Arrays, Spec
from escala.data.motifs import arrays
from escala.data.motifs.arrays import (
    ADDED,
    BACKGROUND,
    KEPT,
    TAL1,
    chance_sites,
    one_hot,
    queries,
    simulate,
)
from escala.workloads.tal1_cnn import model

SETTINGS = {"filters": 16, "width": 15}
SIMULATED = {"provenance": "simulated", "length": 60}
SIMULATED |= {"rows": {"train": 40, "validation": 10, "test": 20}}
READ = {"provenance": "fasta", "length": 8}
READ |= {"split": {"test_fraction": 0.2, "validation_fraction": 0.2}}


def test_the_fractions_of_letters_labels_and_sites_are_those_of_the_source():
    """Figures of docs/systems/tal1.md; standard deviations below a tenth of each tolerance."""
    letters, labels = simulate(TAL1, 20000, 500, np.random.default_rng(5))
    assert np.bincount(letters.ravel()) / letters.size == pytest.approx(BACKGROUND, abs=0.003)
    assert labels.mean() == pytest.approx(0.5, abs=0.02)
    by_chance = chance_sites(letters[labels == 0], TAL1).mean()
    # A window fits with the product of its positions' fractions, on either strand.
    fits = prod(float(BACKGROUND[row > 0].sum()) for row in TAL1)
    assert fits == pytest.approx(4.032e-5)
    assert by_chance == pytest.approx(1 - (1 - fits) ** (2 * 491), abs=0.008)
    assert 0.985 < chance_sites(letters[labels == 1], TAL1).mean() < 0.998


def test_instances_follow_the_matrix_on_both_strands():
    """A motif of one certain letter at each position stands where nothing else does."""
    matrix = np.eye(4)[[0, 1, 1, 2, 3, 3]]
    letters, labels = simulate(matrix, 4000, 6, np.random.default_rng(1))
    texts = ["".join("ACGT"[letter] for letter in row) for row in letters[labels == 1]]
    forward, backward = "ACCGTT", str(Seq("ACCGTT").reverse_complement())
    exact = (KEPT + ADDED) ** 6
    fractions = [texts.count(text) / len(texts) for text in (forward, backward)]
    assert sum(fractions) == pytest.approx(exact, abs=0.01)
    assert fractions[0] == pytest.approx(exact / 2, abs=0.05)


def test_a_split_is_drawn_anew_by_its_seed_and_no_two_sides_are_alike(tmp_path):
    described = {}
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        (tmp_path / name).mkdir()
        described[name] = arrays.prepare("d", SIMULATED, seed, {}, tmp_path / name)
    assert described["one"] == described["same"] != described["other"]
    found = Arrays(tmp_path / "one")
    assert found.sides == ("train", "validation", "test")
    rows = {side: found.gather(side, slice(None)) for side in found.sides}
    (train,), labels = rows["train"]
    assert (train.shape, train.dtype, labels.dtype) == ((40, 60, 4), np.uint8, np.int64)
    assert (train.sum(axis=-1) == 1).all()
    assert not (train[:10] == rows["validation"][0][0][:10]).all(axis=(1, 2)).any()
    assert described["one"]["class_means"]["train"] == labels.mean()
    assert 0 <= described["one"]["chance_sites"] <= 1


def fasta(path: Path, sequences: list[str]) -> Path:
    path.write_text("".join(f">s{number}\n{text}\n" for number, text in enumerate(sequences)))
    return path


def test_two_fasta_files_are_the_two_classes(tmp_path):
    random = np.random.default_rng(7)
    texts = ["".join(random.choice(list("ACGT"), 8)) for _ in range(30)]
    texts[0] = "acgtNRAC"
    inputs = {"negative": fasta(tmp_path / "n.fa", texts[:20])}
    inputs["positive"] = tmp_path / "p.fa.gz"
    packed = gzip.compress(fasta(tmp_path / "p.fa", texts[20:]).read_bytes())
    inputs["positive"].write_bytes(packed)
    described = arrays.prepare("d", READ, 1, inputs, tmp_path)
    assert described["counts"] == {
        "background": {"balanced": 12, "train": 12, "test": 4, "validation": 4},
        "motif": {"balanced": 6, "train": 6, "test": 2, "validation": 2},
    }
    found = Arrays(tmp_path)
    seen = set()
    for side in found.sides:
        (rows,), labels = found.gather(side, slice(None))
        for row, label in zip((rows * [1, 2, 3, 4]).sum(axis=2), labels, strict=True):
            seen.add(("".join("NACGT"[code] for code in row), int(label)))
    assert seen == {(t.upper().replace("R", "N"), int(n >= 20)) for n, t in enumerate(texts)}


@pytest.mark.parametrize(
    ("sequences_of", "message"),
    [
        (["ACGTACGT", "ACGT"], "'s1': has 4 letters, and length is 8"),
        (["MKTLLQEF"], "not nucleotides"),
        ([], "n.fa"),
        (["ACGTACGA"], "too few to divide"),
        # A sequence may not be both with and without the motif, on either strand.
        *(
            (["AAAAAAAC", text, "AAAAAAAC"] * 5, "p.fa: 's0': is s13 in n.fa")
            for text in ("acgtacgt", "ACGUACGU")
        ),
    ],
)
def test_fasta_files_that_do_not_serve_are_refused(tmp_path, sequences_of, message):
    inputs = {
        "negative": fasta(tmp_path / "n.fa", sequences_of),
        "positive": fasta(tmp_path / "p.fa", ["ACGTACGT"] * 9),
    }
    with pytest.raises(InputError) as refused:
        arrays.prepare("d", READ, 1, inputs, tmp_path)
    assert message in str(refused.value)
    assert not (tmp_path / "dataset.json").exists()


def test_queries_are_encoded_as_the_rows_were(tmp_path):
    description = arrays.prepare("d", SIMULATED, 1, {}, tmp_path)
    path = fasta(tmp_path / "q.fa", ["ACGTN" * 12])
    [query] = queries(path, description)
    assert query.columns == {"accession": "s0"}
    codes = np.array([[1, 2, 3, 4, 0] * 12], np.uint8)
    np.testing.assert_array_equal(query.inputs[0], one_hot(codes))
    with pytest.raises(InputError, match="has 5 letters"):
        list(queries(fasta(tmp_path / "r.fa", ["ACGTN"]), description))


def test_filters_wider_than_a_sequence_are_refused():
    short = Spec("sequence", (14, 4), "uint8")
    with pytest.raises(InputError, match="width: 15: is more than the 14 letters of a sequence"):
        model.build((short,), (2,), SETTINGS, {})
    fits = model.build((short,), (2,), SETTINGS | {"width": 14}, {})
    assert fits.output_shape == (None, 2)


def test_losses_and_gradients_are_those_of_kerass_own_network():
    """The same layers ending in one sigmoid unit, trained by Keras's binary cross-entropy."""
    tf.keras.utils.set_random_seed(1)
    network = model.build((Spec("sequence", (500, 4), "uint8"),), (2,), SETTINGS, {})
    assert network.count_params() == 993, "as in the source"
    letters, labels = simulate(TAL1, 32, 500, np.random.default_rng(3))
    rows = one_hot(letters + np.uint8(1))
    numbers = rows.astype(np.float32)
    layers = tf.keras.layers
    plain = tf.keras.Sequential(
        [
            layers.Input((500, 4)),
            layers.Conv1D(16, 15, activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    plain.set_weights(network.get_weights())
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_mean(model.row_losses(tf.constant(labels), network(rows), {}))
        expected_loss = tf.keras.losses.BinaryCrossentropy()(labels[:, None], plain(numbers))
    found = tape.gradient(loss, network.trainable_variables)
    expected = tape.gradient(expected_loss, plain.trainable_variables)
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-6)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    outputs = network(rows).numpy()
    np.testing.assert_allclose(outputs.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(outputs[:, 1:], plain(numbers), rtol=1e-6)
