"""Tables, captions, numbers, and genomes from NCBI: prepared, trained on, predicted."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import yaml
from sklearn.datasets import load_iris
from sklearn.metrics import recall_score

from escala.core.files import read_json
from escala.data import DEFAULT_KIND, KINDS
from escala.data.base import Arrays
from escala.data.splits import Side, write_split
from escala.engines.tensorflow.functions import Functions
from escala.experiment import Experiment
from escala.predict.classify import predict
from escala.predict.model import load
from escala.record import collect
from escala.record.run import INVALID
from escala.training.epoch import validate
from tests.conftest import CLASSES, ROOT
from tests.eutils import Eutils, genomes, serving
from tests.workflow.conftest import add_workload, experiment_of, measured
from tests.workloads.regression import model as regression
from tests.workloads.regression import scores

RUN = "flowers/mlp/single/1x1/tuned/native/rep1"


@pytest.fixture(scope="module")
def guide() -> dict:
    """Return the experiment of the guide."""
    return yaml.safe_load((ROOT / "examples" / "flowers.yaml").read_text())


def test_a_table_is_learnt_and_new_rows_are_scored(snakemake, tmp_path, guide, monkeypatch):
    flowers = load_iris(as_frame=True)
    table = flowers.data.assign(species=flowers.target_names[flowers.target])
    new = table.sample(frac=0.3, random_state=1)
    table.loc[7, "sepal width (cm)"] = np.nan
    table.to_csv(tmp_path / "flowers.csv", index=False)
    new.to_csv(tmp_path / "new.csv", index=False)
    monkeypatch.setenv("FLOWERS", str(tmp_path / "flowers.csv"))
    monkeypatch.setenv("NEW_FLOWERS", str(tmp_path / "new.csv"))

    predicted = f"results/flowers/predictions/{RUN}/new.tsv"
    done = snakemake(predicted, experiment=guide | {"repeats": 1, "oversubscribe": True})

    run = json.loads((tmp_path / f"results/flowers/runs/{RUN}/run.json").read_text())
    assert run["epochs"][-1]["loss"] < 0.3 < run["epochs"][0]["loss"]
    assert run["training"]["train_rows"] + run["training"]["test_rows"] == len(table) - 1
    settings = Experiment(guide, "guide").settings["workloads"]["mlp"]
    assert run["training"]["settings"] == settings
    assert run["evaluation"]["accuracy"] > 0.9

    found = pd.read_csv(tmp_path / predicted, sep="\t")
    assert found["class"].tolist() == new["species"].tolist()
    probabilities = found.filter(like="probability_").to_numpy()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-4)
    (recall,) = re.findall(r"^ +versicolor +\S+ +(\S+)", done.stdout, re.MULTILINE)
    expected = recall_score(found["class"], found["predicted"], labels=["versicolor"], average=None)
    assert float(recall) == pytest.approx(expected[0], abs=1e-4)


#: The last step of an epoch has one row, so one of two ranks has none.
ROWS = {"train": 25, "validation": 5, "test": 7}
CAPTIONS, LENGTH, V, BATCH = 2, 6, 12, 8
#: As many as the features of VGG16.
FEATURES = 4096
START, END = 1, 2


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of one of three things, each with captions of 2 to 4 words that begin with it."""
    folder, random = tmp_path_factory.mktemp("captions"), np.random.default_rng(0)
    sides = {}
    for side, rows in ROWS.items():
        things = random.integers(0, 3, rows)
        told = (np.eye(3)[things] + random.normal(0, 0.1, (rows, 3))).astype(np.float16)
        features = np.pad(told, ((0, 0), (0, FEATURES - 3)))
        words, targets = (np.zeros((rows, CAPTIONS, LENGTH), np.uint16) for _ in range(2))
        for row, caption in np.ndindex(rows, CAPTIONS):
            spoken = [4 + things[row], *random.integers(7, V, random.integers(1, 4))]
            words[row, caption, : len(spoken) + 1] = [START, *spoken]
            targets[row, caption, : len(spoken) + 1] = [*spoken, END]
        sides[side] = Side({"features": features, "words": words}, targets)
    vocabulary = ["", "<start>", "<end>", "<unknown>", *(f"w{n}" for n in range(4, V))]
    write_split(
        folder, sides, kind="captions", name="few", seed=0, provenance="simulated",
        below={"words": V}, vocabulary=vocabulary,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def alone(split, request_for, tmp_path_factory) -> Path:
    request = request_for(
        "single", "1x1", workload="caption-lstm", epochs=15, validate=True, save_model=True,
        learning_rate={"value": 0.03, "reference_batch": BATCH, "rule": "constant"},
        batch={"rows": BATCH, "per": "global"},
        width=32, dropout=0.0, optimizer="adam", beam=2,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("single")
    measured(request, split, folder)
    return folder


def test_a_network_learns_captions_which_are_scored(alone):
    result = read_json(alone / "run.json")
    assert max(epoch["scores"]["bleu_1"] for epoch in result["epochs"]) > 0.4
    bleu = {f"bleu_{n}" for n in range(1, 5)}
    assert set(result["evaluation"]["scores"]) == bleu | {f"shuffled_{name}" for name in bleu}
    predictions = np.load(alone / "predictions.npy", allow_pickle=False)
    assert (predictions.dtype, predictions.shape) == (np.uint16, (ROWS["test"], LENGTH))


@pytest.mark.sweep
def test_the_kept_model_writes_the_captions_that_were_scored(split, alone):
    arrays = [np.load(split / f"test_{name}.npy") for name in ("features", "words")]
    predictions = np.load(alone / "predictions.npy", allow_pickle=False)
    np.testing.assert_array_equal(load(alone).predictions(*arrays), predictions)


def test_a_kept_model_writes_captions_of_a_users_scenes(alone, tmp_path):
    (tmp_path / "scenes.txt").write_text("red dog runs in park\nwet cat sits on beach\n")
    kind, scenes = KINDS["captions"], tmp_path / "scenes.txt"
    table = predict(kind, scenes, alone, None, 0.0, tmp_path / "captions.tsv")
    assert list(table.columns) == ["scene", "predicted"]
    assert table["scene"].tolist() == ["red dog runs in park", "wet cat sits on beach"]
    for caption in table["predicted"]:
        assert caption and {*caption.split()} <= {f"w{number}" for number in range(4, V)}


SIDES = {"train": 50, "validation": 9, "test": 13}
RATE = {"value": 0.05, "reference_batch": 16, "rule": "constant"}


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Rows of half-precision signals (4, 3) and a word, with two numbers that depend on both."""
    random, sides = np.random.default_rng(0), {}
    weights, word_weights = random.normal(size=(12, 2)), random.normal(size=(7, 2))
    for side, rows in SIDES.items():
        signal = random.normal(size=(rows, 4, 3)).astype(np.float16)
        word = random.integers(0, 7, rows, np.int32)
        numbers = signal.reshape(rows, -1) @ weights + word_weights[word]
        sides[side] = Side({"signal": signal, "word": word}, numbers.astype(np.float32))
    about = {"kind": DEFAULT_KIND, "name": "few", "seed": 0, "provenance": "files"}
    write_split(
        tmp_path / "split", sides, names=("{side}.{name}.npy", "{side}.numbers.npy"), **about
    )
    return tmp_path / "split"


def test_numbers_are_predicted_from_several_inputs_and_scored_by_the_workload(
    few, request_for, tmp_path, monkeypatch
):
    add_workload("regression", tmp_path / "site", monkeypatch)
    request = request_for(
        "mirrored", "1x2", workload="regression", epochs=12, validate=True, save_model=True,
        learning_rate=RATE, batch={"rows": 16, "per": "global"}, knobs={"accumulation": 3},
    )  # fmt: skip
    result = measured(request, few, tmp_path)
    first, *_, last = result["epochs"]
    assert last["loss"] < first["loss"] / 2
    table = collect.read_steps(tmp_path / "ranks", len(result["ranks"]["cores"]))
    assert table.groupby("epoch")["rows"].sum().tolist() == [SIDES["train"]] * 12

    arrays = {path.stem: np.load(path) for path in few.glob("*.npy")}
    predictions = np.load(tmp_path / "predictions.npy", allow_pickle=False)
    assert (predictions.dtype, predictions.shape) == (np.float32, (SIDES["test"], 2))
    errors = predictions - arrays["test.numbers"]
    rmse = pytest.approx(np.sqrt((errors**2).mean()), rel=1e-5)
    assert result["evaluation"] == {"rows": SIDES["test"], "scores": {"rmse": rmse}}

    model = load(tmp_path)
    found = model.probabilities(arrays["test.signal"], arrays["test.word"])
    np.testing.assert_allclose(found, predictions, rtol=1e-5, atol=1e-6)
    found = model.probabilities(arrays["validation.signal"], arrays["validation.word"])
    errors = np.abs(found - arrays["validation.numbers"])
    assert result["training"]["validated_on"] == "validation"
    assert last["validation_loss"] == pytest.approx((errors**2).mean(), rel=1e-4)
    assert last["validation_accuracy"] == pytest.approx((errors < 1).all(axis=1).mean())


def test_a_score_that_is_no_number_is_named_and_the_rest_is_kept(
    few, request_for, tmp_path, monkeypatch
):
    add_workload("regression", tmp_path / "site", monkeypatch)
    monkeypatch.setattr(scores, "score", lambda *_: {"rmse": 0.5, "r2": np.float32("nan")})
    request = request_for("single", "1x1", workload="regression", learning_rate=RATE)
    result = measured(request, few, tmp_path, "failed")
    assert result["reason"].startswith("score r2 is nan: ")
    assert "leave out a score" in result["reason"]
    assert len(result["epochs"]) == 1 and result["evaluation"] is None
    assert not (tmp_path / INVALID).exists()


def test_a_mean_of_row_scores_that_is_no_number_ends_the_training(few):
    data = Arrays(few)
    model = regression.build(data.inputs, (2,), {}, {})
    undefined = SimpleNamespace(
        row_losses=regression.row_losses,
        predict=regression.predict,
        correct=regression.correct,
        row_scores=lambda targets, outputs: {"ratio": targets[:, 0] / tf.zeros_like(outputs[:, 0])},
    )
    specs = (*data.inputs, data.targets)
    evaluate = Functions(undefined, {}).compile_evaluation(model, specs, tf.reduce_sum)

    def evaluated(inputs, targets):
        return evaluate(*inputs, targets)

    group = SimpleNamespace(total=lambda values: values)
    place = SimpleNamespace(process=0, processes=1)
    alone = SimpleNamespace(place=place, group=group, evaluate=evaluated, rows_at_once=256)
    with pytest.raises(ValueError, match=r"^score ratio is .*`row_scores` must give a finite"):
        validate(alone, data, "validation")


TARGET = "results/fetched/data/small/lock.tsv"
KEY = "a-key-nobody-may-see"


@pytest.fixture
def server(monkeypatch):
    with serving(Eutils({name: genomes(name[:2], 12) for name in CLASSES})) as made:
        monkeypatch.setenv("ESCALA_EUTILS_URL", made.url)
        monkeypatch.setenv("ESCALA_EUTILS_WAIT", "0")
        monkeypatch.setenv("NCBI_API_KEY", KEY)
        monkeypatch.setenv("MY_ADDRESS", "me@example.org")
        yield made


def test_a_workflow_fails_goes_on_and_is_repeated_from_its_lock(server, snakemake, tmp_path):
    source = {"type": "ncbi", "email": "$MY_ADDRESS", "queries": {c: c for c in CLASSES}}
    server.plan = {"fetch": ["429", None, None, "reset", None, *["503"] * 99]}
    failed = snakemake(TARGET, experiment=experiment_of("fetched", source), fails=True)
    assert "HTTP 503" in failed.stdout + failed.stderr
    partial = tmp_path / "results/fetched/data/small/.partial"
    assert list(partial.iterdir())
    assert not (tmp_path / TARGET).exists()

    server.plan, server.requests = {}, []
    done = snakemake(TARGET)
    assert not partial.exists()
    verified = {name for name in server.genomes["COVID"] if name not in server.asked_for()}
    assert len(verified) == 12
    with open(tmp_path / TARGET) as handle:
        rows = list(csv.DictReader(handle, delimiter="\t"))
    assert [(row["class"], row["accession"]) for row in rows] == [
        (name, accession) for name in CLASSES for accession in sorted(server.genomes[name])
    ]

    lock = tmp_path / "committed.tsv"
    shutil.copy(tmp_path / TARGET, lock)
    sequences = tmp_path / "results/fetched/data/small/sequences"
    before = {path.name: path.read_bytes() for path in sequences.iterdir()}
    shutil.rmtree(tmp_path / "results")
    for held in server.genomes.values():
        held |= genomes("ZZ", 1)
    server.requests.clear()
    again = snakemake(
        TARGET, experiment=experiment_of("fetched", source | {"lock": "committed.tsv"})
    )
    assert {request["kind"] for request in server.requests} == {"fetch"}
    assert {path.name: path.read_bytes() for path in sequences.iterdir()} == before
    assert (tmp_path / TARGET).read_bytes() == lock.read_bytes()

    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "genomes.log" for path in written)
    assert not [path for path in written if KEY.encode() in path.read_bytes()]
    assert KEY not in "".join(r.stdout + r.stderr for r in (failed, done, again))
