"""The job script of an experiment: what it asks for, what it starts, and how it is cut."""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from escala import submit
from escala.command import parse
from escala.core.errors import InputError
from escala.core.files import write_json
from escala.experiment import Experiment, Run, load
from escala.measure import estimate
from escala.measure.plan import plan_session
from escala.record import key
from escala.record.schema import FORMAT
from escala.report.study.doublings import doublings
from tests.calls import python
from tests.conftest import ROOT
from tests.programs import eventually
from tests.unit.test_experiment import SMALL

SETTINGS = SMALL | {
    "noise_floor": False,
    "timeline": {"enabled": False},
    "clocks": {"enabled": False},
    "variants": {"tuned": {"cores_per_process": 3}},
    "configurations": [
        {"strategy": "single", "layouts": ["1x1"]},
        {"strategy": "horovod-mpi", "layouts": ["1x4", "2x4", "4x1", "8x2"]},
    ],
}
#: A program that writes down how it was called and its process, and ends by SIGTERM only.
WAITS = """#!/bin/bash
trap 'echo ended >> said; exit 0' TERM
echo "$$ $*" > said
while :; do sleep 0.05; done
"""


def runs_of(e: Experiment) -> list[Run]:
    return [each.run for each in plan_session(e).runs]


def script(e: Experiment, options: dict | None = None, lines: tuple[str, ...] = ()) -> str:
    asked = estimate.shape(runs_of(e))
    call = ["snakemake", "runs", "--configfile", "a file.yaml"]
    return submit.script(e, asked, "01:00:00", options or {}, lines, call)


