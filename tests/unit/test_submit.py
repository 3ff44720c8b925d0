"""The job script of an experiment: what it asks for, what it starts, and how it is cut."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time as clock
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from escala.command import parse
from escala.commands import flow, submit
from escala.core.errors import InputError
from escala.core.files import write_json
from escala.core.readable import duration, size
from escala.draft import program
from escala.experiment import Experiment, Run, load, read
from escala.measure import estimate
from escala.measure.estimate import sentence
from escala.measure.plan import plan_session
from escala.record import key
from escala.record.schema import FORMAT
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
    return submit.write_script(e, asked, "01:00:00", options or {}, lines, call)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A working directory with a space in its name."""
    found = tmp_path / "my work"
    found.mkdir()
    monkeypatch.chdir(found)
    return found


def test_it_asks_for_the_nodes_of_the_largest_layout_alone_and_for_what_the_site_wants(folder):
    text = script(Experiment(SETTINGS, "small.yaml"), {"account": "p1", "gres": "gpu:4"})
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if "#SBATCH" in line]
    words = [word for line in lines for word in shlex.split(line)]
    pairs = (word.removeprefix("--").partition("=") for word in words)
    found = {name: value if equals else None for name, equals, value in pairs}
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


def test_the_time_is_the_estimate_of_what_is_left_with_a_margin(folder):
    e = Experiment(SETTINGS, "small.yaml")
    runs = runs_of(e)
    assert "a guess" in estimate.time_of(runs).why
    for run in runs[:2]:
        record = {"format": FORMAT, "status": "ok", "layout": "1x1", "wall_seconds": 600.0}
        write_json(Path(run.folder, "sessions", "one.json"), record)
    # 10 runs of 10 minutes each.
    assert 100 < estimate.time_of(runs).minutes <= 150
    assert submit.format_time(60 * 24 * 2 + 61) == "2-01:01:00"


