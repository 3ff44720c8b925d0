"""Write the script of a job that measures an experiment; with SLURM, submit it with --now.

All runs of the experiment are measured in one job, one after the other, on the same nodes. So both
sides of a ratio run on the same nodes, minutes apart. You wait in the queue only once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from escala.core import console, environment
from escala.core.arguments import Parser
from escala.core.console import say
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import write_text
from escala.core.readable import with_noun
from escala.core.variables import CALLERS_VARIABLES
from escala.engines.environments import provide_all
from escala.experiment import Experiment, Run, load
from escala.experiment.runs import engines_of
from escala.measure import estimate, missing
from escala.measure.plan import plan_session, until_stop
from escala.runtime import slurm
from escala.runtime.allocation import TIME
from escala.workflow import call as workflow

EXAMPLES = """\
examples:
  escala submit                                       print the script for the default experiment
  escala submit experiments/virus/scaling.yaml --partition cpu --account p123
  escala submit FILE --now                            submit it as well
  escala submit FILE --time 04:00:00 --setup 'module load gcc/12' --hint nomultithread
  escala submit FILE -- --config title='Second try'   arguments after -- go to Snakemake
  escala submit FILE --for pbs                        the script for another scheduler

the three steps of an experiment on a cluster, from the login node:
  escala run prepare -e FILE      data; this may need the network
  escala submit FILE --now        the runs; again, if the job ended before all were measured
  escala run report -e FILE       tables, figures and page of the runs that are there, at any time

The script is written to results/NAME/job.sh. You may change it, and submit it by sbatch. What
sbatch reads from the environment counts too: export SBATCH_ACCOUNT=p123 SBATCH_PARTITION=cpu.
"""
#: Options of a scheduler that a site may require, each with a description of its value.
OPTIONS = {
    "account": "the account whose compute time is used",
    "partition": "the queue",
    "constraint": "a feature of nodes, so that all are of one kind",
    "reservation": "nodes that are reserved for you",
    "qos": "the quality of service",
    "gres": "devices of a node, such as gpu:4",
    "hint": "nomultithread: one process for each physical core",
}


class Scheduler(NamedTuple):
    """A scheduler, with the words of its job script. `write_script` fills in their fields.

    Attributes
    ----------
    submit : the command that submits the script.
    sign : the beginning of a line that the scheduler reads.
    words : what it reads on such lines.
    options : the words of options of `escala submit`, by their names.
    begin : lines before the runs.
    call : the words before the call of Snakemake.
    """

    submit: str
    sign: str
    words: tuple[str, ...]
    options: Mapping[str, str]
    begin: tuple[str, ...] = (
        "cd {folder}",
        # The runs of a repeat begin only if they can end.
        "export {job_time}=$(date +%s):{seconds}",
    )
    call: str = "timeout --foreground --preserve-status {term_after} "


SCHEDULERS = {
    "slurm": Scheduler(
        "sbatch {file}",
        "#SBATCH",
        (
            "--job-name=escala-{name}",
            "--chdir={cwd}",
            "--output={logs}/job-%j.log",
            # SLURM may start a job again, such as after the loss of a node. The output is then
            # appended.
            "--open-mode=append",
            "--nodes={nodes}",
            "--ntasks-per-node={tasks}",
            "--cpus-per-task={cores}",
            "--exclusive",
            # 0 asks for all the memory of the nodes.
            "--mem=0",
            "--time={time}",
            "--signal=B:TERM@{term_seconds}",
        ),
        {name: f"--{name}={{}}" for name in OPTIONS},
        begin=(),
        call="",
    ),
    "pbs": Scheduler(
        "qsub {file}",
        "#PBS",
        (
            # Older releases take 15 characters.
            "-N escala-{name:.8}",
            "-j oe",
            "-o {logs}/",
            # The variables of the shell, as the others pass them on.
            "-V",
            "-l select={nodes}:ncpus={node_cores}:mpiprocs={node_cores}",
            "-l place=scatter:exclhost",
            "-l walltime={clock}",
        ),
        {"account": "-A {}", "partition": "-q {}"},
    ),
    "lsf": Scheduler(
        "bsub < {file}",
        "#BSUB",
        (
            "-J escala-{name}",
            "-o {logs}/job-%J.log",
            "-n {slots}",
            '-R "span[ptile={node_cores}]"',
            "-x",
            "-W {minutes}",
        ),
        {"account": "-P {}", "partition": "-q {}", "reservation": "-U {}"},
    ),
    "flux": Scheduler(
        "flux batch {file}",
        "# flux:",
        (
            "--job-name=escala-{name}",
            "--output={logs}/job-{{{{id}}}}.log",
            "--nodes={nodes}",
            "--exclusive",
            "--time-limit={minutes}m",
        ),
        {"account": "--bank={}", "partition": "--queue={}", "constraint": "--requires={}"},
    ),
}
#: Seconds before the end of the job at which Snakemake, which replaces its shell, gets SIGTERM.
#: SLURM may send the signal up to a minute earlier.
TERM_SECONDS = 120
#: Minutes of the shortest job. A shorter job may get the signal before its first run.
SHORTEST_MINUTES = 5
_SBATCH_SECONDS = 30
_PLAIN = re.compile(r"""[^\s'"\\$`]+""")
#: The output of sbatch on a job: `31`, `31;cluster`, or a sentence without --parsable.
_NUMBER = re.compile(r"^\s*(?:Submitted batch job )?(\d+)(?:;\S+| on cluster \S+)?\s*$", re.M)
_TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}")

