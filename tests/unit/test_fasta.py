"""FASTA to codes, counted by hand; bad files refused with nothing left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from escala.core.errors import InputError
from escala.data.genomes.records import encode_classes, read_records

LENGTH = 6
# X: a2 is a1 in other letters' case, a3 has its first six letters, a4 is a1 once more.
X = ">a1 first\nACGTAC\nGTNN\n>a2\nacgtacgtnn\n>a3\nACGTACTT\n>a4\nACGTACGTNN\n>a5\nRYKMacg-.\n"
Y = ">b1\nUUGGCCAA\n"


def write(folder: Path, **files: str | bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / f"{name}.fasta").write_bytes(data)
    return folder


def encoded(tmp_path: Path, deduplicate: str, **more: int) -> Path:
    folder = write(tmp_path / "sequences", X=X, Y=Y)
    encode_classes(folder, ["X", "Y"], LENGTH, deduplicate, tmp_path / "data", **more)
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
    classes = pd.read_csv(data / "classes.csv", index_col="class")
    assert list(classes["kept"]) == [len(kept) - 1, 1]


def test_only_the_letters_asked_for_are_kept(tmp_path):
    data = encoded(tmp_path, "none", letters_kept=9)
    table = read_records(data / "records.tsv")
    assert table["letters"].tolist() == [9, 9, 8, 9, 7, 8]
    assert table["length"].tolist() == [10, 10, 8, 10, 7, 8]
    assert len(np.load(data / "codes.npy")) == 50


def test_the_counts_of_a_class_are_those_made_by_hand(tmp_path):
    report = pd.read_csv(encoded(tmp_path, "none") / "classes.csv", index_col="class")
    x = report.loc["X"]
    assert x[["records", "duplicates_genome", "duplicates_encoded"]].tolist() == [5, 2, 3]
    assert x[["length_min", "length_median", "length_max"]].tolist() == [7, 10, 10]
    # Of 45 letters, two are N in each of three records, and R, Y, K and M in another, whose gaps
    # are no letters.
    assert x["ambiguous_fraction"] == pytest.approx(10 / 45)
    assert report.loc["Y", "ambiguous_fraction"] == 0


@pytest.mark.parametrize(
    ("bad", "value", "reason", "remedy"),
    [
        (None, "Y.fasta", "no such file", "name an existing file"),
        (b">b1\nACGT\n>b2\n", "b2", "no sequence", "remove it"),
        (b">b1\n>b2\nACGT\n", "b1", "no sequence", "remove it"),
        (b">p1\nMKTLLQEF\n", "p1", "(EFLQ), first in line 2, column 4, as a protein", "nucleotide"),
        (b">m1\nACGTXXXXACGT\n", "m1", "(X), first in line 2, column 5", "N for an unknown"),
        (">b1\nACGT\n>p1\nACGT\nAC\u2013GT\n".encode(), "p1", "(\u2013), first in line 5, column 3",
         "IUPAC"),
        (b">p1\nAC\xe9GT\n", "line 2, column 3", "LATIN1, it seems: the byte E9 is \xe9",
         "iconv -f LATIN1"),
        (b">b1\nACGTACTA\n>copy\nacgtacgtnn\n", "copy", "is in X", "one class only"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_and_nothing_is_written(tmp_path, bad, value, reason, remedy):
    folder = write(tmp_path / "sequences", X=X, **({} if bad is None else {"Y": bad}))
    output = tmp_path / "data"
    with pytest.raises(InputError) as caught:
        encode_classes(folder, ["X", "Y"], LENGTH, "genome", output)
    assert (caught.value.where, caught.value.value) == (folder / "Y.fasta", value)
    assert reason in caught.value.reason and remedy in caught.value.remedy
    assert not output.exists() or not list(output.iterdir())
