"""Genomes as numbers, and what is familiar to a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from Bio.Seq import Seq
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.core.errors import InputError
from escala.core.files import write_json
from escala.data.genomes.familiarity import Familiarity, K, learn
from escala.data.nucleotides import encode, letters, nucleotides_only, reverse_complement

CODE = {"a": 1, "c": 2, "g": 3, "t": 4, "u": 4}
IUPAC = set("ACGTUMRWSYKVHDBN-.")

anything = st.text(max_size=40)
#: With full-width A, Cyrillic a and c, and a with an accent, which only look like nucleotides.
mostly_nucleotides = st.text("ACGTUacgtuNnRyKm-.*EFILOPQé\x00\uff21\u0430\u0441\u00e0", max_size=40)


def codes_of(text: str) -> list[int]:
    return [CODE.get(character.lower(), 0) if character.isascii() else 0 for character in text]


@settings(deadline=None)
@given(anything | mostly_nucleotides)
def test_every_letter_has_the_code_of_its_character(text):
    assert list(encode(letters(text))) == codes_of(text)


@settings(deadline=None)
@given(mostly_nucleotides | anything)
def test_nucleotides_are_the_letters_of_iupac(text):
    foreign = {c for c in text if not c.isascii() or c.upper() not in IUPAC}
    assert nucleotides_only(letters(text)) is not bool(foreign)


@settings(deadline=None)
@given(st.text(alphabet="ACGTN", min_size=1, max_size=40))
def test_the_reverse_complement_is_that_of_biopython(text):
    codes = np.frombuffer(encode(letters(text)), np.uint8)
    expected = encode(letters(str(Seq(text).reverse_complement())))
    assert bytes(reverse_complement(codes)) == expected
    assert bytes(reverse_complement(np.stack([codes, codes]))[1]) == expected


texts = st.lists(st.text(alphabet="ACGTN", min_size=1, max_size=60), min_size=1, max_size=4)


def codes_in(text: str) -> np.ndarray:
    return np.frombuffer(encode(letters(text)), np.uint8)


def kmers(text: str) -> list[str]:
    found = [text[i : i + K] for i in range(len(text) - K + 1)]
    return [min(k, str(Seq(k).reverse_complement())) for k in found if "N" not in k]


@settings(deadline=None, max_examples=25)
@given(texts, st.text(alphabet="ACGTN", max_size=60), st.integers(0, 40))
def test_the_fraction_is_that_of_the_kmers_seen(trained, strange, cut):
    known = {kmer for text in trained for kmer in kmers(text)}
    familiarity = Familiarity.learn({0: map(codes_in, trained)}, {})
    asked = trained[0][cut:] + strange
    found = kmers(asked)
    fraction = familiarity.fraction(codes_in(asked))
    if found:
        assert fraction == pytest.approx(np.mean([kmer in known for kmer in found]))
        assert familiarity.fraction(reverse_complement(codes_in(asked))) == fraction
    else:
        assert np.isnan(fraction)


def test_the_threshold_lets_the_stated_fraction_of_held_out_rows_be_flagged(tmp_path):
    random = np.random.default_rng(0)
    genome = random.integers(1, 5, 3000, dtype=np.uint8)
    held_out = []
    for changes in range(1, 101):
        row = genome[500:1500].copy()
        row[random.choice(1000, changes, replace=False)] = 0
        row[:changes] = random.integers(1, 5, changes)
        held_out.append(row)
    learned = Familiarity.learn({0: [genome]}, {0: held_out})
    learned.save(tmp_path / "f.npz")
    familiarity = Familiarity.load(tmp_path / "f.npz")
    for false_alarms in (0.0, 0.05, 0.2):
        threshold = familiarity.threshold(false_alarms)
        flagged = np.mean([familiarity.fraction(row) < threshold for row in held_out])
        assert flagged == familiarity.false_alarm_rate(threshold) <= false_alarms
        assert false_alarms - flagged < 0.02
    threshold = familiarity.threshold(0.05)
    for _ in range(20):
        assert familiarity.fraction(random.permutation(genome[:1000])) < threshold
    assert familiarity.fraction(genome[100:900]) >= threshold


@pytest.mark.parametrize("false_alarms", [-0.1, 1, float("nan")])
def test_false_alarms_are_a_fraction(false_alarms):
    row = codes_in("ACGTTGCAAGCTTAGC")
    with pytest.raises(InputError, match="not from 0 to below 1"):
        Familiarity.learn({0: [row]}, {0: [row]}).threshold(false_alarms)


def written(folder: Path, train: np.ndarray, genomes: list[int], test: np.ndarray) -> None:
    """Write the split of one class from which familiarity is learnt."""
    write_json(folder / "dataset.json", {"window": {"reverse_complement": False}})
    labels = {f"{side}_labels": np.zeros(len(rows), np.int64)
              for side, rows in (("train", train), ("test", test))}  # fmt: skip
    arrays = {"train": train, "train_genomes": np.array(genomes, np.int32), "test": test} | labels
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


@pytest.mark.parametrize("held_out", [[], ["ACGTTGCAAGN"]])
def test_without_a_held_out_kmer_nothing_is_learnt(tmp_path, held_out):
    test = np.array([codes_in(t) for t in held_out]).reshape(-1, 11)
    written(tmp_path, codes_in("ACGTTGCAAGC")[None], [0], test)
    with pytest.raises(InputError, match="false alarms cannot be measured"):
        learn(tmp_path, tmp_path / "familiarity.npz")
    assert not (tmp_path / "familiarity.npz").exists()


def test_what_smoten_made_is_not_learnt(tmp_path):
    random = np.random.default_rng(1)
    real, made = random.integers(1, 5, (2, 200), dtype=np.uint8)
    written(tmp_path, np.stack([real, made]), [0, -1], real[None])
    learnt = learn(tmp_path, tmp_path / "familiarity.npz")
    assert (learnt.fraction(real), learnt.fraction(made)) == (1, 0)
    assert learnt.fraction(reverse_complement(real)) == 0, "of rows of one strand"


def test_a_member_that_differs_is_near_and_what_no_class_is_like_is_far(tmp_path):
    """The second threshold is what test rows reach if their own class is left out."""
    random = np.random.default_rng(3)
    ancestor = random.integers(1, 5, 4000, dtype=np.uint8)

    def changed(genome: np.ndarray, fraction: float) -> np.ndarray:
        places = random.choice(len(genome), int(fraction * len(genome)), replace=False)
        result = genome.copy()
        result[places] = (result[places] + random.integers(0, 3, len(places))) % 4 + 1
        return result

    classes = [changed(ancestor, 0.2) for _ in range(3)]
    rows = {label: genome.reshape(8, 500) for label, genome in enumerate(classes)}
    held_out = {
        label: [changed(row, 0.01) for row in genome.reshape(8, 500)]
        for label, genome in enumerate(classes)
    }
    Familiarity.learn(rows, held_out).save(tmp_path / "f.npz")
    familiarity = Familiarity.load(tmp_path / "f.npz")
    threshold = familiarity.threshold(0.05)

    def said(genome: np.ndarray) -> str:
        return familiarity.likeness(familiarity.fraction(genome), threshold)

    assert said(changed(classes[0], 0.005)) == "familiar"
    assert said(changed(classes[1], 0.03)) == "near"
    assert said(changed(ancestor, 0.2)) == "far", "a fourth class, as like the others as they are"
    assert said(random.integers(1, 5, 4000, dtype=np.uint8)) == "far"
    assert said(np.zeros(100, np.uint8)) == "far", "without a letter there is no evidence"
