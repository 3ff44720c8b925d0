"""Calls of Snakemake by their targets: checks, data, reports, the answer so far, bad input."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from escala.check.machine import CHECKS
from escala.core.errors import WIDTH
from escala.core.files import read_json
from escala.record.schema import FORMAT
from tests.conftest import CLASSES, ROOT
from tests.workflow.conftest import SIMULATED, experiment_of
from tests.workflow.measured import FAKE
from tests.workflow.test_kept_matches import SETTINGS


def test_the_check_answers_for_each_ability():
    command = [sys.executable, "-m", "escala.command", "check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    answered = {
        each.name: line[WIDTH:].split()[0]
        for each in CHECKS
        for line in done.stdout.splitlines()
        if line.startswith(f"{each.name:<{WIDTH}}")
    }
    assert set(answered) == {each.name for each in CHECKS}
    assert set(answered.values()) <= {"yes", "no"}
    assert answered["MPI"] == "yes", "Horovod needs it, and the environment brings it"
    for line in done.stdout.splitlines():
        assert " no   " not in line or "Remedy: " in line


RUNS = "results/small/runs/small/virus-cnn"


def _started(folder: Path) -> dict[str, str]:
    """Return when each run was measured, by its folder."""
    files = sorted((folder / RUNS).rglob("run.json"))
    return {
        str(each.parent.relative_to(folder / RUNS)): read_json(each)["started"] for each in files
    }


def test_data_and_report_need_no_run_and_measure_none(snakemake, tmp_path, imported):
    imported(FAKE)
    experiment = experiment_of("small", SIMULATED, repeats=2)
    # The same configurations as those of the scaling study.
    experiment["configurations"] = experiment["configurations"][:2]
    experiment["scaling"] = {
        "kind": "strong", "strategies": ["horovod-mpi"], "layouts": ["1x1", "1x2"],
    }  # fmt: skip
    snakemake("prepare", experiment=experiment)
    assert (tmp_path / "results/small/data/small/split4/dataset.json").exists()
    assert not _started(tmp_path)
    nothing = snakemake("report", fails=True)
    assert "has no run yet" in nothing.stderr and "escala submit" in nothing.stderr

    one = "single/1x1/tuned/native/rep1"
    snakemake(f"{RUNS}/{one}/run.json")
    before = _started(tmp_path)
    assert set(before) == {one}
    # A change, after which a call without a target would measure the run again.
    changed = experiment | {"oversubscribe": False}
    reported = snakemake("report", experiment=changed)
    assert _started(tmp_path) == before
    assert "1 of 4 runs are measured" in reported.stdout
    for name in ("index.html", "study.html"):
        assert (tmp_path / "results/small" / name).exists()
    assert len(pd.read_csv(tmp_path / "results/small/tables/runs.csv")) == 1

    # As another report would, before it draws all figures once more.
    snakemake("runs", "results/small/tables/runs.csv", experiment=experiment)
    assert len(_started(tmp_path)) == 4
    assert pd.read_csv(tmp_path / "results/small/tables/runs.csv")["repeat"].nunique() == 2


TABLE = "results/small/tables/speedup.csv"
TWO = [{"strategy": "single", "layouts": ["1x1"]}, {"strategy": "horovod-mpi", "layouts": ["1x2"]}]
BATCH = {"rows": 8, "per": "global"}
WORKLOADS = {"tal1-cnn": {"epochs": 1, "save_model": False, "batch": BATCH}}


def test_each_repeat_is_told_once_with_the_interval_of_the_page(snakemake, tmp_path, imported):
    imported(FAKE)
    experiment = SETTINGS | {"repeats": 3, "configurations": TWO, "workloads": WORKLOADS}
    experiment |= {"clocks": {"enabled": False}}
    alone = {"ESCALA_STORE": "off", "ESCALA_MEASURE_AGAIN": "0"}
    said = snakemake(TABLE, experiment=experiment, **alone).stdout
    told = re.findall(r"^escala: small, after (\d) of 3 repeats(.*)$", said, re.MULTILINE)
    assert [number for number, _ in told] == ["1", "2", "3"], said
    first, second, last = (text for _, text in told)
    assert re.match(r": about .+ of runs left$", first)
    assert re.match(
        r", provisional: horovod-mpi 1x2 takes 0\.\d\d–0\.\d\d of the step time of single 1x1 "
        r"\(range of 2 paired runs, widened\); about .+ of runs left$",
        second,
    )
    row = pd.read_csv(tmp_path / TABLE).set_index("strategy").loc["horovod-mpi"]
    assert f" {row['ratio_low']:.2f}–{row['ratio_high']:.2f} of the step time" in last
    assert last.endswith("(range of 3 paired runs, widened); no run is left")


ARRAYS = "results/small/data/small/split4/dataset.json"


@pytest.mark.parametrize(
    ("folder", "protein", "words"),
    [
        ("genomes", "MERS", ["genomes/MERS.fasta", "M1", "not nucleotides", "as a protein does"]),
        ("genomes", None, ["datasets.small.source.folder", "holds no file for the class MERS"]),
        ("$NO_GENOMES", None, ["datasets.small.source.folder", "variable NO_GENOMES is not set"]),
    ],
    ids=["a job fails", "a file is missing", "a variable is not set"],
)
def test_bad_genomes(snakemake, tmp_path, folder, protein, words):
    genomes = tmp_path / "genomes"
    genomes.mkdir()
    for number, name in enumerate(CLASSES, 1):
        if name != "MERS":
            (genomes / f"{name}.fasta").write_text(f">{name}\n{'A' * number}{'ACGT' * 100}\n")
    if protein:
        (genomes / f"{protein}.fasta").write_text(">M1\nMKVLAAGLLALLAACEEF\n")
    # Snakemake runs in this folder.
    source = {"type": "files", "folder": folder}
    done = snakemake(ARRAYS, experiment=experiment_of("small", source), fails=True)
    said = done.stdout + done.stderr
    messages = [line for line in said.splitlines() if "Remedy: " in line]
    assert messages and all(word in messages[0] for word in words), said
    assert "Traceback" not in said
    assert not (tmp_path / ARRAYS).exists()
    assert not list(tmp_path.glob(".snakemake/locks/*")), "the next call may begin"
    hidden = {path.name for path in (tmp_path / "results").rglob(".*")}
    assert hidden <= {".snakemake_timestamp", ".escala"}, "nothing half-written is left behind"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"repeat": 3}, ["repeat: 3", "unknown key", "did you mean repeats?"]),
        (
            {
                "configurations": [{"strategy": "horovod-mpi", "layouts": ["1x64"]}],
                "oversubscribe": False,
            },
            ["1x64", "needs 64 cores", "oversubscribe: true"],
        ),
    ],
    ids=["unknown key", "too many processes"],
)
def test_bad_config(snakemake, tmp_path, change, words):
    done = snakemake(experiment=experiment_of("small", SIMULATED, **change), fails=True)
    said = done.stdout + done.stderr
    assert all(word in said for word in words), said
    assert not list(tmp_path.rglob("run.json"))


ALL_RUNS = "results/small/runs/small/virus-cnn"
SINGLE = f"{ALL_RUNS}/single/1x1/tuned/native/rep1"


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
    before = snakemake("--dry-run", experiment=experiment)
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
