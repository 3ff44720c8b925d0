"""Similarity of genomes against sets of strings, clusters against all pairs, and leakage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from Bio.Seq import Seq
from fixtures_runs import FakeExperiment
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

from escala.core.errors import InputError
from escala.data.genomes import similarity
from escala.data.genomes.acquire import files
from escala.data.genomes.arrays import encode_classes, read_records
from escala.data.genomes.similarity import (
    K,
    Sketches,
    clusters,
    leakage,
    nearest,
    read_groups,
    sketch,
    write_similarity,
)
from escala.data.nucleotides import encode, letters
from escala.report import tables


def mutated(seed: int, relatives: int, letters: int = 400, changes: int = 6) -> list[str]:
    """Genomes that each differ from an earlier one at some places, some of them turned round."""
    random = np.random.default_rng(seed)
    genomes = ["".join(random.choice(list("ACGT"), letters))]
    for _ in range(relatives - 1):
        text = list(genomes[random.integers(len(genomes))])
        for place in random.choice(len(text), changes, replace=False):
            text[place] = random.choice(list("ACGTN"))
        changed = "".join(text)[random.integers(30) :]
        genomes.append(str(Seq(changed).reverse_complement()) if random.integers(2) else changed)
    return genomes


def kmers(text: str) -> set[str]:
    found = [text[i : i + K] for i in range(len(text) - K + 1)]
    return {min(k, str(Seq(k).reverse_complement())) for k in found if "N" not in k}


def shared(one: str, other: str) -> float:
    """The definition: what the one with fewer k-mers has in common with the other."""
    a, b = kmers(one), kmers(other)
    return len(a & b) / max(min(len(a), len(b)), 1)


@contextmanager
def room(block_bytes: int, dense_bytes: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(similarity, "BLOCK_BYTES", block_bytes)
        patch.setattr(similarity, "DENSE_BYTES", dense_bytes)
        yield


def sketched(genomes: list[str], scale: int = 1) -> Sketches:
    parts = [sketch(np.frombuffer(encode(letters(g)), np.uint8), scale) for g in genomes]
    return Sketches(np.concatenate(parts), np.cumsum([len(part) for part in parts]))


# What a block, and the dense product, may take: everything at once and all of it dense; rows one by
# one and all of it sparse; blocks of a few rows, and the two k-mers most genomes hold dense.
ROOM = pytest.mark.parametrize(
    ("block_bytes", "dense_kmers"), [(2**25, 2**26), (1, 0), (4 * 3 * 12, 2)]
)


@ROOM
@settings(max_examples=10)
@given(st.integers(0, 1000), st.integers(2, 9), st.sampled_from([0.3, 0.5, 0.7, 0.9]))
def test_clusters_are_the_connected_components_of_all_similar_pairs(
    block_bytes, dense_kmers, seed, count, threshold
):
    genomes = mutated(seed, count) + mutated(seed + 1, 3)
    similar = [[shared(one, other) >= threshold for other in genomes] for one in genomes]
    component = connected_components(np.array(similar), directed=False)[1]
    with room(block_bytes, dense_kmers * 4 * len(genomes)):
        found = clusters(sketched(genomes).matrix(), np.zeros(len(genomes), int), threshold)
    members = [set(np.flatnonzero(component == number)) for number in set(component)]
    expected = sorted(members, key=lambda own: (-len(own), min(own)))
    assert [set(np.flatnonzero(found == n + 1)) for n in range(len(expected))] == expected
    assert found.max() == len(expected)


@ROOM
@settings(max_examples=10)
@given(st.integers(0, 1000))
def test_the_nearest_training_genome_is_the_most_similar_one(block_bytes, dense_kmers, seed):
    genomes = [*mutated(seed, 8), *mutated(seed + 1, 2), "ACGT" * 5, "N" * 40]
    train, test = np.array([0, 3, 4, 9]), np.array([1, 2, 5, 6, 7, 8, 10, 11])
    with room(block_bytes, dense_kmers * 4 * len(train)):
        found = nearest(sketched(genomes).matrix(), train, test)
    expected = [[shared(genomes[t], genomes[r]) for r in train] for t in test]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.max(expected, axis=1), rtol=1e-6)
    assert found[-2:].tolist() == [0, 0]


@pytest.mark.parametrize(("threshold", "number"), [(0.95, 1), (np.nextafter(0.95, 1) + 1e-6, 2)])
def test_a_match_at_the_threshold_is_linked(threshold, number):
    hashes = [np.arange(20), np.arange(1, 31)]
    two = Sketches(np.concatenate(hashes).astype(np.uint64), np.array([20, 50]))
    assert clusters(two.matrix(), np.zeros(2, int), threshold).tolist() == [1, number]
    similarity = nearest(two.matrix(), np.array([0]), np.array([1]))
    assert leakage(similarity, threshold) == (number == 1)
    # What SMOTEN made counts as a near-duplicate.
    assert leakage(np.array([0.5, 0.96, np.nan, 0.1], np.float32), 0.9) == 0.5


def test_a_sketch_estimates_the_fraction_and_either_strand_and_case_is_the_same():
    one, other = mutated(3, 2, letters=60_000, changes=400)
    whole = sketch(np.frombuffer(encode(letters(one)), np.uint8), 10)
    turned = str(Seq(one).reverse_complement()).lower()
    assert (whole == sketch(np.frombuffer(encode(letters(turned)), np.uint8), 10)).all()
    assert len(whole) == pytest.approx(len(kmers(one)) / 10, rel=0.1)
    estimate = nearest(sketched([one, other], 10).matrix(), np.array([0]), np.array([1]))
    # Binomial, 6000 k-mers sketched: three standard errors.
    assert estimate == pytest.approx(shared(one, other), abs=0.02)


def test_sketches_are_of_the_records_kept_and_survive_saving(tmp_path):
    one, other, third = mutated(5, 3)
    named = {"a": one, "b": one, "c": other, "d": other, "e": third.lower()}
    (tmp_path / "A.fasta").write_text("".join(f">{n}\n{text}\n" for n, text in named.items()))
    encode_classes(tmp_path, ["A"], 50, "genome", tmp_path)
    records = read_records(tmp_path / "records.tsv")
    assert records["accession"].tolist() == ["a", "c", "e"]
    made = similarity.sketches(tmp_path, records)
    expected = sketched([one, other, third], similarity.SCALE)
    for path in (tmp_path / "sketches.npz", tmp_path / "again.npz"):
        made.save(path)
        loaded = Sketches.load(path)
        assert loaded.hashes.tolist() == expected.hashes.tolist()
        assert loaded.ends.tolist() == expected.ends.tolist()
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "sketches.npz").read_bytes()
    (tmp_path / "A.fasta").write_text(f">a\n{one}\n>c\n{third}\n>e\n{third}\n")
    with pytest.raises(InputError, match="has changed") as caught:
        similarity.sketches(tmp_path, records)
    assert caught.value.value == "c"


RECORDS = pd.DataFrame({"accession": ["a", "b", "NA"], "class": ["X", "X", "Y"]})


@pytest.mark.parametrize(
    ("content", "value", "reason"),
    [
        (None, "groups.tsv", "no such file"),
        ("accession\tclass\n", ["accession", "class"], "no column group"),
        ("accession\tclass\tgroup\na\tX\tg\na\tX\th\n", "a", "is listed twice"),
        ("accession\tclass\tgroup\na\tX\tg\nb\tX\t\nNA\tY\th\n", "b", "has no group"),
        ("accession\tclass\tgroup\na\tX\tg\nb\tX\tg\nNA\tY\tg\n", "g", "several classes"),
    ],
)
def test_a_group_file_that_does_not_fit_is_refused(tmp_path, content, value, reason):
    path = tmp_path / "groups.tsv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_groups(path, RECORDS)
    assert (caught.value.where, caught.value.value) == (path, value)
    assert reason in caught.value.reason
    # A lineage does not count, and lines may end as a spreadsheet ends them.
    head = "accession\tclass\tgroup\tlineage\r\n"
    path.write_text(head + "".join(f"{n}\t{c}\t{c}.{n}\tL\t\r\n" for n, c in ("aX", "bX")))
    assert read_groups(path, RECORDS.iloc[:2]).tolist() == ["X.a", "X.b"]


@pytest.mark.real_data
def test_outbreak_clones_are_one_cluster(tmp_path: Path):
    """Sizes as comparing all 21-mers of all pairs gave them."""
    classes = ["COVID", "EBOLA", "MERS", "SARS"]
    files.fetch({"type": "files", "folder": os.environ["ESCALA_GENOMES"]}, classes, tmp_path)
    encode_classes(tmp_path, classes, 50, "none", tmp_path)
    records = read_records(tmp_path / "records.tsv")
    made = similarity.sketches(tmp_path, records).matrix()
    found = clusters(made, records["label"].to_numpy(), 0.95)
    sizes = [np.bincount(found[records["class"] == name])[1:].tolist() for name in classes]
    assert [sizes[0], sizes[1], sizes[3]] == [[200], [110, 6, 2, 1, 1], [40]]
    assert sizes[2] == [71, 2, 1, 1, 1, 1, 1, 1, 1]


def test_the_similarity_of_a_row_is_that_of_its_genome_to_the_nearest_in_training(tmp_path):
    # Genomes as sets of k-mers: 0 and 3 share 3 of 4, 1 and 2 nothing, of 4 none was kept.
    sets = [[1, 2, 3, 4], [5, 6], [7, 8, 9], [1, 2, 3, 10, 11], []]
    hashes = np.array([k for own in sets for k in own], np.uint64)
    Sketches(hashes, np.cumsum([len(own) for own in sets])).save(tmp_path / "sketches.npz")
    np.save(tmp_path / "train_genomes.npy", np.array([0, 0, 1, -1], np.int32))
    np.save(tmp_path / "test_genomes.npy", np.array([3, 2, 3, -1, 4], np.int32))
    found = write_similarity(tmp_path, tmp_path / "sketches.npz", tmp_path / "out.npy")
    np.testing.assert_array_equal(found, np.float32([0.75, 0, 0.75, np.nan, np.nan]))
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy", allow_pickle=False), found)


def test_accuracy_on_the_rest_is_that_of_rows_without_a_relative(tmp_path):
    experiment = FakeExperiment(tmp_path, not_separable=["MERS"]).add_dataset()
    experiment.add("single", "1x1", 5.0, repeats=1, accuracy=0.9)
    run_folder = experiment.runs[0].parent
    predictions = np.load(run_folder / "predictions.npy")
    labels = np.load(experiment.folder / "data/demo-1000/split4/test_labels.npy")
    # Rows 0, 10, 20, … have no relative: make the first three of them wrong, the others right.
    rest = np.arange(0, len(labels), 10)
    predictions[rest] = labels[rest]
    predictions[rest[:3]] = (labels[rest[:3]] + 1) % 5
    np.save(run_folder / "predictions.npy", predictions)
    frames = tables.tables(experiment.runs, experiment.dataset_files)
    [row] = frames["leakage"].to_dict("records")
    assert (row["test_rows"], row["similar_fraction"]) == (705, pytest.approx(634 / 705))
    assert row["rest_accuracy"] == pytest.approx(68 / 71)
    assert row["accuracy"] == pytest.approx((predictions == labels).mean())
    assert (row["split_by"], row["not_separable"]) == ("random", "MERS")
