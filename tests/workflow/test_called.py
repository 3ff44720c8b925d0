"""Errors of Snakemake itself, where `escala` calls it: one message, with what to do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.calls import python
from tests.conftest import ROOT
from tests.workflow.conftest import SIMULATED, experiment_of

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
        ("calibrate", ["TARGET: 'calibrate': is a step that makes", "perhaps it is calibration."]),
        ("theirs", ["is the name of an experiment", "escala run -e experiments/theirs.yaml."]),
        ("results/mine/no.txt", ["is not a result that can be made", "run -e FILE -n"]),
        ("results/mine/runs/small/virus-cnn/single/9x9/tuned/native/rep1/run.json -n",
         ["single 9x9", "is not among the runs of ", "mine.yaml. Remedy: add its strategy"]),
        ("--profile wrong", ["--profile: 'jobz': is not an option", "or did you mean jobs."]),
        ("--profile nowhere", ["--profile: nowhere is not a folder with a config.yaml"]),
        ("-- --forcerum train", ["the call: '--forcerum'", "or did you mean forcerun."]),
        ("-- --config repeats=0", ["repeats: 0", "Remedy: "]),
    ],
)  # fmt: skip
def test_what_cannot_be_read_has_one_message_with_a_remedy(mine, words, parts):
    own, divided, theirs = f"{words} ".partition("-- ")
    call = ["run", *own.split(), "-e", "mine.yaml", "-c", "1", *divided.split(), *theirs.split()]
    variables = {"ESCALA_STORE": "off", "PYTHONPATH": str(ROOT)}
    done = python("-m", "escala.command", *call, cwd=mine, variables=variables)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("escala: ")]
    assert len(lines) == 1 and all(part in lines[0] for part in parts), done.stderr
    assert not any(word in done.stderr for word in ("Traceback", "WorkflowError", "usage: "))
    assert "Estimated" not in done.stdout and not (mine / "results").exists()


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
    assert "This was a dry-run" in done.stdout + done.stderr


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
        deadline = time.monotonic() + 120
        while not (locks.is_dir() and any(locks.iterdir())) and time.monotonic() < deadline:
            assert first.poll() is None
            time.sleep(0.05)
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
    """Return the variables by which a process finds the project."""
    return {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