def asked(text: str) -> dict[str, str | None]:
    """Return the options of the #SBATCH lines, as sbatch divides them."""
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if "#SBATCH" in line]
    words = [word for line in lines for word in shlex.split(line)]
    pairs = (word.removeprefix("--").partition("=") for word in words)
    return {name: value if equals else None for name, equals, value in pairs}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A working directory with a space in its name."""
    found = tmp_path / "my work"
    found.mkdir()
    monkeypatch.chdir(found)
    return found


def test_it_asks_for_the_nodes_of_the_largest_layout_alone_and_for_what_the_site_wants(folder):
    text = script(Experiment(SETTINGS, "small.yaml"), {"account": "p1", "gres": "gpu:4"})
    found = asked(text)
    assert found["exclusive"] is None and found["mem"] == "0"
    assert found["nodes"] == "8", "8x2 has the most nodes"
    # 1x4 and 2x4 have the most processes on a node, of three cores each.
    assert (found["ntasks-per-node"], found["cpus-per-task"]) == ("4", "3")
    assert (found["account"], found["gres"], found["time"]) == ("p1", "gpu:4", "01:00:00")
    assert found["chdir"] == str(folder)
    assert found["output"].startswith("results/small/")
    # sbatch stops reading options at the first line that is no comment.
    body = text.splitlines()[1:]
    first = next(number for number, line in enumerate(body) if not line.startswith("#"))
    assert all(line.startswith("#SBATCH ") or "#SBATCH" not in line for line in body[:first])
    assert not any("#SBATCH" in line for line in body[first:])
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_the_signal_before_the_end_reaches_snakemake(folder):
    """SLURM sends it to the shell of the script only (--signal=B:TERM@…)."""
    (folder / "snakemake").write_text(WAITS)
    (folder / "snakemake").chmod(0o755)
    (folder / "job.sh").write_text(
        script(Experiment(SETTINGS, "small.yaml"), lines=("echo loaded > loaded",))
    )
    # What activates the environment puts its own snakemake first.
    text = (folder / "job.sh").read_text().replace(submit.activation(), "export PATH=$PWD:$PATH")
    assert "export PATH=$PWD:$PATH\n# With" in text
    (folder / "job.sh").write_text(text)
    job = subprocess.Popen(["bash", "job.sh"])
    try:
        eventually(lambda: (folder / "said").exists() and (folder / "said").read_text())
        assert (folder / "said").read_text() == f"{job.pid} runs --configfile a file.yaml\n"
        job.send_signal(signal.SIGTERM)
        assert job.wait(10) == 0
    finally:
        job.kill()
    assert (folder / "said").read_text().endswith("ended\n")
    assert (folder / "loaded").read_text() == "loaded\n"


def test_the_environment_of_the_script_is_that_of_the_command(folder):
    done = subprocess.run(
        ["bash", "-c", f"{submit.activation()}; python -c 'import sys; print(sys.prefix)'"],
        env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    import sys

    assert done.stdout.strip() == sys.prefix


def test_the_time_is_the_estimate_of_what_is_left_with_a_margin(folder):
    e = Experiment(SETTINGS, "small.yaml")
    runs = runs_of(e)
    assert "a guess" in estimate.time_of(runs).why
    for run in runs[:2]:
        record = {"format": FORMAT, "status": "ok", "layout": "1x1", "wall_seconds": 600.0}
        write_json(Path(run.folder, "sessions", "one.json"), record)
    # 10 runs of 10 minutes each.
    assert 100 < estimate.time_of(runs).minutes <= 150
    assert submit.clock(60 * 24 * 2 + 61) == "2-01:01:00"


@pytest.mark.parametrize(
    "wrong", [{"account": "a b"}, {"gres": "gpu:$(id)"}, {"partition": "x\n#SBATCH --nodes=9"}]
)
def test_what_a_shell_or_sbatch_reads_otherwise_is_refused(wrong):
    with pytest.raises(InputError, match="one word"):
        submit.require_plain(wrong, None)
    with pytest.raises(InputError, match="HH:MM:SS"):
        submit.require_plain({}, "an hour")


@pytest.mark.parametrize(
    ("time", "is_refused"),
    [("4", True), ("4:59", True), ("00:04:00", True), ("5", False), ("0-1", False),
     ("1-00:01", False), ("2-01:20:00", False)],
)  # fmt: skip
def test_a_job_lasts_longer_than_the_signal_of_its_end_comes_early(time, is_refused):
    with pytest.raises(InputError, match="shorter") if is_refused else nullcontext():
        submit.require_plain({}, time)


def test_each_doubling_is_an_experiment_whose_larger_side_has_the_smaller_for_reference(folder):
    (folder / "small.yaml").write_text(yaml.safe_dump(SETTINGS))
    found = doublings(load("small.yaml"))
    assert list(found) == ["small-1to2", "small-2to4", "small-4to8"]
    for name, settings in found.items():
        smaller = int(name.split("-")[1].split("to")[0])
        e = Experiment(settings, f"{name}.yaml")
        assert e.name == name and {run.experiment for run in e.runs} == {name}
        nodes = {int(run.layout.split("x")[0]) for run in e.runs}
        assert nodes == {smaller, 2 * smaller}
        for run in e.runs:
            if run.layout.startswith(str(2 * smaller)):
                references = {other.layout.split("x")[0] for other in e.references_of(run)}
                assert references == {str(smaller)}, run
    SETTINGS_OF_ONE = SETTINGS | {"configurations": SETTINGS["configurations"][:1]}
    (folder / "small.yaml").write_text(yaml.safe_dump(SETTINGS_OF_ONE))
    with pytest.raises(InputError, match="twice the nodes"):
        doublings(load("small.yaml"))


def test_the_doublings_of_a_scaling_study_are_scaling_studies(folder):
    scaling = {"kind": "weak", "strategies": ["horovod-mpi"], "up_to": "4x1", "rows_per_rank": 2}
    settings = {key: value for key, value in SETTINGS.items() if key != "configurations"}
    (folder / "small.yaml").write_text(yaml.safe_dump(settings | {"scaling": scaling}))
    whole = load("small.yaml")
    assert {run.layout for run in whole.runs} == {"1x1", "2x1", "4x1"}
    found = {name: Experiment(each, name) for name, each in doublings(whole).items()}
    layouts = {name: {run.layout for run in e.runs} for name, e in found.items()}
    assert layouts == {"small-1to2": {"1x1", "2x1"}, "small-2to4": {"2x1", "4x1"}}
    for e in found.values():
        assert e.settings["scaling"]["rows_per_rank"] == 2
        larger = max(e.runs, key=lambda run: run.layout)
        assert {other.layout for other in e.references_of(larger)} == {min(layouts[e.name])}


def result(run, e: Experiment, **changes: object) -> None:
    """Write what a run would leave that was measured with the code of today."""
    session = {
        "format": FORMAT, "status": "ok", "session": "s1", "layout": "1x1", "environment": {},
        "request_sha256": key.request_sha256(e.request(run)),
        "source_sha256": key.code_sha256(run.workload, run.strategy, run.instrument),
    } | changes  # fmt: skip
    write_json(Path(run.file), session)
    write_json(Path(run.folder, "sessions", f"{session['session']}.json"), session)


def test_what_a_call_in_the_job_would_measure_is_left(folder):
    e = Experiment(SETTINGS, "small.yaml")
    runs = runs_of(e)
    assert submit.left(e) == runs
    for run in runs:
        result(run, e)
    assert submit.left(e) == []
    first = next(run for run in runs if run.strategy == "horovod-mpi")
    [reference] = e.references_of(first)
    # Of other code or settings, or cut: it is measured, and its reference with it.
    result(first, e, source_sha256="0" * 64)
    assert set(submit.left(e)) == {first, reference}
    result(first, e, request_sha256="0" * 64)
    assert set(submit.left(e)) == {first, reference}
    Path(first.file).write_text("{")
    assert set(submit.left(e)) == {first, reference}
    # A failed run is a result, as for the workflow.
    result(first, e, status="failed")
    assert submit.left(e) == []


def called(folder: Path, *words: str, **programs: str) -> subprocess.CompletedProcess:
    """Call `escala submit` in a folder, with programs that stand in for those of SLURM."""
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return python("-m", "escala.command", "submit", *words, cwd=folder, variables={
        "PYTHONPATH": str(ROOT), "PATH": path,
    })  # fmt: skip


def test_the_command_writes_the_script_and_says_what_comes_next(folder):
    (folder / "small.yaml").write_text(yaml.safe_dump(SETTINGS))
    done = called(folder, "small.yaml", "--account", "p1", "--", "--config", "title=a b")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (folder / "results/small/job.sh").read_text()
    words = shlex.split(done.stdout.splitlines()[-1])
    assert words[:2] == ["exec", "snakemake"] and words[-2:] == ["--configfile", "small.yaml"]
    assert "runs" in words and "title=a b" in words
    assert words[words.index("--cores") + 1] == "all" and "--profile" not in words
    assert "10 runs on 8 nodes" in done.stderr
    # Nothing is prepared yet.
    assert "run prepare -e small.yaml" in done.stderr and "run report -e small.yaml" in done.stderr
    refused = called(folder, "small.yaml", "--now")
    assert refused.returncode == 2 and "is not prepared" in refused.stderr


def test_it_submits_and_shows_the_reason_of_a_refusal(folder):
    (folder / "small.yaml").write_text(yaml.safe_dump(SETTINGS))
    for file in load("small.yaml").dataset_files():
        write_json(Path(file), {})
    others = dict.fromkeys(("squeue", "scancel", "scontrol", "sinfo", "srun"), "exit 0")
    done = called(
        folder, "small.yaml", "--now", sbatch='cp "$2" given; echo "31;cluster"', **others
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "given").read_text() == done.stdout
    assert "job 31." in done.stderr and "results/small/logs/job-31.log" in done.stderr
    refused = called(folder, "small.yaml", "--now", sbatch="echo no account >&2; exit 1", **others)
    assert refused.returncode == 2
    assert "no account" in refused.stderr and "--account" in refused.stderr


@pytest.mark.parametrize(
    ("printed", "number"),
    [
        ("echo '-- 2026 --'; echo '--> Verifying quota (normal)...OK'; echo 519605", "519605"),
        ("echo 'Welcome to 3'; echo '7;cluster'; echo done", "7"),
        ("echo Submitted batch job 12", "12"),
        ("echo Welcome", None),
    ],
)
def test_the_number_of_a_job_is_told_from_a_welcome(tmp_path, monkeypatch, printed, number):
    for name in ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{printed}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if number:
        assert submit.submit("job.sh") == number
    else:
        with pytest.raises(InputError, match="printed no number of a job: 'Welcome'"):
            submit.submit("job.sh")


def test_it_waits_for_the_job_and_ends_with_its_exit_code(folder):
    (folder / "small.yaml").write_text(yaml.safe_dump(SETTINGS))
    for file in load("small.yaml").dataset_files():
        write_json(Path(file), {})
    others = dict.fromkeys(("squeue", "scancel", "sinfo", "srun"), "exit 0")
    others |= {
        "sbatch": "echo 4 of 24 runs measured > results/small/logs/job-31.log; echo 31",
        "scontrol": "echo '   JobState=FAILED'; echo '   Requeue=1 ExitCode=75:0'",
    }
    done = called(folder, "small.yaml", "--now", "--wait", **others)
    assert done.returncode == 75, done.stderr
    assert "4 of 24 runs measured" in done.stderr
    assert called(folder, "small.yaml", "--wait").returncode == 2


def trying(monkeypatch, *words: str, codes: dict[str, int] | None = None) -> list[str]:
    """Return the subcommands that `escala try` calls to measure, and its exit code last."""
    script = importlib.import_module("escala.commands.try")
    made: list[str] = []

    def called(*words: str) -> int:
        made.append(" ".join(words).partition(" -- ")[0])
        return (codes or {}).get(words[0], 0)

    e = Experiment(SETTINGS, "small.yaml")
    monkeypatch.setattr(script, "_called", called)
    _, arguments = parse(["try", *words, "--", "python", "train.py"])
    code = script._measured(Path("small.yaml"), e, arguments)
    return [*made, str(code)]


def test_a_trial_over_nodes_measures_all_in_one_job(folder, monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_JOBID"):
        monkeypatch.delenv(name, raising=False)
    e = Experiment(SETTINGS, "small.yaml")
    for run in runs_of(e)[:3]:
        result(run, e)
    report = "run report --experiment small.yaml"
    one_job = ["run prepare --experiment small.yaml", "submit small.yaml --now --wait", report]
    assert trying(monkeypatch, "--nodes", "2") == [*one_job, "0"]
    # What a job has measured that ended early is reported.
    assert trying(monkeypatch, "--nodes", "2", codes={"submit": 75}) == [*one_job, "75"]
    assert trying(monkeypatch, "--nodes", "2", codes={"run": 2}) == [one_job[0], "2"]
    for run in runs_of(e):
        result(run, e)
    assert trying(monkeypatch, "--nodes", "2") == [one_job[0], report, "0"]
    assert trying(monkeypatch) == ["run --experiment small.yaml", "0"]
    whole = "run --experiment small.yaml --profile {}"
    own = ("--nodes", "2", "--profile", "profiles/own")
    assert trying(monkeypatch, *own) == [whole.format("profiles/own"), "0"]
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert trying(monkeypatch, "--nodes", "2") == ["run --experiment small.yaml", "0"]


def test_no_doubling_is_submitted_before_the_data_of_all_are_prepared(folder):
    (folder / "small.yaml").write_text(yaml.safe_dump(SETTINGS))
    programs = dict.fromkeys(("squeue", "scancel", "scontrol", "sinfo", "srun"), "exit 0")
    programs["sbatch"] = 'echo "$2" >> given; echo 31'
    words = ("small.yaml", "--one-per-doubling", "--now")
    refused = called(folder, *words, **programs)
    assert refused.returncode == 2 and not (folder / "given").exists()
    files = [f"results/small/small-{name}.yaml" for name in ("1to2", "2to4", "4to8")]
    assert all(f"run prepare -e {file}" in refused.stderr for file in files)
    for file in files:
        for data in load(file).dataset_files():
            write_json(Path(data), {})
    done = called(folder, *words, **programs)
    assert done.returncode == 0, done.stderr
    scripts = [f"results/small-{name}/job.sh" for name in ("1to2", "2to4", "4to8")]
    assert (folder / "given").read_text().split() == scripts
    assert "study --doublings -e small.yaml" in done.stderr