#: What asks each scheduler for 8 nodes of 12 cores, alone, for an hour and a half.
ASKED = {
    "pbs": ["#PBS -l select=8:ncpus=12:mpiprocs=12", "#PBS -l place=scatter:exclhost",
            "#PBS -l walltime=25:30:00", "#PBS -A p1", "#PBS -q cpu"],
    "lsf": ["#BSUB -n 96", '#BSUB -R "span[ptile=12]"', "#BSUB -x", "#BSUB -W 1530", "#BSUB -P p1",
            "#BSUB -q cpu"],
    "flux": ["# flux: --nodes=8", "# flux: --exclusive", "# flux: --time-limit=1530m",
             "# flux: --bank=p1", "# flux: --queue=cpu"],
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_other_schedulers_are_asked_for_the_same_in_their_own_words(name, folder):
    e = Experiment(SETTINGS, "small.yaml")
    options, call = {"account": "p1", "partition": "cpu"}, ["snakemake", "runs"]
    shape, scheduler = estimate.shape(runs_of(e)), submit.SCHEDULERS[name]
    text = submit.write_script(e, shape, "1-01:30:00", options, (), call, scheduler)
    lines = text.splitlines()
    assert set(ASKED[name]) <= set(lines)
    # What a scheduler reads stands before the first line of the shell.
    read = [number for number, line in enumerate(lines) if line.startswith(scheduler.sign)]
    assert all(line.startswith("#") for line in lines[: read[-1]])
    assert read == [*range(read[0], read[-1] + 1)]
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_without_a_signal_of_the_scheduler_the_script_sends_one_before_its_end(folder, monkeypatch):
    e, call = Experiment(SETTINGS, "small.yaml"), [f"{folder}/snakemake"]
    time = f"0:{(submit.TERM_SECONDS + 2) // 60}:{(submit.TERM_SECONDS + 2) % 60}"
    shape = estimate.shape(runs_of(e))
    text = submit.write_script(e, shape, time, {}, (), call, submit.SCHEDULERS["pbs"])
    (folder / "job.sh").write_text(text)
    program = WAITS.replace("exit 0", "exit 75").replace("$$ $*", "$(pwd):$ESCALA_JOB_TIME")
    (folder / "snakemake").write_text(program)
    (folder / "snakemake").chmod(0o755)
    before = int(clock.time())
    done = subprocess.run(["bash", folder / "job.sh"], cwd="/", timeout=30)
    where, begin, seconds = (folder / "said").read_text().splitlines()[0].split(":")
    assert done.returncode == 75 and where == str(folder)
    assert 0 <= int(begin) - before <= 10 and int(seconds) == submit.TERM_SECONDS + 2


@pytest.mark.parametrize(
    ("options", "time", "reason"),
    [
        ({"account": "a b"}, None, "one word"),
        ({"partition": "x\n#SBATCH --nodes=9"}, None, "one word"),
        ({}, "an hour", "HH:MM:SS"),
        # The signal of the end of a job comes five minutes early.
        ({}, "4:59", "shorter"),
        ({}, "5", None),
        ({}, "5:01", None),
        ({}, "2-01:20:00", None),
    ],
)
def test_what_a_shell_or_sbatch_reads_otherwise_is_refused(options, time, reason):
    with pytest.raises(InputError, match=reason) if reason else nullcontext():
        submit.require_plain(options, time)


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
    assert submit.select_runs(e) == runs
    for run in runs:
        result(run, e)
    assert submit.select_runs(e) == []
    first = next(run for run in runs if run.strategy == "horovod-mpi")
    [reference] = e.references_of(first)
    # Of other code or settings, or cut: it is measured, and its reference with it.
    result(first, e, source_sha256="0" * 64)
    assert set(submit.select_runs(e)) == {first, reference}
    result(first, e, request_sha256="0" * 64)
    assert set(submit.select_runs(e)) == {first, reference}
    Path(first.file).write_text("{")
    assert set(submit.select_runs(e)) == {first, reference}
    # A failed run is a result, as for the workflow.
    result(first, e, status="failed")
    assert submit.select_runs(e) == []


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


def test_the_script_of_another_scheduler_is_written_with_the_command_that_submits_it(folder):
    (folder / "small.yaml").write_text(yaml.safe_dump(SETTINGS))
    done = called(folder, "small.yaml", "--for", "lsf", "--account", "p1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (folder / "results/small/job.sh").read_text()
    assert "#BSUB" in done.stdout and "#SBATCH" not in done.stdout
    assert "bsub < results/small/job.sh" in done.stderr
    for words in (["--now"], ["--gres", "gpu:4"]):
        refused = called(folder, "small.yaml", "--for", "lsf", *words)
        assert refused.returncode == 2 and words[0] in refused.stderr


def test_it_submits_and_shows_the_reason_of_a_refusal(folder):
    (folder / "small.yaml").write_text(yaml.safe_dump(SETTINGS))
    for file in load("small.yaml").dataset_files():
        write_json(Path(file), {})
    Path("results/small/.escala").touch()
    others = dict.fromkeys(("squeue", "scancel", "scontrol", "sinfo", "srun"), "exit 0")
    done = called(
        folder,
        "small.yaml",
        "--now",
        sbatch='cp "$2" given; echo Welcome to 3; echo "31;cluster"; echo done',
        **others,
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "given").read_text() == done.stdout
    assert "job 31." in done.stderr and "results/small/logs/job-31.log" in done.stderr
    refused = called(folder, "small.yaml", "--now", sbatch="echo no account >&2; exit 1", **others)
    assert refused.returncode == 2
    assert "no account" in refused.stderr and "--account" in refused.stderr
    others |= {
        "sbatch": "echo 4 of 24 runs measured > results/small/logs/job-31.log; echo 31",
        "scontrol": "echo '   JobState=FAILED'; echo '   Requeue=1 ExitCode=75:0'",
    }
    done = called(folder, "small.yaml", "--now", "--wait", **others)
    assert done.returncode == 75 and "4 of 24 runs measured" in done.stderr, done.stderr


def test_nodes_without_slurm_are_refused_before_anything_starts(folder, monkeypatch):
    (folder / "train.py").touch()
    _, arguments = parse(["try", "--nodes", "2", "--torch", "--", "python", "train.py"])
    drafted = program.draft(arguments.extra, arguments)
    for name in ("SLURM_JOB_ID", "SLURM_JOBID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(InputError, match=r"nodes: 2: .*SLURM.*sbatch.*login node"):
        flow.begin(drafted, folder / "escala-train.yaml", arguments, False)
    assert not (folder / "escala-train.yaml").exists()


def test_a_script_that_is_not_there_is_refused_before_anything_starts(folder):
    words = ["try", "--nodes", "2", "--torch", "--dry", "--"]
    for before in ("python", "python -u", "env A=1 python", "nice -n 5 python"):
        _, arguments = parse([*words, *before.split(), "train.py"])
        drafted = program.draft(arguments.extra, arguments)
        with pytest.raises(InputError, match=r"command: 'train\.py': does not exist"):
            flow.begin(drafted, folder / "escala-train.yaml", arguments, False)
    (folder / "train.py").mkdir()
    assert flow.begin(drafted, folder / "escala-train.yaml", arguments, False) is None
    (folder / "train.py").rmdir()
    (folder / "train.py").touch()
    assert flow.begin(drafted, folder / "escala-train.yaml", arguments, False) is None


def test_a_trial_over_nodes_measures_all_in_one_job(folder, monkeypatch):
    def calls_of(*words: str, **codes: int) -> list[str]:
        """Return the subcommands that `escala try` calls to measure, and its exit code last."""
        made: list[str] = []

        def called(*words: str, **options: object) -> int:
            made.append(" ".join(words).partition(" -- ")[0])
            return codes.get(words[0], 0)

        monkeypatch.setattr(flow, "call_escala", called)
        _, arguments = parse(["try", *words, "--", "python", "train.py"])
        code = flow._measure(Path("small.yaml"), e, arguments)
        return [*made, str(code)]

    for name in ("SLURM_JOB_ID", "SLURM_JOBID"):
        monkeypatch.delenv(name, raising=False)
    e = Experiment(SETTINGS, "small.yaml")
    for run in runs_of(e)[:3]:
        result(run, e)
    report = "run report --experiment small.yaml"
    one_job = ["run prepare --experiment small.yaml", "submit small.yaml --now --wait", report]
    assert calls_of("--nodes", "2") == [*one_job, "0"]
    # What a job has measured that ended early is reported.
    assert calls_of("--nodes", "2", submit=75) == [*one_job, "75"]
    assert calls_of("--nodes", "2", run=2) == [one_job[0], "2"]
    for run in runs_of(e):
        result(run, e)
    assert calls_of("--nodes", "2") == [one_job[0], report, "0"]
    whole = "run --experiment small.yaml"
    profile = ("--profile", "profiles/own")
    assert calls_of("--nodes", "2", *profile) == [" ".join((whole, *profile)), "0"]
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert calls_of("--nodes", "2") == calls_of() == [whole, "0"]


def demo() -> dict:
    """The default experiment with the settings that the expectations below are made for."""
    settings = read(ROOT / "config.yaml")
    counts = {"COVID": 900, "DENGUE": 700, "EBOLA": 250, "MERS": 250, "SARS": 250}
    dataset = settings["datasets"]["demo-1000"]
    dataset["source"]["records"] = counts
    dataset |= {"oversample": {}, "split": {"test_fraction": 0.3, "seeds": [4]}}
    settings["workloads"] = {"virus-cnn": {"epochs": 3}}
    settings["variants"] = {"tuned": {}}
    settings["configurations"] = [
        {"strategy": "single", "layouts": ["1x1"]},
        *({"strategy": f"horovod-{way}", "layouts": ["1x2"]} for way in ("mpi", "gloo")),
    ]
    del settings["references"]
    return settings | {"repeats": 3, "timeline": {"enabled": True}}


@pytest.fixture
def experiment(tmp_path, monkeypatch) -> Experiment:
    monkeypatch.chdir(tmp_path)
    return Experiment(demo(), "config.yaml")


def measured(run: Run, seconds: float, status: str = "ok", session: str = "first") -> None:
    record = {"format": FORMAT, "status": status, "layout": run.layout, "wall_seconds": seconds}
    write_json(Path(run.folder) / "sessions" / f"{session}.json", record)


def of(experiment: Experiment, strategy: str, repeat: int) -> Run:
    layout = "1x1" if strategy == "single" else "1x2"
    return experiment.run("demo-1000", "virus-cnn", strategy, layout, "tuned", "native", repeat)


def test_a_run_takes_the_median_of_its_own_configuration_or_of_others_of_its_dataset(experiment):
    assert sentence([]) == "No run has to be measured."
    measured(of(experiment, "single", 1), 1000, status="timeout")
    timeline = experiment.probe_runs("timeline")[0]
    measured(of(experiment, timeline.strategy, 3), 10)
    # A run of a probe takes as long as a timing run until it is measured.
    assert sentence([timeline]) == "1 run to measure, 10 s of training by earlier runs."
    Path(of(experiment, timeline.strategy, 3).folder, "sessions", "first.json").unlink()
    measured(timeline, 1000)
    assert sentence([of(experiment, "single", 3)]) == "1 run to measure."
    assert ", 16 min 40 s of training" in sentence([timeline])
    for repeat, seconds in ((1, 10), (2, 30)):
        measured(of(experiment, "single", repeat), seconds)
    measured(of(experiment, "single", 2), 500, session="second")
    measured(of(experiment, "horovod-mpi", 1), 20)
    runs = [of(experiment, "single", 3), of(experiment, "horovod-mpi", 2)]
    assert ", 30 s of training" in sentence(runs[:1])
    assert ", 50 s of training" in sentence(runs)
    assert ", 25 s of training" in sentence([of(experiment, "horovod-gloo", 1)])
    settings = demo()
    settings["datasets"]["other"] = settings["datasets"]["demo-1000"]
    other = [run for run in Experiment(settings, "e").runs if run.dataset == "other"][:3]
    assert sentence([*runs[:1], *other]) == "4 runs to measure."


def test_each_file_is_read_once_and_a_damaged_one_is_left_out(experiment, monkeypatch, capsys):
    for repeat in (1, 2, 3):
        measured(of(experiment, "single", repeat), 10)
    (Path(of(experiment, "single", 3).folder) / "sessions" / "first.json").write_text("")
    read, read_bytes = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or read_bytes(path))
    new = [of(experiment, name, n) for name in ("horovod-mpi", "horovod-gloo") for n in (1, 2, 3)]
    assert ", 1 min 0 s of training" in sentence(new)
    assert len(read) == len(set(read)) == 3
    assert capsys.readouterr().err.count("first.json") == 1


def test_durations_and_sizes_are_written_as_people_do():
    texts = {42.4: "42 s", 59.6: "1 min 0 s", 3599.6: "1 h 0 min", 7499: "2 h 4 min"}
    assert {seconds: duration(seconds) for seconds in texts} == texts
    sizes = {0: "0 bytes", 1023: "1023 bytes", 1536: "1.5 KiB", 2**31: "2.0 GiB"}
    assert {number: size(number) for number in sizes} == sizes
