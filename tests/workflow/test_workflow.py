"""The workflow as its users run it: real Snakemake, real training, on small input."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from escala.record.schema import FORMAT
from tests.conftest import CLASSES
from tests.workflow.conftest import SIMULATED, experiment_of

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
    assert "small: variants.tuned.communication is set, and no run" in before.stdout
    assert not (tmp_path / "results").exists()
    record = {"format": FORMAT, "status": "ok", "layout": "1x1", "wall_seconds": 30.0}
    (tmp_path / SINGLE / "sessions").mkdir(parents=True)
    (tmp_path / SINGLE / "sessions" / "s.json").write_text(json.dumps(record))
    after = snakemake("--dry-run", "--executor", "slurm", "--jobs", "2")
    # Probes that were not run before take about the time of a timing run.
    assert "4 min 0 s for 8 from earlier runs" in after.stdout, after.stdout


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