_SCRIPT = """\
#!/bin/bash
# Measure the runs of {name} one after the other, all on the nodes of this job.
# Submit it again until it says that all runs are measured. What was measured is kept.
{options}

{lines}
# With exec, a signal before the end reaches Snakemake, which ends the run that goes on.
exec {command}
"""


def add(parser: Parser) -> None:
    parser.usage = "escala submit [FILE] [OPTION …] [-- SNAKEMAKE …]"
    text = "file of the experiment, as for -e"
    parser.add_argument(
        "experiment", nargs="?", metavar="FILE", default=argparse.SUPPRESS, help=text
    )
    workflow.add_experiment(parser)
    text = "the scheduler that will run the job; default: slurm"
    parser.add_argument("--for", dest="scheduler", choices=SCHEDULERS, default="slurm", help=text)
    parser.add_argument("--now", action="store_true", help="submit the job, too (slurm)")
    text = "with --now: wait until the job has ended, and end with its exit code"
    parser.add_argument("--wait", action="store_true", help=text)
    parser.add_argument(
        "--time", metavar="HH:MM:SS", help="limit of the job; default: the estimate with a margin"
    )
    text = "a line of the shell before the runs, such as 'module load gcc'; may be repeated"
    parser.add_argument("--setup", metavar="LINE", action="append", default=[], help=text)
    for name, what in OPTIONS.items():
        by = [key for key, value in SCHEDULERS.items() if name in value.options]
        text = what + f" ({', '.join(by)})" * (len(by) < len(SCHEDULERS))
        parser.add_argument(f"--{name}", metavar="NAME", help=text)
    parser.add_argument(
        "--output", metavar="FILE", help="file to write; default: results/NAME/job.sh"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.wait and not arguments.now:
        raise InputError("--wait", None, "is for a job that --now submits", "add --now")
    options = {name: value for name in OPTIONS if (value := getattr(arguments, name))}
    scheduler = SCHEDULERS[arguments.scheduler]
    require_plain(options, arguments.time)
    if arguments.output and Path(arguments.output).is_dir():
        raise InputError("--output", arguments.output, "is a folder", "name a file in it")
    if arguments.now and arguments.scheduler != "slurm":
        command = scheduler.submit.format(file="FILE")
        remedy = f"leave it out, and submit the script: {command}"
        raise InputError("--now", arguments.scheduler, "is submitted by yourself", remedy)
    for name in options.keys() - scheduler.options.keys():
        remedy = f"leave it out, and write a line {scheduler.sign} … into the script"
        raise InputError(f"--{name}", arguments.scheduler, "has no such option here", remedy)
    e = load(workflow.file_of(arguments))
    runs = select_runs(e)
    file = ["-e", arguments.experiment] if arguments.experiment else []
    prepare, report = (call(f"run {target}", *file) for target in ("prepare", "report"))
    if not runs:
        remedy = f"report them: {report}; to repeat failed ones: {call(f'retry results/{e.name}')}"
        raise InputError("FILE", e.origin, "all its runs are measured", remedy)
    unprepared = [file for file in e.dataset_files() if not Path(file).exists()]
    if arguments.now and unprepared:
        reason = "is not prepared, and the nodes of the job would wait for that"
        raise InputError("--now", unprepared[0], reason, f"first {prepare}")
    shape = estimate.shape([planned.run for planned in plan_session(e).runs])
    time = estimate.time_of(runs)
    limit = arguments.time or format_time(time.minutes)
    snakemake = workflow.call_of(arguments, ["runs", "--cores", "all"])
    text = write_script(e, shape, limit, options, arguments.setup, snakemake, scheduler)
    environment.claim_results(Path("results", e.name))
    _log(e, "").parent.mkdir(parents=True, exist_ok=True)
    path = arguments.output or f"results/{e.name}/job.sh"
    write_text(path, text)
    print(text, end="", flush=True)
    say(
        f"Written: {path}, for {with_noun(len(runs), 'run')} on "
        f"{with_noun(shape.nodes, 'node')}, in {limit} at most: "
        f"{'as --time says' if arguments.time else time.why}."
    )
    if not arguments.now:
        command = scheduler.submit.format(file=shlex.quote(path))
        where = "" if shutil.which(command.split()[0]) else "on the login node of a cluster: "
        where += f"{prepare}; " * bool(unprepared)
        say(f"Next: {where}{command}; {report}")
        return console.DONE
    number = submit(path)
    say(f"Submitted: job {number}. Its output: {_log(e, number)}")
    say(f"Next, also while it runs: {report}")
    return _wait(number, _log(e, number)) if arguments.wait else console.DONE


def select_runs(e: Experiment) -> list[Run]:
    """Return the runs that a call inside the job measures, as far as this machine can tell."""
    plan = until_stop(plan_session(e))
    # The nodes of the job may have no access to the internet.
    provide_all(engines_of(planned.run for planned in plan.runs))
    return [planned.run for planned in missing.runs_left_of(plan, missing.Present())]


def _log(e: Experiment, number: str) -> Path:
    return Path("results", e.name, "logs", f"job-{number}.log")


def _wait(number: str, log: Path) -> int:
    """Wait for a job, say how it ended, and return its exit code."""
    say(f"Waiting for the end of job {number}. Ctrl-C cancels the job")
    code = slurm.wait(number)
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    last = next((line for line in reversed(lines) if line.strip()), "nothing")
    say(f"Job {number} ended with exit code {code}" + f"; its last line: {last}" * bool(code))
    return code


def format_time(minutes: int) -> str:
    """Return minutes as SLURM reads a time: `01:20:00`, or `2-01:20:00` with days."""
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes:02}:00"


