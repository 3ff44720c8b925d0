"""Records to rows of the table, with a classifier and a familiarity made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from Bio.Seq import Seq

from escala.core.errors import InputError
from escala.core.files import write_json
from escala.data import KINDS
from escala.data.base import Query, Spec
from escala.data.genomes import familiarity
from escala.data.nucleotides import encode, letters, reverse_complement
from escala.predict import classify
from escala.predict.model import Classifier

LENGTH = 50
CODES = Spec("codes", (LENGTH,), "uint8")
RANDOM = np.random.default_rng(0)
GENOMES = ["".join(RANDOM.choice(list("ACGT"), 600)) for _ in range(2)]


def codes_of(text: str) -> np.ndarray:
    return np.frombuffer(encode(letters(text)), np.uint8)


def fraction_of_a(codes: np.ndarray) -> np.ndarray:
    """The probability of class X is the fraction of A among the letters of a row."""
    fraction = (codes == 1).mean(axis=1)
    return np.stack([fraction, 1 - fraction], axis=1).astype(np.float32)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder, and a split's: rows of both genomes; held out are their other strands."""
    write_json(tmp_path / "run.json", {"status": "ok"})
    write_json(tmp_path / "dataset.json", {"window": {"reverse_complement": True}})
    rows = [codes_of(g[i : i + LENGTH]) for g in GENOMES for i in range(0, 551, 10)]
    made = RANDOM.integers(1, 5, (3, LENGTH), dtype=np.uint8)
    np.save(tmp_path / "train.npy", np.concatenate([rows, made]))
    np.save(tmp_path / "train_genomes.npy", np.array([0] * len(rows) + [-1] * 3))
    np.save(tmp_path / "train_labels.npy", np.arange(len(rows) + 3) * 2 // (len(rows) + 3))
    turned = [codes_of(str(Seq(g[i : i + LENGTH]).reverse_complement()))
              for g in GENOMES for i in range(5, 500, 13)]  # fmt: skip
    np.save(tmp_path / "test.npy", np.array(turned))
    np.save(tmp_path / "test_labels.npy", np.arange(len(turned)) * 2 // len(turned))
    judge(monkeypatch, "tiles")
    return tmp_path


def judge(
    monkeypatch: pytest.MonkeyPatch, method: str, probabilities=fraction_of_a, strands=False, **more
) -> None:
    """Let a model of rows cut by a method judge what follows."""
    window = {"method": method, "reverse_complement": strands}
    description = {"data": {"inputs": [CODES._asdict()], "window": window}}
    classifier = Classifier(
        "own", ["X", "Y"], (CODES,), description, lambda inputs: probabilities(*inputs), None
    )
    classifier = replace(classifier, **more)
    monkeypatch.setattr(classify, "load", lambda folder: classifier)


def predicted(run: Path, text: str | bytes, name: str = "query.fasta") -> pd.DataFrame:
    query = run / name
    query.write_bytes(text if isinstance(text, bytes) else text.encode())
    familiarity.learn(run, run / "familiarity.npz")
    known = run / "familiarity.npz"
    table = classify.predict(KINDS["genomes"], query, run, known, 0.05, run / "out.tsv")
    written = pd.read_csv(run / "out.tsv", sep="\t")
    assert list(written.columns) == list(table.columns)
    return table.set_index("accession")


def test_a_record_is_a_row_with_probabilities_that_are_means_over_its_tiles(run):
    text = GENOMES[0][:130]
    row = predicted(run, f">a some words\n{text}\n>b\nCC\n").loc["a"]
    # Tiles begin every 50 letters, and the last one ends where the record does.
    tiles = [text[begin : begin + LENGTH] for begin in (0, 50, 80)]
    assert (row["letters"], row["windows"]) == (130, 3)
    expected = np.mean([tile.count("A") / LENGTH for tile in tiles])
    assert row["probability_X"] == pytest.approx(expected)
    assert row["probability_X"] + row["probability_Y"] == pytest.approx(1)
    assert row["predicted"] == ("X" if expected > 0.5 else "Y")


def test_either_strand_and_case_is_familiar_and_what_is_strange_is_flagged(run):
    piece = GENOMES[1][100:300]
    other = str(Seq(piece).reverse_complement())
    strange = "".join(np.random.default_rng(9).choice(list("ACGT"), 200))
    table = predicted(
        run,
        f">plain\n{piece}\n>lower\n{piece.lower()}\n>turned\n{other}\n>strange\n{strange}\n"
        f">empty_of_kmers\n{'N' * 60}\n",
    )
    flagged = table["unlike_anything_seen"]
    assert not flagged[["plain", "lower", "turned"]].any()
    assert flagged[["strange", "empty_of_kmers"]].all()
    assert (
        table.loc["plain", "familiar_fraction"] > 0.95 > table.loc["strange", "familiar_fraction"]
    )
    assert (table["false_alarm_rate"] <= 0.05).all()
    assert set(table.loc[flagged, "likeness"]) == {"far"}
    assert set(table.loc[~flagged, "likeness"]) == {"familiar"}


@pytest.mark.parametrize("strands", [False, True])
def test_a_model_of_beginnings_is_given_the_beginning_and_no_more(run, monkeypatch, strands):
    """Cut as its rows were; what follows is no evidence, of a class or of being strange."""
    given = []

    def noted(codes: np.ndarray) -> np.ndarray:
        given.append(codes)
        return fraction_of_a(codes)

    judge(monkeypatch, "start", noted, strands)
    strange = "".join(np.random.default_rng(9).choice(list("ACGT"), 500))
    table = predicted(run, f">long\n{GENOMES[0][:LENGTH]}{strange}\n>short\n{GENOMES[1][:20]}\n")
    begin, short = codes_of(GENOMES[0][:LENGTH]), np.zeros(LENGTH, np.uint8)
    short[:20] = codes_of(GENOMES[1][:20])
    long_rows, short_rows = np.split(np.concatenate(given), 2)
    np.testing.assert_array_equal(long_rows[0], begin)
    np.testing.assert_array_equal(short_rows[0], short)
    if strands:
        np.testing.assert_array_equal(long_rows[1], reverse_complement(begin))
    assert set(table["windows"]) == {len(long_rows)} == {1 + strands}
    assert (table.loc["long", "letters"], table.loc["long", "familiar_fraction"]) == (550, 1)
    assert not table.loc["long", "unlike_anything_seen"]


@pytest.mark.parametrize(("pieces", "expected"), [(1, 5), (3, 3), (1000, 1)])
def test_items_that_are_predicted_together_keep_their_own_predictions(
    run, monkeypatch, pieces, expected
):
    calls = []

    def counted(codes: np.ndarray) -> np.ndarray:
        calls.append(len(codes))
        return (codes == 1).sum(axis=1, dtype=np.float32)

    judge(monkeypatch, "tiles", counted, classes=[])
    monkeypatch.setattr(classify, "PIECES", pieces)
    fractions = [(9, 2), (0, 1), (LENGTH, 3), (4, 1), (1, 2)]
    texts = [("A" * count + "C" * (LENGTH - count)) * tiles for count, tiles in fractions]
    table = predicted(run, "".join(f">{i}\n{text}\n" for i, text in enumerate(texts)))
    assert table["predicted"].tolist() == [count for count, _ in fractions]
    assert len(calls) == expected and sum(calls) == sum(table["windows"])


def test_a_name_that_is_not_utf_8_is_written_with_escapes(run, monkeypatch):
    query = Query({"file": "caf\udce9.png"}, (np.zeros((1, LENGTH), np.uint8),))
    monkeypatch.setattr("escala.data.genomes.queries.queries", lambda *_: iter([query]))
    classify.predict(KINDS["genomes"], run / "query", run, None, 0.05, run / "out.tsv")
    assert (run / "out.tsv").read_text().splitlines()[1].startswith("caf\\udce9.png\t")


def test_a_file_that_is_no_nucleotide_fasta_is_refused_and_nothing_written(run):
    with pytest.raises(InputError, match="not nucleotides"):
        predicted(run, ">b\nACGT\n>a\nMKTLLQEF\n")
    assert not (run / "out.tsv").exists()


@pytest.mark.parametrize(
    ("window", "key"),
    [
        (None, "data.window.method"),
        ({"method": "weird"}, "data.window.method"),
        ({"method": "start"}, "data.window.reverse_complement"),
    ],
)
def test_a_model_of_rows_that_were_cut_otherwise_is_refused(run, monkeypatch, window, key):
    judge(monkeypatch, "tiles", description={"data": {"window": window}})
    with pytest.raises(InputError, match=f"model.json: '{key}': is missing"):
        predicted(run, ">a\nACGT\n")


def test_a_workload_may_show_its_predictions_in_columns_of_its_own(run, monkeypatch):
    def columns(predictions: np.ndarray, description: dict) -> dict:
        return {"predicted": f"{len(predictions)} pieces {description['window']['method']}"}

    given = {"columns": columns, "_predictions": lambda inputs: fraction_of_a(*inputs)}
    judge(monkeypatch, "tiles", classes=[], **given)
    row = predicted(run, f">a\n{GENOMES[0][:130]}\n").loc["a"]
    assert row["predicted"] == "3 pieces tiles" and "predicted_1" not in row
