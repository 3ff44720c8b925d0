"""Rows of genomes: windows, balancing, the split, and the arrays that come of them."""

from __future__ import annotations

import hashlib
import json
from itertools import chain, combinations
from pathlib import Path

import numpy as np
import pytest
from Bio.Seq import Seq
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.core.errors import InputError
from escala.data.base import Arrays
from escala.data.genomes import arrays
from escala.data.genomes.arrays import encode_classes
from escala.data.genomes.split import (
    SLACK,
    group_split,
    split_at_random,
    split_leaving_out,
)
from escala.data.genomes.windows import (
    ROW,
    blocks,
    class_sizes,
    more_rows,
    random_windows,
    synthetic,
    windows,
)
from escala.data.nucleotides import encode, letters, reverse_complement


def labelled(counts: list[int], seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Return labels in mixed order, and the names of the classes."""
    labels = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(seed).permutation(labels), [f"C{n}" for n in range(len(counts))]


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 12), min_size=2, max_size=10),
    st.sampled_from([0.1, 0.3, 0.5, 0.8]),
    st.integers(0, 2**32 - 1),
)
def test_either_refused_or_every_row_once_and_each_class_on_both_sides(counts, fraction, seed):
    labels, names = labelled(counts)
    try:
        split = split_at_random(labels, names, fraction, seed)
    except InputError as error:
        assert min(counts) * min(fraction, 1 - fraction) < 1.5
        assert error.value == counts[names.index(error.where.removeprefix("class "))]
        return
    train, test = split.train, split.test
    assert sorted([*train, *test]) == list(range(len(labels)))
    assert list(train) == sorted(train) and list(test) == sorted(test)
    for side in (train, test):
        assert set(labels[side]) == set(range(len(counts)))
    for label, count in enumerate(counts):
        # One row from rounding within the class, one from rounding the whole test set up.
        assert abs((labels[test] == label).sum() - count * fraction) < 2


@pytest.mark.parametrize(
    ("counts", "lacking"),
    [
        ([20, 20, 0], "C2"),
    ],
)
def test_a_class_too_small_for_both_sides_is_named(counts, lacking):
    with pytest.raises(InputError, match=f"class {lacking}.*too few.*add records"):
        split_at_random(*labelled(counts), 0.3, 0)


grouped = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=2, max_size=5)


def in_groups(sizes: list[list[int]], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels and groups of rows in mixed order; `sizes` has the rows of each group, by class."""
    rows = [
        (label, f"g{label}.{number}")
        for label, groups in enumerate(sizes)
        for number, size in enumerate(groups)
        for _ in range(size)
    ]
    order = np.random.default_rng(seed).permutation(len(rows))
    labels, groups = zip(*(rows[i] for i in order), strict=True)
    return np.array(labels), np.array(groups, object)


@given(grouped, st.sampled_from([0.1, 0.3, 0.5, 0.8]), st.integers(0, 100))
def test_groups_stay_whole_and_the_fraction_is_nearly_that_asked_for(sizes, fraction, seed):
    labels, groups = in_groups(sizes)
    classes = [f"C{label}" for label in range(len(sizes))]
    single = tuple(label for label, own in enumerate(sizes) if len(own) == 1)
    if len(single) == len(sizes):
        with pytest.raises(InputError, match="none can be split"):
            group_split(labels, groups, classes, fraction, seed)
        return
    split = group_split(labels, groups, classes, fraction, seed)
    assert sorted([*split.train, *split.test]) == list(range(len(labels)))
    assert list(split.train) == sorted(split.train) and list(split.test) == sorted(split.test)
    assert not set(groups[split.train]) & set(groups[split.test])
    assert split.single_group_classes == single
    for label, own in enumerate(sizes):
        tested = (labels[split.test] == label).sum()
        if len(own) == 1:
            assert tested == 0
            continue
        assert 0 < tested < sum(own)
        wanted = fraction * sum(own)
        subsets = chain.from_iterable(combinations(own, n) for n in range(1, len(own)))
        nearest = min(abs(sum(subset) - wanted) for subset in subsets)
        assert abs(tested - wanted) <= max(nearest, SLACK * wanted)


def test_the_seed_alone_decides_the_groups_and_none_is_tested_always():
    labels, groups = in_groups([[31, 30, 28, 6, 5, 4], [3] * 8])
    tested = [
        set(groups[group_split(labels, groups, ["A", "B"], 0.3, seed).test])
        for seed in (*range(30), 0)
    ]
    assert tested[0] == tested[-1]
    assert len(set(map(frozenset, tested))) > 10
    assert not set.intersection(*tested)
    assert set.union(*tested) == set(groups)


def test_the_groups_left_out_are_the_test_rows():
    labels, groups = in_groups([[5, 4, 3], [7], [2, 2]])
    split = split_leaving_out(labels, groups, ["A", "B", "C"], ["g0.1", "g2.0"])
    assert set(groups[split.test]) == {"g0.1", "g2.0"}
    assert set(groups[split.train]) == {"g0.0", "g0.2", "g1.0", "g2.1"}
    assert split.single_group_classes == (1,)
    # A class may be empty.
    drawn = group_split(labels, groups, ["A", "B", "C", "D"], 0.5, 0)
    assert drawn.single_group_classes == (1, 3)
    for left_out, reason in (
        (["g0.9"], "'g0.9': .*no such group"),
        (["g2.0", "g2.1"], "all groups of class C"),
    ):
        with pytest.raises(InputError, match=reason):
            split_leaving_out(labels, groups, ["A", "B", "C"], left_out)


LENGTH = 8
START = {"method": "start", "reverse_complement": False}
texts = st.lists(st.text(alphabet="ACGTN", min_size=1, max_size=40), min_size=1, max_size=6)


class Genomes:
    def __init__(self, texts: list[str]):
        self.texts = texts
        self.letters = np.array([len(text) for text in texts])
        self.offsets = np.concatenate([[0], np.cumsum(self.letters)[:-1]])
        self.codes = np.frombuffer(encode(letters("".join(texts))), np.uint8)
        self.numbers = np.arange(len(texts))

    def cut(self, rows: np.ndarray, block_bytes: int = 3 * LENGTH) -> np.ndarray:
        cut = blocks(self.codes, self.offsets, self.letters, rows, LENGTH, block_bytes)
        return np.concatenate(list(cut))


def row_of(text: str, begin: int, reverse: bool = False) -> bytes:
    piece = text[begin : begin + LENGTH]
    piece = str(Seq(piece).reverse_complement()) if reverse else piece
    return encode(letters(piece)).ljust(LENGTH, b"\0")


@given(texts, st.integers(1, 12))
def test_tiles_cover_every_letter_and_no_tile_hangs_over_the_end(sequences, stride):
    genomes = Genomes(sequences)
    tiles = {"method": "tiles", "stride": stride, "reverse_complement": False}
    rows = windows(genomes.numbers, genomes.letters, LENGTH, tiles, 0)
    for number, text in enumerate(sequences):
        begins = rows["begin"][rows["genome"] == number].tolist()
        last = max(len(text) - LENGTH, 0)
        assert begins == sorted({*range(0, last + 1, stride), last})
        if stride <= LENGTH:
            covered = {i for begin in begins for i in range(begin, begin + LENGTH)}
            assert covered >= set(range(len(text)))
    assert [bytes(row) for row in genomes.cut(rows)] == [
        row_of(sequences[genome], begin) for genome, begin, _ in rows.tolist()
    ]


@given(texts, st.sampled_from(["start", "random", "tiles"]), st.integers(0, 50))
def test_both_strands_are_a_row_and_its_reverse_complement(sequences, method, seed):
    genomes = Genomes(sequences)
    setting = {"method": method, "per_genome": 2, "stride": 3, "reverse_complement": True}
    rows = windows(genomes.numbers, genomes.letters, LENGTH, setting, seed)
    one = setting | {"reverse_complement": False}
    alone = windows(genomes.numbers, genomes.letters, LENGTH, one, seed)
    assert (rows[::2] == alone).all()
    assert rows["reverse"][1::2].all()
    last = np.maximum(genomes.letters - LENGTH, 0) * (method != "start")
    assert (rows["begin"] <= last[rows["genome"]]).all()
    assert method != "random" or (np.bincount(alone["genome"]) == 2).all()
    assert [bytes(row) for row in genomes.cut(rows)] == [
        row_of(sequences[g], b, r) for g, b, r in rows.tolist()
    ]


@pytest.mark.parametrize(("within", "begins"), [(4, range(5)), (None, range(13))])
def test_windows_to_balance_with_begin_within_the_letters_given(within, begins):
    genomes = Genomes(["ACGT" * 5] * 4)
    rows = windows(genomes.numbers, genomes.letters, LENGTH, START, 0)
    added, again, other = (
        random_windows(rows, genomes.letters, LENGTH, 201, within, seed) for seed in (1, 1, 2)
    )
    assert set(added["begin"]) == set(begins)
    assert sorted(np.bincount(added["genome"])) == [50, 50, 50, 51], "genomes take turns"
    assert (added == again).all()
    assert (added != other).any()
    assert not added["reverse"].any()
    rows["reverse"][0] = True
    strands = random_windows(rows, genomes.letters, LENGTH, 201, within, 1)["reverse"]
    assert 50 < strands.sum() < 150, "both strands, where the rows hold both"


CLASSES = ["A", "B", "C"]
COUNTS = [30, 9, 14]


@pytest.fixture
def rows_of_classes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, labels in mixed order, and genomes; class B holds one genome twice."""
    random = np.random.default_rng(0)
    labels = random.permutation(np.repeat([0, 1, 2], COUNTS))
    roots = random.integers(0, 5, (3, LENGTH))
    shape = len(labels), LENGTH
    changed = random.random(shape) < 0.3
    codes = np.where(changed, random.integers(0, 5, shape), roots[labels]).astype(np.uint8)
    genomes = np.array([f"genome{row}" for row in range(len(labels))])
    first, second = np.flatnonzero(labels == 1)[:2]
    codes[second], genomes[second] = codes[first], genomes[first]
    return codes, labels, genomes


def added(rows_of_classes, **changes) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes and labels of the rows that are added."""
    codes, labels, genomes = rows_of_classes
    oversample = {"method": "smoten", "features": "positions", "neighbours": 5, "seed": 3} | changes
    whole = np.zeros(len(codes), ROW)
    whole["genome"] = np.arange(len(codes))
    letters, identities = np.full(len(codes), LENGTH), np.unique(genomes, return_inverse=True)[1]
    enlarged = class_sizes(labels, CLASSES, oversample)
    copied = more_rows(whole, labels, letters, identities, enlarged, oversample, LENGTH)["genome"]
    made = list(synthetic(codes, labels, enlarged, oversample))
    return (
        np.concatenate([codes[copied], *(block for _, block in made)]),
        np.concatenate([labels[copied], *(np.full(len(b), label) for label, b in made)]),
    )


def test_sequence_adds_copies_of_rows_and_positions_rows_that_no_record_has(rows_of_classes):
    codes, classes, _ = rows_of_classes
    copies, labels = added(rows_of_classes, features="sequence")
    made, same_labels = added(rows_of_classes)
    assert np.bincount(labels).tolist() == np.bincount(same_labels).tolist() == [0, 21, 16]
    for row, label in zip(copies, labels, strict=True):
        assert (codes[classes == label] == row).all(axis=1).any()
    assert set(map(bytes, made)) - set(map(bytes, codes))
    one, other = (added(rows_of_classes, seed=seed)[0] for seed in (3, 4))
    assert (one == made).all() and (one != other).any()


@pytest.mark.parametrize("features", ["positions", "sequence"])
def test_only_classes_named_and_below_their_target_grow(rows_of_classes, features):
    for rows, counts in (({"A": 20, "B": 17}, [0, 8]), ({"A": 29, "C": 3}, []), ({}, [])):
        assert (
            np.bincount(added(rows_of_classes, features=features, rows=rows)[1]).tolist() == counts
        )


@pytest.mark.parametrize("features", ["positions", "sequence"])
def test_a_class_that_grows_needs_more_rows_than_neighbours(rows_of_classes, features):
    added(rows_of_classes, features=features, neighbours=8)
    with pytest.raises(InputError, match=r"class B: 9: .*9 neighbours.*oversample\.neighbours"):
        added(rows_of_classes, features=features, neighbours=9)
    _, labels = added(rows_of_classes, features=features, neighbours=10, rows={"C": 20})
    assert np.bincount(labels).tolist() == [0, 0, 6]


# NA and 1 are names that a reader of CSV may take for something else.
NAMES = ["NA", "1", "B"]
RECORDS = [40, 12, 20]
LETTERS = 30


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Records that are all different genomes, so a row's codes name its record."""
    folder = tmp_path_factory.mktemp("arrays")
    random = np.random.default_rng(0)
    for name, count in zip(NAMES, RECORDS, strict=True):
        sequences = ["".join(random.choice(list("ACGT"), LETTERS)) for _ in range(count)]
        (folder / f"{name}.fasta").write_text(
            "".join(f">{name}.{i}\n{sequence}\n" for i, sequence in enumerate(sequences))
        )
    encode_classes(folder, NAMES, LETTERS, "none", folder)
    return folder


def prepared(source: Path, output: Path, **changes: dict) -> dict[str, np.ndarray]:
    """Write the arrays and return them by name, with `dataset.json` under `description`."""
    groups = changes.pop("groups", None)
    preparation = {
        "provenance": "files",
        "classes": NAMES,
        "length": LETTERS,
        "window": {"method": "start", "reverse_complement": False},
        "deduplicate": "none",
        "split": {"by": "random", "test_fraction": 0.3},
        "oversample": {"method": "smoten", "features": "positions", "order": "after-split"}
        | {"neighbours": 5, "seed": 0},
    }
    for key, change in changes.items():
        preparation[key] = preparation[key] | change if isinstance(change, dict) else change
    inputs = {"codes": source / "codes.npy"} | ({"groups": groups} if groups else {})
    returned = arrays.prepare("three", preparation, 4, inputs, output)
    description = json.loads((output / "dataset.json").read_text())
    assert description == returned
    found = {path.stem: np.load(path) for path in output.glob("*.npy")}
    return found | {"description": description}


def genomes_of(source: Path) -> np.ndarray:
    """The codes of every genome; all of them have LETTERS letters."""
    return np.load(source / "codes.npy").reshape(-1, LETTERS)


def set_of(rows: np.ndarray) -> set[bytes]:
    return set(map(bytes, rows))


@pytest.mark.parametrize("features", ["positions", "sequence"])
def test_split_first_keeps_test_genomes_out_of_training(source, tmp_path, features):
    data = prepared(source, tmp_path, oversample={"features": features})
    originals = set_of(genomes_of(source))
    test, train = set_of(data["test"]), set_of(data["train"])
    assert test < originals
    assert not train & test
    assert train & originals == originals - test
    assert not data["description"]["leaky"]
    if features == "sequence":
        assert train == originals - test


def test_split_first_balances_with_training_rows_alone(source, tmp_path):
    """Change the test rows' codes and the training rows stay as they are, to the byte."""
    data = prepared(source, tmp_path / "a")
    codes, other = genomes_of(source), tmp_path / "other"
    other.mkdir()
    for name in ("records.tsv", "classes.csv"):
        (other / name).write_bytes((source / name).read_bytes())
    test = set_of(data["test"])
    changed = np.array([row[::-1] if bytes(row) in test else row for row in codes])
    np.save(other / "codes.npy", changed.ravel())
    again = prepared(other, tmp_path / "b")
    assert (again["test"] != data["test"]).any()
    np.testing.assert_array_equal(again["train"], data["train"])


@pytest.mark.parametrize("order", ["after-split", "before-split"])
def test_the_description_matches_the_files(source, tmp_path, order):
    data = prepared(source, tmp_path, oversample={"order": order})
    description = data["description"]
    assert description["sha256"] == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.glob("*.npy")
    }
    assert len(description["sha256"]) == 6
    assert (description["classes"], description["length"]) == (NAMES, LETTERS)
    reader = Arrays(tmp_path)
    for side in ("train", "test"):
        (codes,), labels = reader.gather(side, slice(None))
        np.testing.assert_array_equal(codes, data[side])
        np.testing.assert_array_equal(labels, data[f"{side}_labels"])
    for label, (name, records) in enumerate(zip(NAMES, RECORDS, strict=True)):
        counts = description["counts"][name]
        assert counts["records"] == counts["kept"] == records
        assert counts["balanced"] == (data["train_labels"] == label).sum()
        assert counts["test"] == (data["test_labels"] == label).sum()
        if order == "after-split":
            assert counts["train"] + counts["test"] == records
            assert counts["balanced"] == max(c["train"] for c in description["counts"].values())
        else:
            assert counts["train"] == counts["balanced"]
            assert counts["train"] + counts["test"] == max(RECORDS)
    assert description["leaky"] == (order == "before-split")


def test_every_row_names_the_genome_it_comes_from(source, tmp_path):
    window = {"method": "tiles", "stride": 5, "reverse_complement": True}
    data = prepared(source, tmp_path, length=20, window=window, oversample={"method": "none"})
    genomes = genomes_of(source)
    for side in ("train", "test"):
        rows = zip(data[side], data[f"{side}_genomes"], strict=True)
        for index, (row, genome) in enumerate(rows):
            piece = row if index % 2 == 0 else reverse_complement(row)
            assert bytes(piece) in bytes(genomes[genome])
    assert not set(data["train_genomes"]) & set(data["test_genomes"])
    # Tiles begin at 0, 5 and 10, each on two strands.
    assert len(data["train"]) + len(data["test"]) == 6 * sum(RECORDS)
