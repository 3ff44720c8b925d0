"""How often a model is wrong about pieces of each length, and which records that flags."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
import pytest

from escala.core.files import write_json
from escala.data import KINDS
from escala.data.genomes import familiarity, fragments
from escala.predict import lengths
from escala.predict.classify import predict
from escala.predict.lengths import Measured, enough, judge, summary
from escala.predict.model import Classifier
from tests.unit.test_classify import CODES, LENGTH

RANDOM = np.random.default_rng(5)
#: Genomes of two classes: one of the letters A and C, one of G and T.
GENOMES = [RANDOM.integers(1, 3, 400), RANDOM.integers(3, 5, 400)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A split of two genomes, and a model that sees class Y only in rows of 30 letters or more."""
    split = tmp_path / "split1"
    split.mkdir()
    np.save(tmp_path / "codes.npy", np.concatenate(GENOMES).astype(np.uint8))
    pd.DataFrame(
        {"class": ["X", "Y"], "label": [0, 1], "accession": ["x", "y"], "length": 400,
         "genome": ["x", "y"], "offset": [0, 400], "letters": 400}
    ).to_csv(tmp_path / "records.tsv", sep="\t", index=False)  # fmt: skip
    rows = np.concatenate(GENOMES).astype(np.uint8).reshape(-1, LENGTH)
    labels = np.repeat([0, 1], len(rows) // 2)
    for side in ("train", "test"):
        np.save(split / f"{side}.npy", rows)
        np.save(split / f"{side}_labels.npy", labels)
        np.save(split / f"{side}_genomes.npy", labels)
    window = {"method": "tiles", "reverse_complement": False}
    data = {"inputs": [CODES._asdict()], "window": window}
    write_json(split / "dataset.json", data)
    familiarity.learn(split, split / "familiarity.npz")

    def probabilities(inputs: tuple) -> np.ndarray:
        is_y = (inputs[0] > 2).sum(axis=1) >= 30
        return np.stack([~is_y, is_y], axis=1).astype(np.float32)

    model = Classifier("own", ["X", "Y"], (CODES,), {"data": data}, probabilities, None)
    monkeypatch.setattr("escala.predict.classify.load", lambda folder: model)
    monkeypatch.setattr(fragments, "LENGTHS", (12, 20, 30, 40, 100, 200))
    (tmp_path / "run.json").write_text('{"status": "ok"}')
    return tmp_path


def measured(run) -> list[Measured]:
    split = run / "split1"
    known = split / "familiarity.npz"
    return lengths.measure(KINDS["genomes"], run, split, known, 0.05, run / "errors.json")


def test_errors_are_measured_by_length_until_none_is_left(run):
    found = measured(run)
    assert [entry.letters for entry in found] == [12, 20, 30, 40, LENGTH]
    assert [entry.error for entry in found] == [pytest.approx(0.5, abs=0.05)] * 2 + [0] * 3
    assert {entry.pieces for entry in found} == {fragments.FRAGMENTS}
    assert lengths.read(run / "errors.json") == found == measured(run), "the seed is fixed"


def test_short_records_are_flagged_and_counted_and_keep_their_class(run):
    errors = measured(run)
    text = "".join("ACGT"[code - 1] for code in GENOMES[1])
    query = run / "reads.fasta"
    query.write_text(f">a\n{text[:25]}\n>b\n{text[:35]}\n>c\n{text}\n>d\n{'ACGT' * 5}\n")
    output = run / "reads.tsv"
    known = run / "split1" / "familiarity.npz"
    predict(KINDS["genomes"], query, run, known, 0.05, output, judge(errors, 0.02))
    table = pd.read_csv(output, sep="\t").set_index("accession")
    assert table["predicted"].tolist() == ["X", "Y", "Y", "X"]
    assert table["shorter_than_rows"].tolist() == [True, True, False, True]
    assert table["too_short"].tolist() == [True, False, False, True]
    half = pytest.approx(0.5, abs=0.05)
    assert table["error_at_length"].tolist() == [half, 0, 0, half]
    said = summary(output, errors, 0.02).splitlines()
    assert said[-1].startswith("4 records: 3 shorter than the model's rows, 2 too short, ")
    assert said[-1].endswith(str(output))
    counts = dict(
        re.search(r"(\d+ records) of (.*)", line).groups()[::-1]
        for line in said[:-2]
        if "wrong" in line
    )
    assert counts == {"20 to 29 letters": "2 records", "30 to 39 letters": "1 records",
                      f"{LENGTH} letters or more": "1 records"}  # fmt: skip
    assert any("fewer than 30 letters" in line for line in said)


def test_a_length_is_enough_if_all_longer_ones_are():
    one = Measured(100, 10, 0, 10, 0)
    bad = one._replace(letters=200, wrong_familiar=3)
    assert enough([one, bad, one._replace(letters=300)], 0.05) == 300
    assert enough([one], 0.05) == 100
    assert math.isinf(enough([one, bad], 0.05))
    assert enough([one, bad], 0.3) == 100
    # Without a familiar piece nothing was measured.
    assert math.isinf(enough([one._replace(familiar=0)], 1))
    assert judge([bad], 0.05)({"letters": 10**6})["too_short"]
    assert judge([], 0.05)({"letters": 3}) == {}


def test_fragments_are_of_test_genomes_and_of_either_strand_if_rows_are(run):
    window = {"method": "tiles", "reverse_complement": True}
    data = {"inputs": [CODES._asdict()], "window": window}
    np.save(run / "split1" / "test_genomes.npy", np.array([-1, 1, 1]))
    drawn = list(fragments.fragments(run / "split1", data))
    assert {label for _, pieces in drawn for _, label in pieces} == {1}
    strands = {bool((query.evidence > 2).all()) for _, pieces in drawn for query, _ in pieces}
    assert strands == {True, False}
