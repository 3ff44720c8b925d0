"""Run the README's call of Snakemake: config.yaml from genomes to the report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from escala.core.files import read_json
from escala.experiment import load as load_experiment
from escala.predict.model import load
from tests.conftest import ROOT
from tests.documented import blocks, files


@pytest.fixture(scope="module")
def experiment(first_command: Path):
    return load_experiment(first_command / "config.yaml")


@pytest.fixture(scope="module")
def results(first_command: Path, experiment) -> Path:
    return first_command / "results" / experiment.name


def test_every_run_ends_ok_and_the_report_is_named(first_command, experiment, results):
    settings = yaml.safe_load((first_command / "config.yaml").read_text())
    runs = [read_json(path) for path in results.rglob("run.json")]
    assert {run["status"] for run in runs} == {"ok"}
    assert {run["instrument"] for run in runs} == {None, "clocks"}
    timed = {(run["strategy"], run["layout"]) for run in runs if not run["instrument"]}
    assert timed == {
        (each["strategy"], layout)
        for each in settings["configurations"]
        for layout in each["layouts"]
    }
    said = (first_command / "said").read_text()
    assert f"Answer: results/{experiment.name}/index.html" in said
    summary = (results / "summary.md").read_text()
    assert summary.startswith(f"# {settings['title']}")
    drawn = {path.name for path in (results / "figures").glob("*.svg")}
    assert drawn and all(f"](figures/{name})" in summary for name in drawn)
    assert (results / "report.html").stat().st_size > 100_000
    answer = re.search(r"^\*\*(.*)\*\*", summary, re.MULTILINE)[1].replace("`", "")
    page = (results / "index.html").read_text()
    assert answer in re.sub(r"<[^>]*>", "", page)
    assert all(f'<figure id="figure-{Path(name).stem}">' in page for name in drawn)


def test_fitted_workloads_join_the_tables_of_the_others(experiment, results):
    table = pd.read_csv(results / "tables" / "configurations.csv")
    fits = set(table.loc[table["fit"], "workload"])
    assert fits == {"kmer-logreg", "majority"} < set(table["workload"])
    assert (table["runs_ok"] == 1).all()
    run, *_ = results.glob("runs/*/kmer-logreg/single/1x1/*/native/rep1/run.json")
    test = np.load(next(results.glob("data/*/split*/test.npy")))
    kept = np.load(run.with_name("predictions.npy"))
    np.testing.assert_array_equal(load(run.parent).probabilities(test).argmax(axis=1), kept)


def test_results_are_read_in_python(first_command, results):
    page = ROOT / "docs" / "how-to" / "results-in-python.md"
    own = "test_results_are_read_in_python"
    code = "".join(block.text for block in blocks(page) if block.run_by.endswith(own))
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, cwd=first_command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    ratios = pd.read_csv(results / "tables" / "speedup.csv").query("kind == 'measured'")
    assert len(ratios) and all(f"{round(ratio, 2):g}" in done.stdout for ratio in ratios["ratio"])
    run = read_json(next(results.glob("runs/*/virus-cnn/horovod-mpi/1x2/*/native/rep1/run.json")))
    # The median of one repeat is its value; pandas prints six digits.
    assert all(f"{epoch['loss']:.5f}"[:6] in done.stdout for epoch in run["epochs"])


@pytest.mark.sweep
def test_the_tutorial_goes_on_with_files_of_ones_own(first_command, tmp_path):
    """Run the commands that name this test, in one shell; on the lab, only as a dry run."""
    page = ROOT / "docs" / "start" / "tutorial.md"
    [(name, experiment)] = files(page).items()
    # A test has one core.
    (first_command / name).write_text(f"{experiment}oversubscribe: true\n")
    own = "test_the_tutorial_goes_on_with_files_of_ones_own"
    script = "".join(block.text for block in blocks(page) if block.run_by.endswith(own))
    assert script.count(" --profile ") == 1
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "uv").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (programs / "uv").chmod(0o755)
    path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    done = subprocess.run(
        ["bash", "-e"],
        input=script.replace(" --profile ", " --dry-run --profile "),
        cwd=first_command,
        env=os.environ | {"PATH": os.pathsep.join(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout
    assert "from earlier runs of the same experiment" in done.stdout
    runs = [read_json(path) for path in (first_command / "results/my-genomes").rglob("run.json")]
    assert sorted((run["layout"], run["status"]) for run in runs) == [("1x1", "ok"), ("1x2", "ok")]
    assert len({run["session"] for run in runs}) == 1
