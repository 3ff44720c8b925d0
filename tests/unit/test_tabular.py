"""Tables of numbers with a class: what is read of CSV files, and what a model is given of them."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.data.base import Arrays
from escala.data.tabular import arrays, source, table
from escala.data.tabular.queries import queries

#: Without the time of packing, which would make the names of tests change.
PACKED = gzip.compress(b"1,2,x\n" * 99, mtime=0)
PREPARATION = {
    "provenance": "csv",
    "missing": "refuse",
    "constant_features": "refuse",
    "standardise": True,
    "split": {"test_fraction": 0.25, "validation_fraction": 0.25},
}


def read(path: Path, header: str = "auto") -> tuple[list[str], np.ndarray, list[str]]:
    columns = table.columns(path, header)
    parts = list(table.blocks(path, columns))
    return (
        list(columns.features),
        np.concatenate([features for features, _ in parts]),
        [label for _, labels in parts for label in labels],
    )


@pytest.fixture
def file(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "table.csv"
        path.write_text(text)
        return path

    return write


numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)
names = st.text("abc ,\"'é1", min_size=1, max_size=8).filter(lambda text: text.strip())
rows = st.lists(st.tuples(numbers, numbers, names), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(rows, st.booleans())
def test_what_is_written_by_the_csv_module_is_read_back(tmp_path_factory, rows, header):
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([("x", "y", "class")] * header)
    writer.writerows((repr(x), repr(y), name) for x, y, name in rows)
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_text(text.getvalue())
    features, values, labels = read(path)
    assert features == (["x", "y"] if header else ["feature-1", "feature-2"])
    np.testing.assert_array_equal(values, [row[:2] for row in rows])
    assert labels == [row[2].strip() for row in rows]


def test_missing_values_are_not_numbers_and_gzip_is_read(tmp_path):
    path = tmp_path / "t.csv.gz"
    with gzip.open(path, "wt") as handle:
        handle.write("1,?,x\n,NA,y\n2,3,NA\n")
    _, values, labels = read(path)
    np.testing.assert_array_equal(values, [[1, np.nan], [np.nan, np.nan], [2, 3]])
    assert labels == ["x", "y", "NA"], "a class may be called so"


def test_blocks_join_without_a_seam(file, monkeypatch):
    monkeypatch.setattr(table, "BLOCK_ROWS", 7)
    path = file("a,b\n" + "".join(f"{number},{number % 3}\n" for number in range(50)))
    _, values, labels = read(path)
    np.testing.assert_array_equal(values[:, 0], range(50))
    assert labels == [str(number % 3) for number in range(50)]


@pytest.mark.parametrize(
    ("text", "value", "reason"),
    [
        ("", None, "holds no rows"),
        ("1\n2\n", "1", "one column only"),
        ("1,2,x\n3,4\n", "row 2", "has 2 columns, and the first row has 3"),
        ("1,2,x\n3,4,y,5\n", "row 2", "has 4 columns, and the first row has 3"),
        ("a,b,c\n1,2,x\n3,abc,y\n", "b", "is no finite number: 'abc' in row 2"),
        ("1,2,x\n3,inf,y\n", "feature-2", "is no finite number"),
        ("1,2,x\n3,4,\n", "row 2", "has no class"),
        ("a,a,c\n1,2,x\n", "a", "names two columns"),
        ("1,2,x\n3,1_000,y\n", "feature-2", "is no finite number: '1_000' in row 2"),
        ("1,2,x\n3,\uff11,y\n", "feature-2", "is no finite number: '\uff11' in row 2"),
        ("1,2,x\n1,2,\x003,x\n", "row 2, column 3", "holds a NUL character"),
        ("1,2,x\n3,\x00,y\n", "row 2, column 2", "holds a NUL character"),
        ("1,2,x\n3,4,y\x00z\n", "row 2, column 3", "holds a NUL character"),
        ("\x001,2,x\n3,4,y\n", "first line, column 1", "holds a NUL character"),
        ("class,u\na,1\nb,2\n", "class", "is no finite number: 'a' in row 1"),
        ("1;2;x\n", "1;2;x", "one column only: semicolons separate"),
        ("1\t2\tx\n", "1\t2\tx", "one column only: tabs separate"),
        ("# 3 rows\n1,2,x\n", "# 3 rows", "one column only: it is a comment"),
        ("u,v,class\n", None, "holds no rows"),
        ('1,2,"x\n3,4,y\n', None, "a quote is not closed"),
    ],
)
def test_what_is_no_table_is_refused_with_its_place(file, text, value, reason):
    path = file(text)
    with pytest.raises(InputError) as caught:
        read(path)
    assert (caught.value.where, caught.value.value) == (path, value)
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("name", "content", "reason", "remedy"),
    [
        ("no.csv", None, "no such file", "name a CSV file that exists"),
        (".", None, "is a directory", "name a CSV file in it"),
        ("t.csv.gz", b"1,2,x\n", "is not valid gzip", "remove .gz from its name"),
        ("t.csv.gz", PACKED[:-9], "ends early", "copy the file again"),
        ("t.csv.gz", PACKED[:9] + b"xxx", "is damaged", "copy the file"),
        ("t.csv", PACKED, "is not text in UTF-8", "in .gz"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_a_remedy_for_its_cause(
    tmp_path, name, content, reason, remedy
):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read(path)
    assert caught.value.where == path
    assert reason in caught.value.reason and remedy in caught.value.remedy


def test_classes_are_in_the_order_of_numbers_or_of_letters():
    assert table.ordered(["10", "9", "2.5"], "t") == ["2.5", "9", "10"]
    assert table.ordered(["b", "a", "10"], "t") == ["10", "a", "b"]
    with pytest.raises(InputError, match="fewer than two classes"):
        table.ordered(["a"], "t")


@pytest.fixture
def prepared(tmp_path, file):
    """Return a function that takes a table's text to the arrays of a split."""

    def make(text: str, **changes) -> tuple[Path, dict]:
        folder, output = tmp_path / "source", tmp_path / "split"
        folder.mkdir()
        output.mkdir()
        source.acquire({"type": "csv", "header": "auto"}, [file(text)], folder)
        description = arrays.prepare("t", PREPARATION | changes, 3, {"source": folder}, output)
        return output, description

    return make