def require_plain(options: Mapping[str, str], time: str | None) -> None:
    """Refuse values that sbatch or a shell would not read as they stand.

    Raises
    ------
    InputError : with the option.
    """
    for name, value in options.items():
        if not _PLAIN.fullmatch(value):
            raise InputError(f"--{name}", value, "holds a space, a quote or a sign of the shell",
                             "write it as sbatch takes it, in one word")  # fmt: skip
    if time is None:
        return
    if not _TIME.fullmatch(time):
        raise InputError(
            "--time", time, "is not a time that SLURM reads", "write HH:MM:SS or D-HH:MM:SS"
        )
    if _seconds(time) < SHORTEST_MINUTES * 60:
        raise InputError("--time", time, f"is shorter than {SHORTEST_MINUTES} minutes",
                         "ask for more: the signal of its end would come at its start")  # fmt: skip


def _seconds(time: str) -> int:
    """Return the seconds of a time as SLURM reads it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    days, _, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    hours, minutes, seconds, *_ = (*([0] if not days and len(parts) < 3 else []), *parts, 0, 0)
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def write_script(
    e: Experiment,
    shape: estimate.Shape,
    time: str,
    options: Mapping[str, str],
    lines: Sequence[str],
    command: Sequence[str],
    scheduler: Scheduler = SCHEDULERS["slurm"],
) -> str:
    """Return the text of the job script.

    Parameters
    ----------
    time : the time limit as SLURM reads it.
    options : options of the scheduler with their values, by the names of `OPTIONS`.
    lines : lines of the shell before the environment is activated.
    command : the call of Snakemake.
    """
    seconds = _seconds(time)
    minutes, hours = seconds // 60, seconds // 3600
    fields = {
        "name": e.name,
        "cwd": Path.cwd(),
        "folder": shlex.quote(str(Path.cwd())),
        "logs": _log(e, "").parent,
        "nodes": shape.nodes,
        "tasks": shape.tasks,
        "cores": shape.cores,
        "node_cores": shape.tasks * shape.cores,
        "slots": shape.nodes * shape.tasks * shape.cores,
        "time": time,
        "seconds": seconds,
        "minutes": minutes,
        "clock": f"{hours:02}:{minutes % 60:02}:{seconds % 60:02}",
        "term_seconds": TERM_SECONDS,
        "term_after": seconds - TERM_SECONDS,
        "job_time": TIME,
    }
    words = [word.format_map(fields) for word in scheduler.words]
    words += [scheduler.options[name].format(value) for name, value in options.items()]
    # Double quotes where the name of a folder holds a space.
    words = [
        json.dumps(word, ensure_ascii=False) if re.match(r"--\S*\s", word) else word
        for word in words
    ]
    # A job gets further variables from its site. They are in no key of a program.
    shell = []
    if CALLERS_VARIABLES in os.environ:
        value = shlex.quote(os.environ[CALLERS_VARIABLES])
        shell = [f"export {CALLERS_VARIABLES}={value}"]
    begin = [line.format_map(fields) for line in scheduler.begin]
    return _SCRIPT.format(
        name=e.name,
        options="\n".join(f"{scheduler.sign} {word}" for word in words),
        lines="\n".join([*begin, *lines, *shell, activation()]),
        command=scheduler.call.format_map(fields) + shlex.join(command),
    )


def activation() -> str:
    """Return the line of the shell that selects this environment."""
    file = Path(sys.prefix, "bin", "activate")
    if not file.exists():
        return f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
    if file.is_relative_to(Path.cwd()):
        file = file.relative_to(Path.cwd())
    return f"source {shlex.quote(str(file))}"


def submit(file: str) -> str:
    """Submit a job script and return SLURM's number of the job.

    Raises
    ------
    InputError : SLURM does not answer, or refuses the job. The message has the reason.
    """
    slurm.require_controller()
    try:
        done = slurm.call(["sbatch", "--parsable", file], _SBATCH_SECONDS)
    except subprocess.TimeoutExpired:
        reason = f"gave no answer within {_SBATCH_SECONDS} s"
        raise InputError(
            "sbatch", file, reason, "see whether it was submitted: squeue --me"
        ) from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["refused it"])[-1]
        remedy = "name what your site asks for, such as --account or --partition (sinfo lists them)"
        raise InputError("sbatch", file, reason, remedy)
    # A site may print a welcome as well.
    if numbers := _NUMBER.findall(done.stdout):
        return numbers[-1]
    reason = f"printed no number of a job: {done.stdout.strip()[:200]!r}"
    raise InputError("sbatch", file, reason, "see whether it was submitted: squeue --me")
