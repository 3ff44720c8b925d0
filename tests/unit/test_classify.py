"""Records to rows of the table, and how often pieces of each length are wrong."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from Bio.Seq import Seq

from escala.commands import predict as command
from escala.core.errors import InputError
from escala.core.files import write_json
from escala.data import KINDS
from escala.data.base import Spec
from escala.data.genomes import familiarity, fragments
from escala.data.nucleotides import encode, letters, reverse_complement
from escala.predict import classify
from escala.predict.classify import ErrorAtLength, least_letters, summary
from escala.predict.model import Classifier
from escala.workloads.models import DESCRIPTION

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


@pytest.mark.parametrize(
    ("window", "key"),
    [
        (None, "data.window.method"),
        ({"method": "start"}, "data.window.reverse_complement"),
    ],
)
def test_a_model_of_rows_that_were_cut_otherwise_is_refused(run, monkeypatch, window, key):
    judge(monkeypatch, "tiles", description={"data": {"window": window}})
    with pytest.raises(InputError, match=f"model.json: '{key}': is missing"):
        predicted(run, ">a\nACGT\n")
    judge(monkeypatch, "tiles")
    with pytest.raises(InputError, match="not nucleotides"):
        predicted(run, ">b\nACGT\n>a\nMKTLLQEF\n")
    assert not (run / "out.tsv").exists()


#: Genomes of two classes: one of the letters A and C, one of G and T.
TWO_GENOMES = [RANDOM.integers(1, 3, 400), RANDOM.integers(3, 5, 400)]


@pytest.fixture
def lengths_run(tmp_path, monkeypatch):
    """A split of two genomes, and a model that sees class Y only in rows of 30 letters or more."""
    split = tmp_path / "split1"
    split.mkdir()
    np.save(tmp_path / "codes.npy", np.concatenate(TWO_GENOMES).astype(np.uint8))
    pd.DataFrame(
        {"class": ["X", "Y"], "label": [0, 1], "accession": ["x", "y"], "length": 400,
         "genome": ["x", "y"], "offset": [0, 400], "letters": 400}
    ).to_csv(tmp_path / "records.tsv", sep="\t", index=False)  # fmt: skip
    rows = np.concatenate(TWO_GENOMES).astype(np.uint8).reshape(-1, LENGTH)
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


def measured(run: Path) -> list[ErrorAtLength]:
    split = run / "split1"
    known = split / "familiarity.npz"
    return classify.measure(KINDS["genomes"], run, split, known, 0.05, run / "errors.json")


def test_errors_are_measured_by_length_until_none_is_left(lengths_run):
    found = measured(lengths_run)
    assert [entry.letters for entry in found] == [12, 20, 30, 40, LENGTH]
    assert [entry.error for entry in found] == [pytest.approx(0.5, abs=0.05)] * 2 + [0] * 3
    assert {entry.pieces for entry in found} == {fragments.MAX_FRAGMENTS}
    assert classify.read(lengths_run / "errors.json") == found == measured(lengths_run), (
        "the seed is fixed"
    )


def test_short_records_are_flagged_and_counted_and_keep_their_class(lengths_run):
    errors = measured(lengths_run)
    text = "".join("ACGT"[code - 1] for code in TWO_GENOMES[1])
    query = lengths_run / "reads.fasta"
    query.write_text(f">a\n{text[:25]}\n>b\n{text[:35]}\n>c\n{text}\n>d\n{'ACGT' * 5}\n")
    output = lengths_run / "reads.tsv"
    known = lengths_run / "split1" / "familiarity.npz"
    classify.predict(
        KINDS["genomes"], query, lengths_run, known, 0.05, output, classify.judge(errors, 0.02)
    )
    table = pd.read_csv(output, sep="\t").set_index("accession")
    assert table["predicted"].tolist() == ["X", "Y", "Y", "X"]
    assert table["shorter_than_rows"].tolist() == [True, True, False, True]
    assert table["too_short"].tolist() == [True, False, False, True]
    half = pytest.approx(0.5, abs=0.05)
    assert table["error_at_length"].tolist() == [half, 0, 0, half]
    said = summary(output, errors, 0.02).splitlines()
    assert said[-1].startswith("4 records: 3 shorter than the model's rows, 2 too short, ")
    assert said[-1].endswith(str(output))
    assert any("fewer than 30 letters" in line for line in said)


def test_a_length_is_enough_if_all_longer_ones_are():
    one = ErrorAtLength(100, 10, 0, 10, 0)
    bad = one._replace(letters=200, wrong_familiar=3)
    assert least_letters([one, bad, one._replace(letters=300)], 0.05) == 300
    assert least_letters([one], 0.05) == 100
    assert math.isinf(least_letters([one, bad], 0.05))
    assert least_letters([one, bad], 0.3) == 100
    # Without a familiar piece nothing was measured.
    assert math.isinf(least_letters([one._replace(familiar=0)], 1))
    assert classify.judge([bad], 0.05)({"letters": 10**6})["too_short"]
    assert classify.judge([], 0.05)({"letters": 3}) == {}


def test_fragments_are_of_test_genomes_and_of_either_strand_if_rows_are(lengths_run):
    window = {"method": "tiles", "reverse_complement": True}
    data = {"inputs": [CODES._asdict()], "window": window}
    np.save(lengths_run / "split1" / "test_genomes.npy", np.array([-1, 1, 1]))
    drawn = list(fragments.fragments(lengths_run / "split1", data))
    assert {label for _, pieces in drawn for _, label in pieces} == {1}
    strands = {bool((query.evidence > 2).all()) for _, pieces in drawn for query, _ in pieces}
    assert strands == {True, False}
    np.save(lengths_run / "split1" / "test_genomes.npy", np.array([-1, -1]))
    assert list(fragments.fragments(lengths_run / "split1", data)) == []


@pytest.mark.parametrize(
    "change", [{"classes": []}, {"columns": lambda outputs, description: {"text": "a b"}}]
)
def test_a_model_without_a_class_for_an_item_has_no_errors_by_length(
    lengths_run, monkeypatch, change
):
    model = replace(classify.load(lengths_run), **change)
    monkeypatch.setattr(classify, "load", lambda folder: model)
    assert measured(lengths_run) == classify.read(lengths_run / "errors.json") == []


@pytest.fixture
def trained_runs(tmp_path, monkeypatch):
    """Folders of three runs below `results/`: two ended ok with a model, one failed."""
    monkeypatch.chdir(tmp_path)
    for repeat, status in (("rep1", "ok"), ("rep2", "ok"), ("rep3", "failed")):
        folder = Path("results/demo/runs/tiles/kmer-mlp/default/single/1x1/native", repeat)
        folder.mkdir(parents=True)
        write_json(folder / "run.json", {"status": status})
        write_json(folder / DESCRIPTION, {})
    return folder.parent


@pytest.mark.parametrize("name", ["rep1", "rep1/run.json"])
def test_a_file_is_predicted_with_the_run_that_is_named(trained_runs, tmp_path, name):
    file = tmp_path / "~a $b.fasta.gz"
    file.touch()
    experiment, tables, key = command.predictions(trained_runs / name, [Path(file.name)])
    below = "results/demo/predictions/tiles/kmer-mlp/default/single/1x1/native/rep1"
    assert (experiment, tables) == ("demo", [f"{below}/a-b.tsv"])
    assert json.loads(key) == {"inputs": {"a-b": str(file).replace("$", "$$")}}
    assert command.find_run((trained_runs / name).absolute()) == trained_runs / "rep1"


def test_a_prediction_needs_exactly_one_trained_run(trained_runs):
    with pytest.raises(InputError) as several:
        command.find_run(Path("results"))
    assert "rep1" in several.value.reason and "rep2" in several.value.reason
    assert "rep3" not in several.value.reason
    (trained_runs / "rep2" / DESCRIPTION).unlink()
    assert command.find_run(Path("results")) == trained_runs / "rep1"
    for repeat in ("rep2", "rep3", "rep4"):
        with pytest.raises(InputError):
            command.find_run(trained_runs / repeat)


def test_two_files_with_one_name_have_two_tables_or_are_refused():
    a, b, c = Path("x/reads.fasta"), Path("y/reads.fasta.gz"), Path("other.fasta")
    assert command.name_tables([a, b, c]) == {"x-reads": a, "y-reads": b, "other": c}
    assert command.name_tables([a]) == {"reads": a}
    with pytest.raises(InputError, match=r"x-reads\.tsv"):
        command.name_tables([a, Path("x/reads.fastq")])
