"""Programs in the workflow: real Snakemake and real programs, from the experiment to the page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from escala.core.files import read_json
from tests import folders
from tests.programs import experiment_on

#: Rows are divided among the ranks, as scripts for `torchrun` do it.
TRAIN = """
import os, sys
import numpy as np
from escala_steps import epoch, score, steps

batch, epochs, seed = map(int, sys.argv[1:])
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
x = np.random.default_rng(seed).random((4096, 64))[rank::ranks]
for number in range(epochs):
    for rows in steps([x[at : at + batch] for at in range(0, len(x), batch)], rows=len):
        rows @ rows.T
    epoch(loss=1 / (number + 1))
with open("/proc/self/oom_score_adj") as file:
    score(f1=0.9, ends_first=float(file.read()))
"""
REP = "results/mine/runs/none/{}/processes/{}/plain/native/rep1/run.json"


def experiment_in(folder: Path) -> dict:
    train = {
        "command": "python train.py {rows_of_rank} {epochs} {seed}",
        "directory": str(folder), "files": ["train.py"],
        "epochs": 3, "batch": {"rows": 64, "per": "global"},
        "environment": {"python": sys.executable},
    }  # fmt: skip
    work = {"command": "sh work.sh", "directory": str(folder), "files": ["work.sh"]}
    configurations = [{"strategy": "processes", "layouts": ["1x1", "1x2"]}]
    workloads = {"train": train, "work": work}
    return experiment_on("mine", workloads, noise_floor=True, configurations=configurations)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a folder with the programs."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "work.sh").write_text("sleep 0.2\n")
    return folder


def test_programs_run_from_the_experiment_to_the_page(snakemake, tmp_path, programs):
    """Also one that tells nothing."""
    snakemake(experiment=experiment_in(programs))
    trained, worked = (read_json(tmp_path / REP.format(name, "1x2")) for name in ("train", "work"))
    assert trained["program"]["known_by"] == "hook"
    assert trained["training"]["global_batch"] == 64
    assert [epoch["rows"] for epoch in trained["epochs"]] == [4096, 4096]
    scores = {"loss": 1 / 3, "best_loss": 1 / 3, "f1": 0.9, "ends_first": 1000}
    assert trained["evaluation"]["scores"] == scores
    assert worked["program"]["known_by"] == "whole run" and worked["program"]["named"] == []
    asked = ("global_batch", "rows_per_rank", "epochs_asked")
    assert [worked["training"][name] for name in asked] == [None] * 3
    assert worked["seeds"] == {"weights": None, "shuffle": None}
    assert worked["seconds"]["train"] == worked["program"]["whole_seconds"] > 0.2

    tables = tmp_path / "results/mine/tables"
    ratios = pd.read_csv(tables / "speedup.csv")
    assert list(ratios["kind"]) == ["measured", "measured"]
    assert list(pd.read_csv(tables / "noise.csv")["matches"]) == [1, 1]
    summary = (tmp_path / "results/mine/summary.md").read_text()
    kinds = pd.read_csv(tables / "best_use.csv").set_index("workload")["ratio_of"]
    assert kinds.to_dict() == {"train": "steps", "work": "run"}
    assert "An epoch of `train` has 4096 rows, in every configuration." in summary
    assert "<NA>" not in summary and "nan" not in summary.split()
    for name in ("index.html", "figures/seconds_per_epoch.svg"):
        assert (tmp_path / "results/mine" / name).exists()


RUN = "results/own/runs/photos/reads/processes/1x1/plain/native/rep1/run.json"


def test_a_changed_file_is_noticed_and_a_moved_folder_is_not_measured_again(
    tmp_path, snakemake, dry_run
):
    photos = tmp_path / "photos"
    (photos / "cat").mkdir(parents=True)
    (photos / "cat" / "1.png").write_text("one")
    (tmp_path / "code").mkdir()
    command = ["sh", "-c", "cat {data.photos}/cat/1.png > {output}/read"]
    reads = {"command": command, "directory": str(tmp_path / "code")}
    datasets = {"photos": {"kind": "files", "paths": {"photos": str(photos)}}}
    settings = experiment_on("own", {"reads": reads}, datasets=datasets)
    served = {"ESCALA_MEASURE_AGAIN": "0"}
    done = snakemake(RUN, experiment=settings, **served)
    said = done.stdout + done.stderr
    assert "1 run to measure.\n" in said
    assert (tmp_path / RUN).with_name("output").joinpath("read").read_text() == "one"
    first = json.loads((tmp_path / RUN).read_text())
    assert first["status"] == "ok"

    settings["datasets"]["photos"]["paths"]["photos"] = str(photos.rename(tmp_path / "moved"))
    snakemake(RUN, experiment=settings, **served)
    assert json.loads((tmp_path / RUN).read_text())["started"] == first["started"]
    _, planned = dry_run(RUN, experiment=settings)
    assert "Nothing to be done" in planned

    (tmp_path / "moved" / "cat" / "1.png").write_text("two")
    snakemake(RUN, experiment=settings, **served)
    assert (tmp_path / RUN).with_name("output").joinpath("read").read_text() == "two"


def test_the_arrays_of_the_guide_are_trained_on(tmp_path, snakemake, dry_run, registries):
    folders.copied(tmp_path, "network", "arrays.yaml")
    random = np.random.default_rng(0)
    sides = {
        side: (random.integers(0, 255, (rows, 4, 3), np.uint8), random.integers(0, 3, rows))
        for side, rows in (("train", 96), ("test", 20))
    }
    arrays = {f"{n}_{s}": a for s, pair in sides.items() for n, a in zip("xy", pair, strict=True)}
    np.savez(tmp_path / "data.npz", **arrays)
    settings = yaml.safe_load((tmp_path / "arrays.yaml").read_text())
    settings["workloads"]["network"]["path"] = "network"
    settings["configurations"][1]["strategy"] = "horovod-gloo"
    # A program is given the same arrays.
    settings["workloads"]["program"] = {
        "command": ["sh", "-c", "cp {data.split}/train/x.npy {output}"],
        "directory": "network",
        "data_kind": "arrays",
    }
    settings["configurations"].append({"strategy": "processes", "layouts": ["1x1"]})
    settings["datasets"]["pictures"]["train"] = {
        "inputs": {"x": str(tmp_path / "data.npz:x_train")},
        "targets": str(tmp_path / "data.npz:y_train"),
    }
    runs = "results/arrays/runs/pictures"
    trained = f"{runs}/network/single/1x1/plain/native/rep1/run.json"
    copied = f"{runs}/program/processes/1x1/plain/native/rep1/run.json"
    settings["predict"] = {"inputs": {"new": str(tmp_path / "new.npy")}}
    np.save(tmp_path / "new.npy", sides["test"][0])
    predicted = "results/arrays/predictions/pictures/{}/1x1/plain/native/rep1/new.tsv"
    snakemake(predicted.format("network/single"), copied, experiment=settings)
    run = json.loads((tmp_path / trained).read_text())
    assert (run["status"], run["training"]["train_rows"], run["training"]["test_rows"]) == (
        "ok", 86, 20,
    )  # fmt: skip
    assert run["evaluation"]["classes"] == ["cat", "dog", "horse"]
    read = np.load((tmp_path / copied).with_name("output") / "x.npy")
    assert read.shape == (86, 4, 3)
    assert {row.tobytes() for row in read} <= {row.tobytes() for row in sides["train"][0]}

    table = (tmp_path / predicted.format("network/single")).read_text().splitlines()
    assert table[0].split("\t")[:2] == ["row", "predicted"] and len(table) == 21
    code, planned = dry_run(predicted.format("program/processes"), experiment=settings)
    assert code and "program is a program: it keeps no model to classify with" in planned
    assert "Traceback" not in planned
