"""Calls of Snakemake by their targets: checks, data, reports, bad input, and its own errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from escala.core.files import read_json
from escala.record.schema import FORMAT
from tests.calls import python
from tests.conftest import CLASSES, ROOT
from tests.programs import eventually
from tests.workflow.conftest import SIMULATED, experiment_of
from tests.workflow.measured import FAKE

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


ARRAYS = "results/small/data/small/split4/dataset.json"


def test_a_job_that_fails_for_bad_genomes_has_one_message_and_leaves_nothing(snakemake, tmp_path):
    genomes = tmp_path / "genomes"
    genomes.mkdir()
    for number, name in enumerate(CLASSES, 1):
        (genomes / f"{name}.fasta").write_text(f">{name}\n{'A' * number}{'ACGT' * 100}\n")
    (genomes / "MERS.fasta").write_text(">M1\nMKVLAAGLLALLAACEEF\n")
    # Snakemake runs in this folder.
    source = {"type": "files", "folder": "genomes"}
    done = snakemake(ARRAYS, experiment=experiment_of("small", source), fails=True)
    said = done.stdout + done.stderr
    messages = [line for line in said.splitlines() if "Remedy: " in line]
    words = ("genomes/MERS.fasta", "M1", "not nucleotides", "proteins are not read")
    assert messages and all(word in messages[0] for word in words), said
    assert "Traceback" not in said
    assert not (tmp_path / ARRAYS).exists()
    assert not list(tmp_path.glob(".snakemake/locks/*")), "the next call may begin"
    hidden = {path.name for path in (tmp_path / "results").rglob(".*")}
    assert hidden <= {".snakemake_timestamp", ".escala"}, "nothing half-written is left behind"


SINGLE = f"{RUNS}/single/1x1/tuned/native/rep1"


def test_one_target_runs_itself_and_what_it_needs_and_then_nothing(snakemake, tmp_path):
    threads = {"variants": {"tuned": {"cores_per_process": 2}}}
    experiment = experiment_of("small", SIMULATED, repeats=2, **threads)
    first = snakemake(f"{SINGLE}/run.json", experiment=experiment)
    assert [*_started(tmp_path)] == ["single/1x1/tuned/native/rep1"]
    run = json.loads((tmp_path / SINGLE / "run.json").read_text())
    assert (run["status"], run["ranks"]["threads"]["intra_op"]) == ("ok", 2)
    assert "epoch 1/1" in first.stdout, "progress reaches the terminal"
    assert "1 run to measure.\n" in first.stdout, "no time is known"
    second = snakemake(f"{SINGLE}/run.json")
    assert "Nothing to be done" in second.stderr


def test_a_dry_run_lists_what_would_run_and_how_long_it_takes(snakemake, tmp_path):
    captured = {"timeline": {"enabled": True, "steps": 3}}
    variants = {"variants": {"tuned": {"communication": "ring"}}}
    experiment = experiment_of("small", SIMULATED, repeats=2, **captured, **variants)
    before = snakemake("--dry-run", experiment=experiment)
    assert before.stdout.count("Train virus-cnn on small") == 6
    assert before.stdout.count("Capture the timeline of") == 2
    assert "8 runs to measure.\n" in before.stdout
    assert "small: variants.tuned.communication is set, and no run" in before.stderr
    assert not (tmp_path / "results").exists()
    record = {"format": FORMAT, "status": "ok", "layout": "1x1", "wall_seconds": 30.0}
    (tmp_path / SINGLE / "sessions").mkdir(parents=True)
    (tmp_path / SINGLE / "sessions" / "s.json").write_text(json.dumps(record))
    after = snakemake("--dry-run", "--executor", "slurm", "--jobs", "2")
    # Probes that were not run before take about the time of a timing run.
    assert "8 runs to measure, 4 min 0 s of training by earlier runs." in after.stdout


STEPS = """
rule all:
    input: "made"
rule slow:
    output: "made"
    shell: "sleep 60; touch {output}"
rule other:
    input: "lost.txt"
    output: "other"
    shell: "touch {output}"
