"""The workflow as its users run it: real Snakemake, real training, on small input."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from escala.record.schema import FORMAT
from tests.conftest import CLASSES
from tests.workflow.conftest import SIMULATED, experiment_of
from tests.workflow.measured import FAKE

RUNS = "results/small/runs/small/virus-cnn"
SINGLE = f"{RUNS}/single/1x1/tuned/native/rep1"


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("run.json")}


def test_one_target_runs_itself_and_what_it_needs_and_then_nothing(snakemake, tmp_path):
    threads = {"variants": {"tuned": {"cores_per_process": 2}}}
    experiment = experiment_of("small", SIMULATED, repeats=2, **threads)
    first = snakemake(f"{SINGLE}/run.json", experiment=experiment)
    assert files_in(tmp_path) == {f"{SINGLE}/run.json"}
    run = json.loads((tmp_path / SINGLE / "run.json").read_text())
    assert (run["status"], run["ranks"]["threads"]["intra_op"]) == ("ok", 2)
    assert "epoch 1/1" in first.stdout, "progress reaches the terminal"
    assert "Estimated training time of 1 run: unknown" in first.stdout, "it says how long it takes"
    second = snakemake(f"{SINGLE}/run.json")
    assert "Nothing to be done" in second.stderr


def test_a_dry_run_lists_what_would_run_and_how_long_it_takes(snakemake, tmp_path):
    captured = {"timeline": {"enabled": True, "steps": 3}}
    variants = {"variants": {"tuned": {"communication": "ring"}}}
    experiment = experiment_of("small", SIMULATED, repeats=2, **captured, **variants)
    before = snakemake("--dry-run", "--printshellcmds", experiment=experiment)
    calls = [shlex.split(line) for line in before.stdout.splitlines() if "--title" in line]
    # One word, which argparse takes for no option, although the title begins as one does.
    assert calls and all(f"--title={experiment['title']}" in call for call in calls)
    assert before.stdout.count("Train virus-cnn on small") == 6
    assert before.stdout.count("Capture the timeline of") == 2
    assert "Estimated training time of 8 runs: unknown for 8" in before.stdout
    # 5 × 20 genomes of 300 letters, with 8 bytes for each label.
    assert "Estimated disk: 30.1 KiB for the arrays of 1 split;" in before.stdout
    assert "small: variants.tuned.communication is set, and no run" in before.stdout
    assert not (tmp_path / "results").exists()
    record = {"format": FORMAT, "status": "ok", "layout": "1x1", "wall_seconds": 30.0}
    (tmp_path / SINGLE / "sessions").mkdir(parents=True)
    (tmp_path / SINGLE / "sessions" / "s.json").write_text(json.dumps(record))
    after = snakemake("--dry-run", "--executor", "slurm", "--jobs", "2")
    # Probes that were not run before take about the time of a timing run.
    assert "4 min 0 s for 8 from earlier runs" in after.stdout, after.stdout


def test_runs_whose_arrays_do_not_fit_on_the_disk_do_not_begin(snakemake, tmp_path):
    """Ten million sequences of a hundred thousand letters take 4 TB."""
    experiment = experiment_of("small", SIMULATED)
    source = {"type": "simulated", "rows": {"train": 10_000_000, "validation": 0, "test": 10}}
    split = {"seeds": [4]}
    motifs = {"kind": "motifs", "source": source, "length": 100_000, "split": split}
    experiment["datasets"] = {"small": motifs}
    batch, rate = {"rows": 32, "per": "global"}, {"value": 0.01, "reference_batch": 32}
    training = {"epochs": 1, "batch": batch, "learning_rate": rate}
    experiment["workloads"] = {"tal1-cnn": training}
    run = SINGLE.replace("virus-cnn", "tal1-cnn")
    refused = snakemake(f"{run}/run.json", experiment=experiment, fails=True)
    assert "Estimated disk: 3725.4 GiB for the arrays of 1 split" in refused.stdout
    message = r"results: '3725\.4 GiB': is needed for arrays, and \S+ \S+ are free\. Rem"
    assert re.search(message, refused.stderr)
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "results").exists()


# Code that every Python process begins with: the rank of a fit is killed.
ENDING = """
import os, signal
from escala.training import by_fit

