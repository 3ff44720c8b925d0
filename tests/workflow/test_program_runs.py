"""Programs in the workflow: real Snakemake and real programs, from the experiment to the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from escala.core.files import read_json
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
    python("-m", "scripts.retry", "results/mine", variables=variables, cwd=tmp_path, check=True)
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
