"""The perceptron on a table of the user's own, as the guide describes it."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.datasets import load_iris
from sklearn.metrics import recall_score

from escala.experiment import Experiment
from tests.conftest import ROOT

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
