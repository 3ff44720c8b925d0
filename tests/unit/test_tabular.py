"""Tables of numbers with a class: what is read of CSV files, and what a model is given of them."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.core.text import read_table
from escala.data.base import Arrays
from escala.data.tabular import arrays, source, table
from escala.data.tabular.arrays import queries
from escala.data.tabular.table import class_name, order_classes

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
        np.concatenate([block.features for block in parts]),
        [label for block in parts for label in block.labels],
    )


@pytest.fixture
def file(tmp_path):
    return lambda text: (tmp_path / "table.csv").write_text(text) and tmp_path / "table.csv"


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


@pytest.mark.parametrize("word", ["", "na", " NA ", "-nan", "NULL", "NA\u00a0", "\\N", "#VALUE!"])
def test_a_word_for_a_missing_value_is_one_in_features_classes_and_the_first_line(file, word):
    # Spaces of any kind around a value do not count.
    features, values, labels = read(file(f"1,{word},a\n2,3,{word}\n\t4\u202f,5,b\u3000\n"))
    assert features == ["feature-1", "feature-2"]
    np.testing.assert_array_equal(values, [[1, np.nan], [2, 3], [4, 5]])
    assert labels == ["a", "", "b"]


def test_equal_numbers_and_truth_values_are_one_class():
    for name, written in {
        "1": ("1", "1.0", "01", "1e0", "+1", " 1 ", "1.", "10e-1"),
        "0": ("-0.0", "0"),
        "0.5": (".50",),
        "True": ("True", "TRUE"),
        "\u00e9": ("e\u0301",),
    }.items():
        assert {class_name(text) for text in written} == {name}
    for text in ("12345678901234567890123", "1e999999", "0x1", "1_0", "\uff11"):
        assert class_name(text) == text
    assert order_classes(["10", "9", "2.5"], "t") == ["2.5", "9", "10"]
    assert order_classes(["b", "a", "10"], "t") == ["10", "a", "b"]


NO_NUMBERS = ("1,200", "1,200,300.5", "1.200.300", "-1'200", "1\u00a0200,5", "12,5", "=A1*2")


@pytest.mark.parametrize(
    ("text", "value", "reason"),
    [
        ("1\n2\n", "1", "one column only"),
        ("1,2,x\n3,4\n", "line 2", "has 2 columns, and the first has 3"),
        ("a,b,c\n1,2,x,9\n3,4,y\n", "line 2", "has 4 columns, and the first has 3"),
        ("a,b,c,\n1,2,x,\n", "line 1, column 4", "has no name"),
        ("label,u,v\n3,1,2\n", "label", "stands first, and the last column, v, would be"),
        ("1,3.l5,x\n2,4,y\n", "line 1", "may be a header or a sample: 1 is a number, and 3.l5"),
        ('u,v,c\n1,2,"a\nb"\n\n3,oh,d\n', "line 5, column 2, v", "is not a finite number: 'oh'"),
        ("u,v,c\nnan,inf,a\n", "line 2, column 2, v", "is not a finite number: 'inf'"),
        ("a,a,c\n1,2,x\n", "a", "names two columns"),
        ("1,2,x\n3,\x00,y\n", "line 2, column 2", "holds a NUL character"),
        ("# 3 rows\n1,2,x\n", "# 3 rows", "one column only: it is a comment"),
        ("@relation flowers\n@data\n1,2,x\n", "@relation flowers", "such as ARFF"),
        ("sep=,\nu,v,c\n1,2,x\n", "sep=,", "names the delimiter for a spreadsheet"),
        ('1,2,x\n1,2,"x\n3,4,y\n', "line 2", "a quote is not closed"),
        *((f'u,v,c\n1,"{text}",a\n', "line 2, column 2, v", f"{text!r}. Remedy: write 1.5 for 1,5")
          for text in NO_NUMBERS),
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused_with_its_place(file, text, value, reason):
    path = file(text)
    with pytest.raises(InputError) as caught:
        read(path)
    assert (caught.value.where, caught.value.value) == (path, value)
    said = f"{caught.value.reason}. Remedy: {caught.value.remedy}"
    assert all(part in said for part in reason.split(". Remedy: "))


@pytest.fixture
def prepared(tmp_path, file):
    """Return a function that takes a table's text to the arrays of a split."""

    def make(text: str, header: str = "auto", **changes) -> tuple[Path, dict]:
        folder, output = (Path(tempfile.mkdtemp(dir=tmp_path)) for _ in range(2))
        source.acquire({"type": "csv", "header": header}, [file(text)], folder)
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
    _, values, _ = read(file(rows_of(80)))
    sides = {side: reader.gather(side, slice(None)) for side in reader.sides}
    assert {s: len(y) for s, (_, y) in sides.items()} == {"train": 40, "validation": 20, "test": 20}
    scale = description["scaling"]
    raw = {s: x[0] * scale["scale"] + scale["mean"] for s, (x, _) in sides.items()}
    scaler = StandardScaler().fit(raw["train"])
    np.testing.assert_allclose(scaler.mean_, scale["mean"], rtol=1e-5)
    np.testing.assert_allclose(scaler.scale_, scale["scale"], rtol=1e-5)
    together = np.concatenate(list(raw.values()))
    order, wanted = np.lexsort(together.T), np.lexsort(values.T)
    np.testing.assert_allclose(together[order], values[wanted], rtol=1e-4, atol=1e-4)
    for _, labels in sides.values():
        assert np.bincount(labels).tolist() == [len(labels) * 3 // 4, len(labels) // 4]


def test_missing_values_are_refused_dropped_or_filled(prepared):
    lines = rows_of(40).splitlines()
    lines[3] = "?" + lines[3][lines[3].index(",") :]
    text = "\n".join(lines) + "\n"
    with pytest.raises(InputError, match="line 4, u': a value is missing") as caught:
        prepared(text)
    assert "missing: drop" in caught.value.remedy
    _, description = prepared(text, missing="drop")
    assert sum(description["rows"].values()) == 39
    output, description = prepared(text, missing="mean")
    assert sum(description["rows"].values()) == 40
    reader = Arrays(output)
    filled = [reader.gather(side, slice(None))[0][0][:, 0] for side in reader.sides]
    # Standardised, the mean is 0; no measured value is.
    assert sum((column == 0).sum() for column in filled) == 1
    lines = rows_of(40).splitlines()
    lines[5] = lines[5].rpartition(",")[0] + ",NA"
    text = "\n".join(lines) + "\n"
    for missing in ("refuse", "mean"):
        with pytest.raises(InputError, match=r"line 6, class': the class is missing"):
            prepared(text, missing=missing)
    _, description = prepared(text, missing="drop")
    assert description["classes"] == ["a", "b"] and sum(description["rows"].values()) == 39
    with pytest.raises(InputError, match=r"missing: 'drop': leaves no row of the class c"):
        prepared(rows_of(40) + "1,NA,c\n?,2,c\n", missing="drop")


def test_constant_features_are_refused_dropped_or_kept(prepared):
    text = "".join(f"7,{number + 2},{'ab'[number % 2]}\n" for number in range(40))
    with pytest.raises(InputError, match="same value in all training rows"):
        prepared(text)
    output, description = prepared(text, constant_features="drop")
    assert description["inputs"][0]["shape"] == [1]
    output, _ = prepared(text, constant_features="keep")
    (features,), _ = Arrays(output).gather("train", slice(None))
    assert (features[:, 0] == 0).all() and features.shape[1] == 2


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
    ("name", "separator", "packed"),
    [("t.tsv", "\t", open), ("t.csv.xz", ";", lzma.open), ("t.tab.gz", "\t", gzip.open),
     ("t.txt", "|", open), ("t.csv.bz2", ",", bz2.open)],
)  # fmt: skip
def test_tables_are_read_as_pandas_reads_them(tmp_path, name, separator, packed):
    random = np.random.default_rng(1)
    frame = pd.DataFrame(random.normal(size=(30, 3)), columns=["x, y", "u", "z"])
    frame.insert(1, "kind", [f"a{n % 2}" for n in range(30)])
    frame.insert(0, "", [f"s{n}" for n in range(30)])
    with packed(tmp_path / name, "wt", newline="") as file:
        frame.to_csv(file, sep=separator, index=False)
    columns = table.columns(tmp_path / name, "auto", "kind", ["", "u"])
    (block,) = table.blocks(tmp_path / name, columns)
    assert columns.features == ("x, y", "z") and columns.label == "kind"
    np.testing.assert_array_equal(block.features, frame[["x, y", "z"]])
    assert block.labels.tolist() == frame["kind"].tolist()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"label": "w"}, "'w': is not a column.*u, v, class"),
        ({"drop": ["w"]}, "'w': is not a column.*u, v, class"),
        ({"label": "u", "drop": ["u"]}, "leaves no feature and class"),
        ({"drop": ["u", "v"]}, "leaves no feature and class"),
    ],
)
def test_columns_that_a_table_lacks_are_refused(file, options, reason):
    with pytest.raises(InputError, match=reason):
        table.columns(file("u,v,class\n1,2,a\n"), "auto", **options)