"""
CALLED = ("-m", "escala.workflow.called")


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    settings = experiment_of("mine", SIMULATED)
    (folder / "mine.yaml").write_text(yaml.safe_dump(settings))
    (folder / "experiments").mkdir()
    (folder / "experiments" / "theirs.yaml").write_text(
        yaml.safe_dump(settings | {"experiment": "theirs"})
    )
    (folder / "wrong").mkdir()
    (folder / "wrong" / "config.yaml").write_text("jobz: 2\n")
    (folder / "steps").mkdir()
    (folder / "steps" / "Snakefile").write_text(STEPS)
    return folder


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("reprot", ["TARGET: 'reprot': is neither a result", "perhaps it is report."]),
        ("theirs", ["is the name of an experiment", "escala run -e experiments/theirs.yaml."]),
        ("results/mine/runs/small/virus-cnn/single/9x9/tuned/native/rep1/run.json",
         ["single 9x9", "is not among the runs of ", "mine.yaml. Remedy: add its strategy"]),
        ("--profile wrong", ["--profile: 'jobz': is not an option", "or did you mean jobs."]),
        ("-- --forcerum train", ["the call: '--forcerum'", "or did you mean forcerun."]),
    ],
)  # fmt: skip
def test_what_cannot_be_read_has_one_message_with_a_remedy(mine, words, parts):
    own, divided, theirs = f"{words} ".partition("-- ")
    call = ["run", *own.split(), "-e", "mine.yaml", "-c", "1", *divided.split(), *theirs.split()]
    done = python("-m", "escala.command", *call, cwd=mine, variables={"ESCALA_STORE": "off"})
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("escala: ")]
    assert len(lines) == 1 and all(part in lines[0] for part in parts), done.stderr
    assert not any(word in done.stderr for word in ("Traceback", "WorkflowError", "usage: "))
    assert not (mine / "results").exists()


def test_a_locale_that_is_not_utf_8_reads_and_prints_the_same(mine):
    text = (mine / "mine.yaml").read_text(encoding="utf-8")
    (mine / "locale.yaml").write_text(
        re.sub("title: .*", "title: Prüfung – 漢", text).replace(
            "experiment: mine", "experiment: locale"
        ),
        encoding="utf-8",
    )
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    run = ["-m", "escala.command", "run", "-n", "-e", "locale.yaml", "-c", "1"]
    variables = _found() | ascii_only | {"ESCALA_STORE": "off"}
    done = python(*run, cwd=mine, variables=variables)
    assert done.returncode == 0, done.stderr
    assert "runs to measure" in done.stdout


def test_a_profile_for_other_work_decides_nothing_or_is_named(mine):
    (mine / "other").mkdir()
    (mine / "other" / "config.yaml").write_text("rerun-triggers: [mtime]\ncores: 1\n")
    variables = _found() | {"ESCALA_STORE": "off", "SNAKEMAKE_PROFILE": str(mine / "other")}
    run = ["-m", "escala.command", "run", "-n", "-e", "mine.yaml"]
    done = python(*run, "-c", "1", cwd=mine, variables=variables)
    assert (
        done.returncode == 0 and f"SNAKEMAKE_PROFILE: {mine / 'other'} is not read" in done.stderr
    )
    # Snakemake itself reads it, and a user may name it.
    workflow = [*CALLED, "-n", "--snakefile", str(ROOT / "Snakefile"), "--configfile", "mine.yaml"]
    for words, said in (
        (workflow, f"or in {mine / 'other'}, which the variable SNAKEMAKE_PROFILE names."),
        ([*run, "--profile", "other"], "in the profile of the call."),
    ):
        done = python(*words, cwd=mine, variables=variables)
        assert done.returncode == 2, done.stderr
        assert "--rerun-triggers: leaves out code, input, params, software-env, so" in done.stderr
        assert said in done.stderr
    assert not (mine / "results").exists()


def test_a_file_that_no_step_makes_is_named_with_the_step(mine):
    done = python(*CALLED, "other", "--cores", "1", cwd=mine / "steps", variables=_found())
    assert done.returncode == 2, done.stderr
    assert "escala: the step other: 'lost.txt': is missing, and no step makes it" in done.stderr


@pytest.mark.usefixtures("cold")
def test_a_locked_folder_tells_who_works_in_it_or_how_to_free_it(mine):
    folder, words = mine / "steps", [*CALLED, "--cores", "1"]
    first = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | _found(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    locks = folder / ".snakemake" / "locks"
    try:
        assert eventually(lambda: locks.is_dir() and any(locks.iterdir()), 120)
        assert first.poll() is None
        second = python(*words, cwd=folder, variables=_found())
        assert second.returncode == 1
        assert f"another call makes these results: process {first.pid}, since " in second.stderr
        assert "Traceback" not in second.stderr and "LockException" not in second.stderr
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    left = python(*words, cwd=folder, variables=_found())
    assert left.returncode == 1 and "`-- --unlock` at its end" in left.stderr
    assert python(*words, "--unlock", cwd=folder, variables=_found()).returncode == 0
    assert not list(folder.glob(".snakemake/locks/*"))


def _found() -> dict[str, str]:
    """Return the variables by which a process, or a fork, finds the project."""
    paths = filter(None, (os.environ.get("PYTHONPATH"), str(ROOT)))
    return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
