"""Datasets of the kind `arrays`: what a user saved with NumPy, in the sides of a split."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np
import pytest

from escala.core.errors import InputError
from escala.data.arrays import arrays, queries, settings
from escala.data.base import Arrays
from escala.experiment import Experiment
from tests.programs import experiment_on

pytestmark = pytest.mark.usefixtures("registries")
ROWS = 40
random = np.random.default_rng(5)
X = random.normal(size=(ROWS, 3, 2)).astype(np.float32)
WORDS = random.integers(0, 50, (ROWS, 4), np.int32)
Y = random.integers(0, 3, ROWS)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("y.npy", Y)
    np.savez("all.npz", x=X, words=WORDS, y=Y)


def checked(given: dict) -> dict:
    """Return the settings of a dataset, as an experiment completes and checks them."""
    script, split = Path("script"), {"seeds": [4]} | given.get("split", {})
    script.mkdir(exist_ok=True)
    own = {"kind": "arrays"} | given | {"split": split}
    reads = {"command": "true {data.split}", "directory": "script", "data_kind": "arrays"}
    experiment = experiment_on("e", {"reads": reads}, datasets={"own": own})
    return Experiment(experiment, "e.yaml").datasets["own"]


def prepared(seed: int = 4, **given: object) -> Arrays:
    done = checked(given)
    output = Path("split")
    output.mkdir(exist_ok=True)
    read = settings.prepared_from(done, output)
    arrays.prepare("own", settings.preparation(done), seed, read, output)
    split = Arrays(output)
    expected = settings.size(done)
    assert split.rows("train") == pytest.approx(expected.rows, abs=1)
    assert expected.numbers == sum(prod(spec.shape) for spec in split.inputs)
    return split


def rows_of(split: Arrays) -> dict[str, np.ndarray]:
    """Return the numbers of the rows of `X` on each side."""
    found = {}
    for side in split.sides:
        (*_, x), _ = split.gather(side, slice(None))
        found[side] = [int(np.flatnonzero((row == X).all(axis=(1, 2)))[0]) for row in x]
    return found


class TestPrepared:
    def test_rows_are_divided_by_fractions_and_a_seed(self):
        given = {
            "train": {
                "inputs": {"x": "x.npy", "words": "all.npz:words"},
                "targets": "all.npz:y",
            },
            "below": {"words": 50},
            "split": {"test_fraction": 0.3, "validation_fraction": 0.2},
        }
        split = prepared(**given)
        assert split.inputs[0].below == 50
        rows = rows_of(split)
        assert {side: len(each) for side, each in rows.items()} == {
            "train": 20, "validation": 8, "test": 12,
        }  # fmt: skip
        assert sorted(itertools.chain(*rows.values())) == list(range(ROWS))
        for side, numbers in rows.items():
            (words, _), y = split.gather(side, slice(None))
            np.testing.assert_array_equal(words, WORDS[numbers])
            np.testing.assert_array_equal(y, Y[numbers])
        assert rows_of(prepared(**given)) == rows
        assert rows_of(prepared(5, **given)) != rows

    def test_rows_of_one_class_each_are_divided_in_proportion(self):
        np.save("y.npy", Y[:, None].astype(np.uint8))
        split = prepared(**given_as("x.npy", classes=["a", "b", "c"], split={"test_fraction": 0.5}))
        assert (split.targets.shape, split.targets.dtype) == ((), "int64")
        for number, name in enumerate("abc"):
            rows = np.sum(number == Y)
            assert abs(split.description["counts"][name]["test"] - rows / 2) <= 1

    def test_sides_have_files_of_their_own(self):
        np.savez_compressed("t.npz", x=X[:7], y=Y[:7])
        split = prepared(
            train={"inputs": {"x": "all.npz:x"}, "targets": "all.npz:y"},
            test={"inputs": {"x": "t.npz:x"}, "targets": "t.npz:y"},
            classes=3,
            split={"validation_fraction": 0.25},
        )
        rows = rows_of(split)
        assert rows["test"] == list(range(7))
        assert sorted(rows["train"] + rows["validation"]) == list(range(ROWS))
        assert split.description["classes"] == ["0", "1", "2"]

    @pytest.mark.parametrize(
        "stored",
        [np.asfortranarray(X), X.astype(">f8"), X > 0, WORDS.astype(">u2")],
        ids=["fortran", "big-endian", "bool", "big-endian-integers"],
    )
    @pytest.mark.parametrize("blocks", [1, 2**25])
    def test_numbers_are_those_of_numpy_in_the_machines_order(self, stored, blocks, monkeypatch):
        monkeypatch.setattr(arrays, "BLOCK_BYTES", blocks)
        np.save("s.npy", stored)
        np.savez("s.npz", stored)
        split = prepared(train={"inputs": {"x": "x.npy", "s": "s.npy", "p": "s.npz"},
                                "targets": "s.npy"})  # fmt: skip
        for side, numbers in rows_of(split).items():
            (p, s, _), targets = split.gather(side, slice(None))
            for found in (p, s, targets):
                np.testing.assert_array_equal(found, stored[numbers])
                assert found.dtype == stored.dtype.newbyteorder("=")

    def test_what_is_missing_is_refused_or_kept(self):
        y = Y.astype(np.float64)
        y[[31, 17]] = np.nan
        np.save("y.npy", y)
        with pytest.raises(InputError, match=r"datasets.own.train.targets: 'row (17|31) of.*nan"):
            prepared(**given_as("x.npy"))
        split = prepared(**given_as("x.npy", missing="keep"))
        kept = [split.gather(side, slice(None))[1] for side in split.sides]
        assert np.isnan(np.concatenate(kept)).sum() == 2

    def test_a_refused_preparation_leaves_the_earlier_one_as_it_was(self):
        before = prepared(**given_as("x.npy"))
        held = {p: p.read_bytes() for p in Path("split").rglob("*") if p.is_file()}
        x = X.copy()
        x[7] = np.nan
        np.save("x.npy", x)
        with pytest.raises(InputError, match="row 7 of"):
            prepared(**given_as("x.npy"))
        assert {p: p.read_bytes() for p in Path("split").rglob("*") if p.is_file()} == held
        np.save("x.npy", X)
        after = prepared(
            train={"inputs": {"z": "x.npy"}, "targets": "y.npy"}, split={"test_fraction": 0.5}
        )
        assert before.rows("train") > after.rows("train")
        assert sorted(p.name for p in Path("split/train").iterdir()) == ["z.npy"]

    def test_numbers_out_of_their_limits_are_refused_by_row(self):
        given = {"inputs": {"x": "x.npy", "words": "all.npz:words"}, "targets": "y.npy"}
        with pytest.raises(InputError, match=r"train.inputs.words: 'row .* below 9\. Remedy"):
            prepared(train=given, below={"words": 9})
        np.save("y.npy", Y + 1)
        with pytest.raises(InputError, match=r"train.targets: 'row .*: holds 3.*number them from"):
            prepared(train=given, classes=3)


def _instead(make: Callable[[str], object]) -> Callable[[], None]:
    """Return a change that makes something else of `x.npy`."""
    return lambda: (Path("x.npy").unlink(), make("x.npy"))


def given_as(x: str, y: str = "y.npy", name: str = "x", **more: object) -> dict:
    return {"train": {"inputs": {name: x}, "targets": y}} | more


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: np.save("x.npy", np.array([{}] * ROWS), allow_pickle=True),
         "holds Python objects, which are not read"),
        (lambda: np.save("x.npy", np.array(["a"] * ROWS)), "holds texts"),
        (lambda: np.save("x.npy", X.astype(np.complex64)), "holds complex numbers"),
        (lambda: np.save("x.npy", X[:0]), r"has shape \(0, 3, 2\)"),
        (lambda: np.save("x.npy", np.float32(3)), "has no axis, and so no rows"),
        (lambda: np.save("x.npy", X[:-1]), "has 39 rows, and the targets have 40"),
        (lambda: os.truncate("x.npy", 950 + 128),
         "is cut short: its header announces 960 bytes, and it holds 950"),
        (lambda: Path("x.npy").write_text("1,2,3\n"), "is not a file of NumPy, or is damaged"),
        (_instead(lambda _: None), "there is no such file"),
        (_instead(os.mkdir), "cannot be read: Is a directory"),
        (_instead(os.mkfifo), "it is a pipe, a socket or a device"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_before_anything_is_prepared(make, reason):
    make()
    with pytest.raises(InputError, match=rf"e.yaml: datasets.own.train.inputs.x: .*{reason}"):
        checked(given_as("x.npy"))


@pytest.mark.parametrize(
    ("given", "where", "reason"),
    [
        (given_as("all.npz"), "train.inputs.x", "holds x, words, y"),
        (given_as("all.npz:z"), "train.inputs.x", "holds no z; it holds x, words, y"),
        (given_as("x.npy:x"), "train.inputs.x", "there is no such file"),
        (given_as("x.npy", "x.npy", classes=3), "train.targets",
         "classes are numbered by whole numbers"),
        (given_as("x.npy", test=given_as("x.npy", name="w")["train"]), "test.inputs",
         "differ from those of train: x"),
        (given_as("x.npy", test=given_as("all.npz:words")["train"]), "test.inputs.x",
         r"int32 of shape \(4,\), and those of train are float32 of shape \(3, 2\)"),
        (given_as("x.npy", below={"x": 5}), "below.x",
         "is not an input of whole numbers. Remedy: leave below out"),
        (given_as("x.npy", classes=["a", "=1+b"]), "classes", "is not a valid name of a class"),
        (given_as("x.npy", split={"test_fraction": 0.5, "validation_fraction": 0.5}), "split",
         "leave no row to train on"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_together_are_refused(given, where, reason):
    with pytest.raises(InputError, match=rf"e.yaml: datasets.own.{where}: .*({reason})"):
        checked(given)


def test_an_archive_with_wrong_bytes_is_refused():
    data = bytearray(Path("all.npz").read_bytes())
    data[400] ^= 255
    Path("all.npz").write_bytes(data)
    given = {"sides": {"train": {"x": [0, "x"], "targets:": [0, "y"]}}, "classes": None,
             "below": {}, "missing": "keep",
             "split": {"test_fraction": 0.5, "validation_fraction": 0}}  # fmt: skip
    Path("split").mkdir()
    with pytest.raises(InputError, match=r"train.inputs.x: .*all.npz.*damaged: Bad CRC"):
        arrays.prepare("own", given, 1, {"file0": Path("all.npz")}, Path("split"))
    assert list(Path("split").iterdir()) == []


def test_new_rows_are_read_in_the_form_of_the_model():
    given = {"inputs": {"x": "x.npy", "words": "all.npz:words"}, "targets": "y.npy"}
    split = prepared(train=given)
    found = list(queries.queries(Path("all.npz"), split.description))
    assert [query.columns for query in found] == [{"row": row} for row in range(ROWS)]
    for place, expected in enumerate((WORDS, X)):
        rows = np.concatenate([query.inputs[place] for query in found])
        np.testing.assert_array_equal(rows, expected)
    np.savez("new.npz", x=X, words=WORDS[:, :2])
    for path, reason in (
        ("x.npy", "is one array, and the model has several inputs"),
        ("new.npz", r"int32 of shape \(2,\), and the model takes int32 of shape \(4,\)"),
    ):
        with pytest.raises(InputError, match=reason):
            list(queries.queries(Path(path), split.description))