def rows_of(count: int) -> str:
    random = np.random.default_rng(0)
    values = random.normal(5, 3, (count, 2))
    return "u,v,class\n" + "".join(
        f"{u},{v},{'ab'[i % 4 == 0]}\n" for i, (u, v) in enumerate(values)
    )


def test_sides_are_disjoint_complete_and_scaled_by_the_training_rows(prepared, file):
    output, description = prepared(rows_of(80))
    reader = Arrays(output)
    assert {side: reader.rows(side) for side in reader.sides} == {
        "train": 40,
        "validation": 20,
        "test": 20,
    }
    _, values, _ = read(file(rows_of(80)))
    sides = {side: reader.gather(side, slice(None)) for side in reader.sides}
    scaler = StandardScaler()
    scale = description["scaling"]
    raw = {s: x[0] * scale["scale"] + scale["mean"] for s, (x, _) in sides.items()}
    scaler.fit(raw["train"])
    np.testing.assert_allclose(scaler.mean_, scale["mean"], rtol=1e-5)
    np.testing.assert_allclose(scaler.scale_, scale["scale"], rtol=1e-5)
    together = np.concatenate(list(raw.values()))
    order, wanted = np.lexsort(together.T), np.lexsort(values.T)
    np.testing.assert_allclose(together[order], values[wanted], rtol=1e-4, atol=1e-4)
    for _, labels in sides.values():
        assert np.bincount(labels).tolist() == [len(labels) * 3 // 4, len(labels) // 4]


def test_missing_values_are_refused_dropped_or_filled(prepared, tmp_path):
    lines = rows_of(40).splitlines()
    lines[3] = "?" + lines[3][lines[3].index(",") :]
    text = "\n".join(lines) + "\n"
    with pytest.raises(InputError, match="row 3, column 1, u") as caught:
        prepared(text)
    assert "missing: drop" in caught.value.remedy
    for folder in ("source", "split"):
        (tmp_path / folder).rename(tmp_path / f"{folder}-refused")
    _, description = prepared(text, missing="drop")
    assert sum(description["rows"].values()) == 39
    for folder in ("source", "split"):
        (tmp_path / folder).rename(tmp_path / f"{folder}-dropped")
    output, description = prepared(text, missing="mean")
    assert sum(description["rows"].values()) == 40
    reader = Arrays(output)
    filled = [reader.gather(side, slice(None))[0][0][:, 0] for side in reader.sides]
    # Standardised, the mean is 0; no measured value is.
    assert sum((column == 0).sum() for column in filled) == 1


def test_constant_features_are_refused_dropped_or_kept(prepared, tmp_path):
    text = "".join(f"7,{number},{'ab'[number % 2]}\n" for number in range(40))
    with pytest.raises(InputError, match="same value in all training rows"):
        prepared(text)
    for folder in ("source", "split"):
        (tmp_path / folder).rename(tmp_path / f"{folder}-refused")
    output, description = prepared(text, constant_features="drop")
    assert description["inputs"][0]["shape"] == [1]
    for folder in ("source", "split"):
        (tmp_path / folder).rename(tmp_path / f"{folder}-dropped")
    output, _ = prepared(text, constant_features="keep")
    (features,), _ = Arrays(output).gather("train", slice(None))
    assert (features[:, 0] == 0).all() and features.shape[1] == 2


def test_a_class_of_too_few_rows_is_refused(prepared):
    text = rows_of(40) + "1,2,rare\n"
    with pytest.raises(InputError, match=r"rare: 1 rows.*set header: yes"):
        prepared(text)


def test_queries_are_scaled_as_the_table_was(prepared, tmp_path):
    output, description = prepared(rows_of(80))
    description = read_json(output / "dataset.json")
    path = tmp_path / "new.csv"
    path.write_text("5.5,1.25,b\n")
    (query,) = queries(path, description)
    scale = description["scaling"]
    wanted = (np.array([5.5, 1.25]) - scale["mean"]) / scale["scale"]
    np.testing.assert_allclose(query.inputs[0], [wanted], rtol=1e-6)
    assert query.columns == {"row": 1, "class": "b"}
    path.write_text("u,v\n5.5,1.25\n")
    (unlabelled,) = queries(path, description)
    assert unlabelled.columns == {"row": 1}
    np.testing.assert_array_equal(unlabelled.inputs[0], query.inputs[0])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("v,u\n1,2\n", "stands where the model reads u"),
        ("1,2,3,4\n", "the model reads 2 features"),
        ("1,2,c\n", "is no class that the model knows"),
        ("1,,a\n", "row 1, v.*a value is missing"),
        ("", "holds no rows"),
        ("u,v\n", "holds no rows"),
    ],
)
def test_queries_of_another_table_are_refused(prepared, tmp_path, text, reason):
    _, description = prepared(rows_of(80))
    path = tmp_path / "new.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=reason):
        list(queries(path, description))