original = by_fit.fit

def ended(request, *others):
    if request["workload"] == "majority":
        os.kill(os.getpid(), signal.SIGKILL)
    return original(request, *others)

by_fit.fit = ended
"""


def test_a_dead_rank_leaves_the_rest_and_is_named(snakemake, dry_run, tmp_path, imported):
    experiment = experiment_of("small", SIMULATED)
    experiment["configurations"] = experiment["configurations"][:1]
    experiment["workloads"] = {"majority": {}, "kmer-logreg": {"k": 3}}
    dead, other = (SINGLE.replace("virus-cnn", name) for name in experiment["workloads"])
    table = "results/small/tables/runs.csv"
    imported(ENDING)
    swept = snakemake(table, experiment=experiment, fails=True)
    status = {name: json.loads((tmp_path / name).read_text()) for name in files_in(tmp_path)}
    assert {name: record["status"] for name, record in status.items()} == {
        f"{dead}/run.json": "failed",
        f"{other}/run.json": "ok",
    }
    said = swept.stdout + swept.stderr
    assert f"{dead}/run.json" in said and "rank 0 was ended by signal 9" in said
    assert sorted(pd.read_csv(tmp_path / table)["status"]) == ["failed", "ok"]
    # As a power loss can leave it.
    (tmp_path / dead / "run.json").write_text('{"status": "fai')
    code, said = dry_run(f"./{dead}/run.json")
    assert code == 0 and "Measure majority on small" in said, said


def test_pairs_of_a_ladder_are_timed_in_their_order_after_all_else(snakemake, tmp_path, imported):
    imported(FAKE)
    rung = {"strategy": "single", "layout": "1x1"}
    experiment = experiment_of(
        "small",
        SIMULATED,
        variants={"m": {}, "z": {"checkpoint_epochs": 1}, "a": {}},
        configurations=[{"strategy": "single", "layouts": ["1x1"], "variants": ["m"]}],
        ladders={"way": [rung | {"variant": "z"}, rung | {"variant": "a", "label": "faster"}]},
    )
    snakemake("results/small/tables/ladder.csv", experiment=experiment)
    # Several may begin in one second.
    files = sorted(tmp_path.glob("results/**/run.json"), key=lambda file: file.stat().st_mtime_ns)
    runs = [json.loads(file.read_text()) for file in files]
    order = [(run["variant"], run["series"]) for run in runs]
    assert order == [("m", None), ("z", "way-1"), ("a", "way-1")]
    (row,) = pd.read_csv(tmp_path / "results/small/tables/ladder.csv").itertuples()
    assert (row.ladder, row.change, row.matches, row.kind) == ("way", "faster", 1, "measured")
    before, after = ({run["variant"]: run["epochs"] for run in runs}[name] for name in "za")
    expected = after[0]["epoch_wall_seconds"] / before[0]["epoch_wall_seconds"]
    assert row.ratio == pytest.approx(expected)


def test_new_content_of_the_genomes_is_seen(snakemake, tmp_path):
    folder = tmp_path / "genomes"
    folder.mkdir()
    for name in CLASSES:
        (folder / f"{name}.fasta").write_text(f">{name}\nACGT\n")
    source = {"type": "files", "folder": str(folder)}
    lock = "results/small/data/small/lock.tsv"
    snakemake(lock, experiment=experiment_of("small", source))
    before = (tmp_path / lock).read_text()
    (folder / "MERS.fasta").write_text(">MERS2\nACGTACGT\n")
    snakemake(lock)
    assert (tmp_path / lock).read_text() != before