def test_new_rows_are_read_by_the_names_of_the_table(prepared, tmp_path):
    _, description = prepared(rows_of(80))
    rows = pd.DataFrame({"class": ["b", "a"], "v": [1.25, 2.0], "id": ["s1", "s2"], "u": [5.5, 3]})
    rows.to_csv(tmp_path / "new.tsv", sep="\t", index=False)
    found = list(queries(tmp_path / "new.tsv", description))
    scale = description["scaling"]
    wanted = (rows[["u", "v"]].to_numpy() - scale["mean"]) / scale["scale"]
    np.testing.assert_allclose(np.concatenate([q.inputs[0] for q in found]), wanted, rtol=1e-6)
    assert [query.columns["class"] for query in found] == ["b", "a"]
    rows.drop(columns="class").to_csv(tmp_path / "new.tsv", sep="\t", index=False)
    for query, same in zip(queries(tmp_path / "new.tsv", description), found, strict=True):
        np.testing.assert_array_equal(query.inputs[0], same.inputs[0])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("v,w\n1,2\n", "has no column u, and the model reads 2 features"),
        ("1,2,c\n", "is not a class that the model knows"),
        ("u,v,class\n1,2,a\n1,,a\n", "line 3, v.*a value is missing"),
        ("u,v,class\n1,2,a\n3,4,NA\n", "line 3, column 3.*a missing class is not a class"),
        ("0,1,2,a\n", "4 columns.*the model reads 2 features"),
    ],
)
def test_queries_of_another_table_are_refused(prepared, tmp_path, text, reason):
    _, description = prepared(rows_of(80))
    path = tmp_path / "new.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=reason):
        list(queries(path, description))


