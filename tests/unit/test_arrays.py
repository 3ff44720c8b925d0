"""From codes to training and test arrays: who may meet whom, and what the description says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from escala.data.base import Arrays
from escala.data.genomes import arrays
from escala.data.genomes.records import encode_classes
from escala.data.nucleotides import reverse_complement

# NA and 1 are names that a reader of CSV may take for something else.
CLASSES = ["NA", "1", "B"]
COUNTS = [40, 12, 20]
LENGTH = 30


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Records that are all different genomes, so a row's codes name its record."""
    folder = tmp_path_factory.mktemp("arrays")
    random = np.random.default_rng(0)
    for name, count in zip(CLASSES, COUNTS, strict=True):
        sequences = ["".join(random.choice(list("ACGT"), LENGTH)) for _ in range(count)]
        (folder / f"{name}.fasta").write_text(
            "".join(f">{name}.{i}\n{sequence}\n" for i, sequence in enumerate(sequences))
        )
    encode_classes(folder, CLASSES, LENGTH, "none", folder)
    return folder


def prepared(source: Path, output: Path, **changes: dict) -> dict[str, np.ndarray]:
    """Write the arrays and return them by name, with `dataset.json` under `description`.

    A change of a part, such as `oversample`, keeps what it does not name; `groups` is a file.
    """
    groups = changes.pop("groups", None)
    preparation = {
        "provenance": "files",
        "classes": CLASSES,
        "length": LENGTH,
        "window": {"method": "start", "reverse_complement": False},
        "deduplicate": "none",
        "split": {"by": "random", "test_fraction": 0.3},
        "oversample": {
            "method": "smoten",
            "features": "positions",
            "order": "after-split",
            "neighbours": 5,
            "seed": 0,
        },
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
    """The codes of every genome; all of them have LENGTH letters."""
    return np.load(source / "codes.npy").reshape(-1, LENGTH)


def digests(rows: np.ndarray) -> set[bytes]:
    return set(map(bytes, rows))


@pytest.mark.parametrize("features", ["positions", "sequence"])
def test_split_first_keeps_test_genomes_out_of_training(source, tmp_path, features):
    data = prepared(source, tmp_path, oversample={"features": features})
    originals = digests(genomes_of(source))
    test, train = digests(data["test"]), digests(data["train"])
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
    test = digests(data["test"])
    changed = np.array([row[::-1] if bytes(row) in test else row for row in codes])
    np.save(other / "codes.npy", changed.ravel())
    again = prepared(other, tmp_path / "b")
    assert (again["test"] != data["test"]).any()
    np.testing.assert_array_equal(again["train"], data["train"])


def test_balanced_first_puts_copies_on_both_sides_and_says_so(source, tmp_path):
    data = prepared(source, tmp_path, oversample={"order": "before-split", "features": "sequence"})
    assert data["description"]["leaky"]
    assert digests(data["train"]) & digests(data["test"])
    assert digests(data["train"]) | digests(data["test"]) == digests(genomes_of(source))
    assert np.bincount([*data["train_labels"], *data["test_labels"]]).tolist() == [40, 40, 40]


@pytest.mark.parametrize("order", ["after-split", "before-split"])
def test_the_description_matches_the_files(source, tmp_path, order):
    data = prepared(source, tmp_path, oversample={"order": order})
    description = data["description"]
    assert description["sha256"] == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.glob("*.npy")
    }
    assert len(description["sha256"]) == 6
    assert (description["classes"], description["length"]) == (CLASSES, LENGTH)
    reader = Arrays(tmp_path)
    for side in ("train", "test"):
        (codes,), labels = reader.gather(side, slice(None))
        np.testing.assert_array_equal(codes, data[side])
        np.testing.assert_array_equal(labels, data[f"{side}_labels"])
    for label, (name, records) in enumerate(zip(CLASSES, COUNTS, strict=True)):
        counts = description["counts"][name]
        assert counts["records"] == counts["kept"] == records
        assert counts["balanced"] == (data["train_labels"] == label).sum()
        assert counts["test"] == (data["test_labels"] == label).sum()
        if order == "after-split":
            assert counts["train"] + counts["test"] == records
            assert counts["balanced"] == max(c["train"] for c in description["counts"].values())
        else:
            assert counts["train"] == counts["balanced"]
            assert counts["train"] + counts["test"] == max(COUNTS)


def test_smoten_makes_the_rows_asked_for(source, tmp_path):
    data = prepared(source, tmp_path, oversample={"rows": {"1": 25, "B": 31}})
    counts = data["description"]["counts"]
    assert [counts[name]["balanced"] for name in CLASSES] == [28, 25, 31]
    made = data["train_genomes"] == -1
    assert made.sum() == 25 - counts["1"]["train"] + 31 - counts["B"]["train"]
    originals = digests(genomes_of(source))
    assert not made[: (~made).sum()].any(), "the rows given come first"
    assert all((bytes(row) in originals) for row in data["train"][~made])


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
    assert len(data["train"]) + len(data["test"]) == 6 * sum(COUNTS)


def test_groups_stay_whole_and_a_class_of_one_group_is_trained_on(source, tmp_path):
    records = pd.read_csv(source / "records.tsv", sep="\t", keep_default_na=False, dtype=str)
    number = records.groupby("class").cumcount()
    records["group"] = records["class"] + "." + (number % 4).astype(str)
    records.loc[records["class"] == "1", "group"] = "alone"
    groups = tmp_path / "groups.tsv"
    records[["accession", "class", "group"]].to_csv(groups, sep="\t", index=False)
    names, plain = records["group"].to_numpy(), {"groups": groups, "oversample": {"method": "none"}}
    data = prepared(source, tmp_path / "data", split={"by": "group-file"}, **plain)
    train, test = (set(names[data[f"{side}_genomes"]]) for side in ("train", "test"))
    assert not train & test
    assert data["description"]["not_separable"] == ["1"]
    assert "alone" in train
    assert data["description"]["counts"]["1"]["test"] == 0
    left_out = {"by": "group-file", "leave_out": ["B.2"]}
    data = prepared(source, tmp_path / "left", split=left_out, **plain)
    assert set(names[data["test_genomes"]]) == {"B.2"}
