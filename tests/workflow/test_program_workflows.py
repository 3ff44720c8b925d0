"""Programs in the workflow: real Snakemake and real programs, from the experiment to the page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from escala.core.files import read_json
from tests import folders
from tests.calls import python
from tests.conftest import ROOT
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
#: It names nothing, tells nothing, and fails where it is told to.
WORK = """
if [ -e {fails} ]; then echo "no more paper" >&2; exit 3; fi
sleep 0.2
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
    (folder / "work.sh").write_text(WORK.format(fails=tmp_path / "fails"))
    return folder


def started(done: subprocess.CompletedProcess) -> list[str]:
    """Return the runs that began in a call, in their order."""
    return re.findall(r"\[(.*?)\] starts", done.stdout + done.stderr)


def test_programs_run_from_the_experiment_to_the_page(snakemake, tmp_path, programs):
    """Also one that tells nothing, and one that fails and is repeated."""
    kept = {"ESCALA_STORE": str(tmp_path / "store"), "ESCALA_MEASURE_AGAIN": ""}
    (tmp_path / "fails").touch()
    snakemake("runs", experiment=experiment_in(programs), fails=True, **kept)
    broken = read_json(tmp_path / REP.format("work", "1x2"))
    assert broken["status"] == "failed"
    assert "exit code 3" in broken["reason"] and "no more paper" in broken["reason"]
    variables = {"PYTHONPATH": str(ROOT)}
    retry = "-m", "escala.command", "retry", "results/mine"
    python(*retry, variables=variables, cwd=tmp_path, check=True)
    (tmp_path / "fails").unlink()
    done = snakemake(**kept)
    assert started(done) and not any("train" in name for name in started(done)), "those stay"

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

    # What was measured is known by what decides it: the program's files, and not where they are.
    moved = programs.rename(tmp_path / "elsewhere")
    results = tmp_path / "results"
    results.rename(tmp_path / "before")
    target = REP.format("train", "1x2")
    again = snakemake(target, experiment=experiment_in(moved), **kept)
    assert started(again) == [], again.stdout + again.stderr
    (moved / "train.py").write_text(TRAIN + "# another\n")
    other = snakemake(target, **kept)
    assert any("1x2" in name for name in started(other))


def test_two_experiments_of_one_call_may_both_call_their_program_train(snakemake, tmp_path):
    """Each run is of the program that its own experiment declares."""
    experiments = {}
    for name in ("mine", "yours"):
        (tmp_path / f"{name}.sh").write_text("sleep 0.1\n")
        work = {"command": f"sh {name}.sh", "directory": str(tmp_path), "files": [f"{name}.sh"]}
        experiments[name] = experiment_on(name, {"train": work})
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments/yours.yaml").write_text(yaml.safe_dump(experiments["yours"]))
    runs = {name: REP.format("train", "1x1").replace("mine", name) for name in experiments}
    tables = (f"results/{name}/tables/runs.csv" for name in experiments)
    snakemake(*runs.values(), *tables, experiment=experiments["mine"])
    for name, file in runs.items():
        run = read_json(tmp_path / file)
        assert (run["status"], run["program"]["command"]) == ("ok", ["sh", f"{name}.sh"])
        assert list(run["program"]["files"]) == [f"{name}.sh"]


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
    assert "because nothing similar was measured here before" in said
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


def test_what_is_changed_while_it_runs_is_said_and_not_stored(tmp_path, snakemake):
    """The program changes its data, as a user would who edits them meanwhile."""
    for name in ("code", "data"):
        (tmp_path / name).mkdir()
    script, table = tmp_path / "code" / "train.sh", tmp_path / "data" / "rows.csv"
    table.write_text("1\n")
    script.write_text("test -e $2 || { touch $2; echo 2 >> $1; }\n")
    command = ["sh", "train.sh", "{data.rows}/rows.csv", str(tmp_path / "once")]
    edited = {"command": command, "directory": str(tmp_path / "code")}
    datasets = {"rows": {"kind": "files", "paths": {"rows": str(tmp_path / "data")}}}
    settings = experiment_on("own", {"edited": edited}, datasets=datasets)
    run = tmp_path / "results/own/runs/rows/edited/processes/1x1/plain/native/rep1/run.json"
    store = tmp_path / "store"
    again = {"ESCALA_MEASURE_AGAIN": "0", "ESCALA_STORE": str(store)}
    for call, changes in enumerate(["{data.rows} changed since this call began", ""]):
        snakemake(str(run.relative_to(tmp_path)), experiment=settings, **again)
        found = json.loads(run.read_text())
        assert changes in " ".join(found["program"]["notes"])
        assert len(list(store.glob("entries/*/*/*.json"))) == call, "of the second call only"
