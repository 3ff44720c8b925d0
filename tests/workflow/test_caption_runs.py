"""Real runs of the captioning network: its scores after each epoch, on one rank and on two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from escala.core.files import read_json
from escala.data import KINDS
from escala.data.splits import Side, write_split
from escala.predict.classify import predict
from escala.predict.model import load
from tests.conftest import ROOT
from tests.workflow.conftest import measured

#: The last step of an epoch has one row, so one of two ranks has none.
ROWS = {"train": 25, "validation": 5, "test": 7}
CAPTIONS, LENGTH, V, BATCH = 2, 6, 12, 8
#: As many as the features of VGG16.
FEATURES = 4096
START, END = 1, 2
SETTINGS = {"width": 32, "dropout": 0.0, "optimizer": "adam", "beam": 2}


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


def run(split: Path, request_for: Callable, folder: Path, *place: str, **knobs) -> dict:
    request = request_for(
        *place, workload="caption-lstm", epochs=15, validate=True, save_model=True, knobs=knobs,
        learning_rate={"value": 0.03, "reference_batch": BATCH, "rule": "constant"},
        batch={"rows": BATCH, "per": "global"}, **SETTINGS,
    )  # fmt: skip
    return measured(request, split, folder)


@pytest.fixture(scope="module")
def alone(split, request_for, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("single")
    run(split, request_for, folder, "single", "1x1")
    return folder


@pytest.mark.sweep
def test_two_ranks_have_the_losses_and_the_scores_of_one(split, request_for, tmp_path, alone):
    single = read_json(alone / "run.json")["epochs"]
    result = run(split, request_for, tmp_path, "horovod-mpi", "1x2", sparse_as_dense=False)
    bleu = {f"bleu_{n}" for n in range(1, 5)}
    for one, two in zip(single, result["epochs"], strict=True):
        for name in ("loss", "accuracy", "validation_loss", "validation_accuracy"):
            assert two[name] == pytest.approx(one[name], rel=1e-3)
        assert set(two["scores"]) == bleu
        # Later, a rounding error can change a word.
        assert two["scores"]["bleu_1"] == pytest.approx(one["scores"]["bleu_1"], abs=0.1)
    first, first_of_two = single[0]["scores"], result["epochs"][0]["scores"]
    assert first_of_two == pytest.approx(first, rel=1e-3)


def test_a_network_learns_captions_and_its_kept_model_writes_those_that_were_scored(split, alone):
    result = read_json(alone / "run.json")
    assert max(epoch["scores"]["bleu_1"] for epoch in result["epochs"]) > 0.4
    bleu = {f"bleu_{n}" for n in range(1, 5)}
    assert set(result["evaluation"]["scores"]) == bleu | {f"shuffled_{name}" for name in bleu}
    arrays = [np.load(split / f"test_{name}.npy") for name in ("features", "words")]
    predictions = np.load(alone / "predictions.npy", allow_pickle=False)
    assert (predictions.dtype, predictions.shape) == (np.uint16, (ROWS["test"], LENGTH))
    np.testing.assert_array_equal(load(alone).predictions(*arrays), predictions)


def test_a_kept_model_writes_captions_of_a_users_scenes(split, alone, tmp_path):
    (tmp_path / "scenes.txt").write_text("red dog runs in park\nwet cat sits on beach\n")
    kind, scenes = KINDS["captions"], tmp_path / "scenes.txt"
    table = predict(kind, scenes, alone, None, 0.0, tmp_path / "captions.tsv")
    assert list(table.columns) == ["scene", "predicted"]
    assert table["scene"].tolist() == ["red dog runs in park", "wet cat sits on beach"]
    for caption in table["predicted"]:
        assert caption and {*caption.split()} <= {f"w{number}" for number in range(4, V)}


def test_a_figure_is_drawn_of_any_timing_run(dry_run):
    source = {"type": "simulated", "pictures": {"train": 8, "validation": 2, "test": 3}}
    settings = yaml.safe_load((ROOT / "experiments/captions/scenes.yaml").read_text())
    scenes = {"kind": "captions", "source": source, "split": {"seeds": [4]}}
    settings["datasets"] = {"scenes": scenes}
    settings |= {"experiment": "two", "oversubscribe": True}
    figures = "results/two/run_figures/scenes.caption-lstm.single.1x1.tuned.native.rep2"
    code, planned = dry_run(f"{figures}.captions.svg", experiment=settings)
    assert code == 0, planned