def test_names_and_whole_numbers_are_classes_and_measured_numbers_are_not():
    for name in ("v1.{}", "{}"):
        table.require_classes({name.format(n): 2 for n in range(12)}, "t.csv")
    with pytest.raises(InputError, match="regression"):
        table.require_classes({f"1.{n}": 2 for n in range(12)}, "t.csv")


def test_a_quote_in_a_table_with_tabs_is_a_character(tmp_path):
    rows = ['A1\t"Li et al.\t"bat"', 'A2\tthe "old" one\tcat', 'A3\t3" tube\tbat']
    (tmp_path / "t.tsv").write_text("\n".join(["id\tauthor\thost", *rows]))
    found = read_table(tmp_path / "t.tsv")
    assert [*found["id"]] == ["A1", "A2", "A3"] and [*found["host"]] == ["bat", "cat", "bat"]
    assert [*found["author"]] == ['"Li et al.', 'the "old" one', '3" tube']


@pytest.mark.parametrize("rest", ["A3,cat\n", 'A3,"cat"\n', '"A3","cat"\n'])
def test_the_line_of_an_open_quote_is_named(rest, tmp_path):
    (tmp_path / "t.csv").write_text(f'id,host\nA1,bat\nA2,"bat\n{rest}')
    with pytest.raises(InputError, match=r"line 3.*a quote is not closed"):
        read_table(tmp_path / "t.csv")
