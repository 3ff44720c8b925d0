"""Arrays of a split: read as they are described, and refused where they differ from that."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import numpy as np
import pytest

from escala.core.errors import InputError
from escala.data import kind_of
from escala.data.base import Arrays, Spec, description, files, output_shape
from escala.data.settings import derive
from escala.data.splits import Blocks, Side, stratify, write_split
from escala.experiment import read
from escala.experiment.files import ROOT
from escala.experiment.schema import validate

ROWS = {"train": 7, "validation": 2, "test": 3}
DESCRIPTION = {
    "inputs": [
        {"name": "picture", "shape": [4, 5, 3], "dtype": "uint8", "file": "{side}/picture.npy"},
        {"name": "age", "shape": [], "dtype": "float16", "file": "{side}/age.npy"},
    ],
    "targets": {"name": "words", "shape": [6], "dtype": "int32", "file": "{side}_words.npy"},
    "rows": ROWS,
}


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """Return the folder of a split of pictures and ages, with sequences of words as targets."""
    random = np.random.default_rng(0)
    for side, rows in ROWS.items():
        (tmp_path / side).mkdir()
        np.save(tmp_path / side / "picture.npy", random.integers(0, 255, (rows, 4, 5, 3), np.uint8))
        np.save(tmp_path / side / "age.npy", random.random(rows).astype(np.float16))
        words = random.integers(0, 9, (rows, 6), np.int32)
        np.save(tmp_path / f"{side}_words.npy", words)
    describe(tmp_path, **DESCRIPTION)
    return tmp_path


def describe(folder: Path, **description: object) -> None:
    (folder / "dataset.json").write_text(json.dumps(description))


def test_rows_of_several_inputs_are_gathered_as_they_are_stored(split):
    arrays = Arrays(split)
    arrays.touch()
    assert arrays.inputs == (Spec("picture", (4, 5, 3), "uint8"), Spec("age", (), "float16"))
    assert arrays.targets == Spec("words", (6,), "int32")
    assert arrays.sides == ("train", "validation", "test")
    assert [arrays.rows(side) for side in arrays.sides] == [7, 2, 3]
    for rows in (np.array([5, 0, 5]), slice(1, 3)):
        (picture, age), words = arrays.gather("train", rows)
        for found, file in ((picture, "train/picture"), (age, "train/age"), (words, "train_words")):
            expected = np.load(split / f"{file}.npy")[rows]
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)


def test_a_split_may_have_no_validation_side(split):
    rows = {side: ROWS[side] for side in ("test", "train")}
    describe(split, **DESCRIPTION | {"rows": rows})
    assert Arrays(split).sides == ("train", "test")
    assert files(DESCRIPTION | {"rows": rows}) == [
        "train/picture.npy", "train/age.npy", "train_words.npy",
        "test/picture.npy", "test/age.npy", "test_words.npy",
    ]  # fmt: skip


def test_a_limit_of_whole_numbers_reaches_the_spec(tmp_path):
    words = np.array([[1, 7], [2, 0]], np.uint16)
    sides = {side: Side({"age": words[:, :1], "words": words}, words) for side in ("train", "test")}
    about = {"kind": "own", "name": "small", "seed": 4, "provenance": "simulated"}
    write_split(tmp_path, sides, below={"words": 8}, **about)
    assert Arrays(tmp_path).inputs == (
        Spec("age", (1,), "uint16"),
        Spec("words", (2,), "uint16", below=8),
    )
    with pytest.raises(ValueError, match="words of train holds numbers from 0 to 7"):
        write_split(tmp_path, sides, below={"words": 7}, **about)


def test_an_array_that_is_computed_while_it_is_written_gives_the_same_files(tmp_path):
    whole = np.random.default_rng(1).random((7, 3, 2)).astype(np.float16)
    about = {"kind": "own", "name": "small", "seed": 4, "provenance": "simulated"}
    described = {}
    for name in ("whole", "blocks"):
        sides = {}
        for side in ("train", "test"):
            blocks = Blocks(whole.shape, whole.dtype, (whole[row : row + 3] for row in (0, 3, 6)))
            array = whole if name == "whole" else blocks
            sides[side] = Side({"numbers": array}, np.arange(7))
        described[name] = write_split(tmp_path / name, sides, **about)
    assert described["blocks"] == described["whole"]
    (read,), _ = Arrays(tmp_path / "blocks").gather("train", slice(None))
    np.testing.assert_array_equal(read, whole)


@pytest.mark.parametrize(
    ("shape", "classes", "expected"),
    [((), ["a", "b"], (2,)), ((6,), ["a", "b", "c"], (6, 3)), ((), None, ()), ((3,), None, (3,))],
)
def test_a_model_gives_a_probability_for_each_class_or_numbers_like_the_targets(
    shape, classes, expected
):
    described = {"targets": {"shape": list(shape)}} | ({"classes": classes} if classes else {})
    assert output_shape(described) == expected


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((7, 4, 5, 1), np.uint8),
        np.zeros((6, 4, 5, 3), np.uint8),
        np.zeros((7, 4, 5, 3), np.float32),
        np.zeros((7, 4, 5, 3), np.uint8, order="F"),
        np.array([{"not": "numbers"}] * 7),
    ],
    ids=["shape", "rows", "dtype", "order", "objects"],
)
def test_an_array_that_differs_from_its_description_is_refused(split, array):
    np.save(split / "train" / "picture.npy", array)
    with pytest.raises(InputError, match=r"picture\.npy.*Remedy: remove .* and run again"):
        Arrays(split)


@pytest.mark.parametrize(
    "description",
    [
        {},
        DESCRIPTION | {"targets": {"name": "words"}},
        DESCRIPTION | {"rows": {"train": 7}},
        DESCRIPTION | {"rows": ROWS | {"other": 1}},
        DESCRIPTION | {"inputs": [{"name": "a", "shape": [], "dtype": "odd", "file": "x"}]},
        DESCRIPTION | {"targets": DESCRIPTION["targets"] | {"below": 0}},
    ],
)
def test_a_description_that_names_no_arrays_is_refused(split, description):
    describe(split, **description)
    with pytest.raises(InputError, match="is missing, damaged, or of an older version"):
        Arrays(split)


def test_an_array_that_is_missing_is_refused(split):
    (split / "test" / "age.npy").unlink()
    with pytest.raises(InputError, match=r"age\.npy.*cannot be read"):
        Arrays(split)
    (split / "dataset.json").unlink()
    with pytest.raises(InputError, match="is missing"):
        Arrays(split)


def test_a_class_without_rows_is_not_blamed_for_one_with_too_few():
    labels, classes = np.array([0] * 20 + [2]), ["zero", "one", "two"]
    fractions = {"test_fraction": 0.3, "validation_fraction": 0}
    with pytest.raises(InputError, match=r"'two: 1 rows': are too few") as refused:
        stratify(labels, fractions, classes, seed=1)
    assert "leave a class out" in refused.value.remedy


def test_a_path_that_begins_as_an_option_does_is_made_absolute(tmp_path, monkeypatch):
    from escala.data.paths import expanded_path

    monkeypatch.chdir(tmp_path)
    assert expanded_path("-mine/table.csv", "source.path") == f"{tmp_path}/-mine/table.csv"
    assert expanded_path("mine/-table.csv", "source.path") == "mine/-table.csv"
    assert expanded_path("./-m", "source.path") == f"{tmp_path}/-m"


def completed(dataset: dict) -> dict:
    """Return the settings of a dataset with every default filled in."""
    settings = read(ROOT / "config.yaml") | {"datasets": {"d": dataset}}
    return validate(settings, "e.yaml")["datasets"]["d"]


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"oversample": {"method": "none"}}, 2350),
        ({}, 5 * 900),
        ({"oversample": {"order": "before-split"}}, 5 * 900),
        ({"oversample": {"rows": {"SARS": 2250, "COVID": 100}}}, 2350 + 2000),
        # Windows of genomes, and of their other strand.
        ({"oversample": {"method": "none"},
          "window": {"method": "random", "per_genome": 3, "reverse_complement": True}}, 2350 * 6),
    ],
)  # fmt: skip
def test_simulated_training_rows_are_counted_before_they_are_made(settings, rows):
    counts = {"COVID": 900, "DENGUE": 700, "EBOLA": 250, "MERS": 250, "SARS": 250}
    source = {"type": "simulated", "seed": 1, "records": counts}
    genomes = {"kind": "genomes", "source": source, "classes": [*counts], "length": 1000}
    genomes |= {"split": {"test_fraction": 0.3, "seeds": [4]}}
    found = derive("size", completed(genomes | settings))
    assert found == (pytest.approx(rows * 0.7), 1000)


# A dataset of each kind whose rows are known before there are any.
EXPECTED = {
    "outlines": {
        "kind": "images",
        "source": {"type": "outlines", "per_class": 10},
        "size": [8, 10],
        "store": "float16",
        "split": {"test_fraction": 0.2, "validation_fraction": 0.1, "seeds": [1]},
    },
    "motifs": {
        "kind": "motifs",
        "source": {"type": "simulated", "rows": {"train": 20, "validation": 0, "test": 6}},
        "length": 40,
        "split": {"seeds": [1]},
    },
    "scenes": {
        "kind": "captions",
        "source": {"type": "simulated", "pictures": {"train": 20, "validation": 4, "test": 5}},
        "split": {"seeds": [1]},
    },
    "sample": {
        "kind": "tabular",
        "source": {"type": "scikit-learn", "name": "breast_cancer"},
        "split": {"test_fraction": 0.3, "seeds": [1]},
    },
}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_expected_of_a_split_is_what_its_arrays_turn_out_to_be(name, tmp_path):
    dataset, kind = completed(EXPECTED[name]), kind_of(EXPECTED[name])
    if kind.has("source"):
        (tmp_path / "source").mkdir()
        acquisition = derive("acquisition", dataset)
        kind.load("source").acquire(acquisition, [], tmp_path / "source")
    inputs = derive("prepared_from", dataset, tmp_path)
    split = tmp_path / "split"
    split.mkdir()
    preparation = derive("preparation", dataset)
    kind.load("arrays").prepare(name, preparation, 1, inputs, split)
    made = description(split)
    numbers = sum(prod(array["shape"]) for array in made["inputs"])
    assert derive("size", dataset) == (pytest.approx(made["rows"]["train"], abs=1), numbers)
