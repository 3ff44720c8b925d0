"""FASTA to codes and k-mers, and what is familiar to a model; bad files leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from Bio.Seq import Seq
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.core.errors import InputError
from escala.core.files import write_json
from escala.data.genomes import letters_kept
from escala.data.genomes.arrays import encode_classes, read_records
from escala.data.genomes.familiarity import Familiarity, K, learn
from escala.data.nucleotides import encode, kmers, letters, nucleotides_only, reverse_complement

CODE = {"a": 1, "c": 2, "g": 3, "t": 4, "u": 4}
IUPAC = set("ACGTUMRWSYKVHDBN-.")
#: With full-width A, Cyrillic a and c, and a with an accent, which only look like nucleotides.
mostly_nucleotides = st.text("ACGTUacgtuNnRyKm-.*EFILOPQé\x00\uff21\u0430\u0441\u00e0", max_size=40)


@given(mostly_nucleotides | st.text(max_size=40))
def test_every_letter_has_the_code_of_its_character_and_nucleotides_are_those_of_iupac(text):
    codes = [CODE.get(c.lower(), 0) if c.isascii() else 0 for c in text]
    assert list(encode(letters(text))) == codes
    foreign = {c for c in text if not c.isascii() or c.upper() not in IUPAC}
    assert nucleotides_only(letters(text)) is not bool(foreign)


@given(st.text(alphabet="ACGTN", min_size=1, max_size=40))
def test_the_reverse_complement_is_that_of_biopython(text):
    codes = np.frombuffer(encode(letters(text)), np.uint8)
    expected = encode(letters(str(Seq(text).reverse_complement())))
    assert bytes(reverse_complement(codes)) == expected
    assert bytes(reverse_complement(np.stack([codes, codes]))[1]) == expected


texts = st.lists(st.text(alphabet="ACGTN", min_size=1, max_size=60), min_size=1, max_size=4)


def codes_in(text: str) -> np.ndarray:
    return np.frombuffer(encode(letters(text)), np.uint8)


def text_kmers(text: str) -> list[str]:
    found = [text[i : i + K] for i in range(len(text) - K + 1)]
    return [min(k, str(Seq(k).reverse_complement())) for k in found if "N" not in k]


def test_the_largest_kmer_that_fits_is_exact():
    assert kmers(codes_in("T" * 31), 31, True).tolist() == [0]
    assert kmers(codes_in("C" * 31), 31, True).tolist() == [int("1" * 31, 4)]


@settings(max_examples=25)
@given(texts, st.text(alphabet="ACGTN", max_size=60), st.integers(0, 40))
def test_the_fraction_is_that_of_the_kmers_seen(trained, strange, cut):
    known = {kmer for text in trained for kmer in text_kmers(text)}
    familiarity = Familiarity.learn({0: map(codes_in, trained)}, {})
    asked = trained[0][cut:] + strange
    found = text_kmers(asked)
    fraction = familiarity.fraction(codes_in(asked))
    if found:
        assert fraction == pytest.approx(np.mean([kmer in known for kmer in found]))
        assert familiarity.fraction(reverse_complement(codes_in(asked))) == fraction
    else:
        assert np.isnan(fraction)


def test_the_threshold_lets_the_stated_fraction_of_held_out_rows_be_flagged():
    random = np.random.default_rng(0)
    genome = random.integers(1, 5, 3000, dtype=np.uint8)
    held_out = []
    for changes in range(1, 101):
        row = genome[500:1500].copy()
        row[random.choice(1000, changes, replace=False)] = 0
        row[:changes] = random.integers(1, 5, changes)
        held_out.append(row)
    familiarity = Familiarity.learn({0: [genome]}, {0: held_out})
    for false_alarms in (0.0, 0.05, 0.2):
        threshold = familiarity.threshold(false_alarms)
        flagged = np.mean([familiarity.fraction(row) < threshold for row in held_out])
        assert flagged == familiarity.false_alarm_rate(threshold) <= false_alarms
        assert false_alarms - flagged < 0.02
    with pytest.raises(InputError, match="not from 0 to below 1"):
        familiarity.threshold(1)


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


LENGTH = 6
# X: a2 is a1 in other letters' case, a3 has its first six letters, a4 is a1 once more.
X = ">a1 first\nACGTAC\nGTNN\n>a2\nacgtacgtnn\n>a3\nACGTACTT\n>a4\nACGTACGTNN\n>a5\nRYKMacg-.\n"
Y = ">b1\nUUGGCCAA\n"


def encoded(tmp_path: Path, deduplicate: str, **more: int) -> Path:
    (tmp_path / "X.fasta").write_text(X)
    (tmp_path / "Y.fasta").write_text(Y)
    encode_classes(tmp_path, ["X", "Y"], LENGTH, deduplicate, tmp_path / "data", **more)
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("deduplicate", "kept"),
    [
        ("none", ["a1", "a2", "a3", "a4", "a5", "b1"]),
        ("genome", ["a1", "a3", "a5", "b1"]),
        ("encoded", ["a1", "a5", "b1"]),
    ],
)
def test_the_first_of_each_kind_of_duplicate_is_kept(tmp_path, deduplicate, kept):
    data = encoded(tmp_path, deduplicate)
    table = pd.read_csv(data / "records.tsv", sep="\t")
    assert list(table["accession"]) == kept
    assert list(table["label"]) == [0] * (len(kept) - 1) + [1]
    assert list(table["class"]) == ["X"] * (len(kept) - 1) + ["Y"]
    codes = {
        **dict.fromkeys(("a1", "a2", "a4"), "1234123400"),
        **{"a3": "12341244", "a5": "0000123", "b1": "44332211"},
    }
    array = np.load(data / "codes.npy")
    assert array.dtype == np.uint8
    assert "".join(map(str, array)) == "".join(codes[accession] for accession in kept)
    assert table["letters"].tolist() == [len(codes[accession]) for accession in kept]
    assert table["offset"].tolist() == [0, *table["letters"].cumsum()[:-1]]
    classes = pd.read_csv(data / "classes.csv", index_col=0)
    assert list(classes["kept"]) == [len(kept) - 1, 1]
    x = classes.loc["X"]
    assert x[["records", "duplicates_genome", "duplicates_encoded"]].tolist() == [5, 2, 3]
    assert x[["length_min", "length_median", "length_max"]].tolist() == [7, 10, 10]
    # Of 45 letters, two are N in each of three records, and R, Y, K and M in another.
    assert classes["ambiguous_fraction"].tolist() == [pytest.approx(10 / 45), 0]
    table = read_records(encoded(tmp_path, "none", letters_kept=9) / "records.tsv")
    assert table["letters"].tolist() == [9, 9, 8, 9, 7, 8]
    assert table["length"].tolist() == [10, 10, 8, 10, 7, 8]


@pytest.mark.parametrize(
    ("window", "oversample", "kept"),
    [
        ("start", {"method": "none"}, 1000),
        ("start", {"method": "windows", "within": 100}, 1100),
        ("start", {"method": "windows"}, None),
        ("random", {"method": "none"}, None),
    ],
)
def test_letters_that_no_row_is_cut_from_are_left_out(window, oversample, kept):
    settings = {"length": 1000, "window": {"method": window}, "oversample": oversample}
    assert letters_kept(settings) == kept


@pytest.mark.parametrize(
    ("bad", "value", "reason", "remedy"),
    [
        (None, "Y.fasta", "no such file", "name an existing file"),
        (b">b1\nACGT\n>b2\n", "b2", "no sequence", "remove it"),
        (b">p1\nMKTLLQEF\n", "p1", "(EFLQ), first in line 2, column 4", "proteins are not"),
        (">b1\nACGT\n>p1\nACGT\nAC\u2013GT\n".encode(), "p1", "(\u2013), first in line 5, column 3",
         "IUPAC"),
        (b">p1\nAC\xe9GT\n", "line 2, column 3", "LATIN1, it seems: the byte E9 is \xe9",
         "iconv -f LATIN1"),
        (b">b1\nACGTACTA\n>copy\nacgtacgtnn\n", "copy", "is in X", "one class only"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_and_nothing_is_written(tmp_path, bad, value, reason, remedy):
    (tmp_path / "X.fasta").write_text(X)
    if bad is not None:
        (tmp_path / "Y.fasta").write_bytes(bad)
    output = tmp_path / "data"
    with pytest.raises(InputError) as caught:
        encode_classes(tmp_path, ["X", "Y"], LENGTH, "genome", output)
    assert (caught.value.where, caught.value.value) == (tmp_path / "Y.fasta", value)
    assert reason in caught.value.reason and remedy in caught.value.remedy
    assert not output.exists() or not list(output.iterdir())
