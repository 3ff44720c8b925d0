"""Write the script of a SLURM job that measures an experiment, and submit it with --now.

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
from escala.workflow import call as workflow

EXAMPLES = """\
examples:
  escala submit                                       print the script for the default experiment
  escala submit experiments/virus/scaling.yaml --partition cpu --account p123
  escala submit FILE --now                            submit it as well
  escala submit FILE --time 04:00:00 --setup 'module load gcc/12' --hint nomultithread
  escala submit FILE -- --config title='Second try'   arguments after -- go to Snakemake

the three steps of an experiment on a cluster, from the login node:
  escala run prepare -e FILE      data; this may need the network
  escala submit FILE --now        the runs; again, if the job ended before all were measured
  escala run report -e FILE       tables, figures and page of the runs that are there, at any time

The script is written to results/NAME/job.sh. You may change it, and submit it by sbatch. What
sbatch reads from the environment counts too: export SBATCH_ACCOUNT=p123 SBATCH_PARTITION=cpu.
"""
#: Options of sbatch that a site may require, each with a description of its value.
OPTIONS = {
    "account": "the account whose compute time is used",
    "partition": "the queue",
    "constraint": "a feature of nodes, so that all are of one kind",
    "reservation": "nodes that are reserved for you",
    "qos": "the quality of service",
    "gres": "devices of a node, such as gpu:4",
    "hint": "nomultithread: one process for each physical core",
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
# With exec, the signal before the end reaches Snakemake, which ends the run that goes on.
exec {command}
"""


def add(parser: Parser) -> None:
    parser.usage = "escala submit [FILE] [OPTION …] [-- SNAKEMAKE …]"
    text = "file of the experiment, as for -e"
    parser.add_argument(
        "experiment", nargs="?", metavar="FILE", default=argparse.SUPPRESS, help=text
    )
    workflow.add_experiment(parser)
    parser.add_argument("--now", action="store_true", help="submit the job, too")
    text = "with --now: wait until the job has ended, and end with its exit code"
    parser.add_argument("--wait", action="store_true", help=text)
    parser.add_argument(
        "--time", metavar="HH:MM:SS", help="limit of the job; default: the estimate with a margin"
    )
    text = "a line of the shell before the runs, such as 'module load gcc'; may be repeated"
    parser.add_argument("--setup", metavar="LINE", action="append", default=[], help=text)
    for name, what in OPTIONS.items():
        parser.add_argument(f"--{name}", metavar="NAME", help=f"for sbatch: {what}")
    parser.add_argument(
        "--output", metavar="FILE", help="file to write; default: results/NAME/job.sh"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.wait and not arguments.now:
        raise InputError("--wait", None, "is for a job that --now submits", "add --now")
    options = {name: value for name in OPTIONS if (value := getattr(arguments, name))}
    require_plain(options, arguments.time)
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
    text = write_script(e, shape, limit, options, arguments.setup, snakemake)
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
        where = "" if shutil.which("sbatch") else "on the login node of a cluster: "
        where += f"{prepare}; " * bool(unprepared)
        say(f"Next: {where}sbatch {shlex.quote(path)}; {report}")
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
) -> str:
    """Return the text of the job script.

    Parameters
    ----------
    time : the time limit as SLURM reads it.
    options : further options of sbatch with their values, without dashes.
    lines : lines of the shell before the environment is activated.
    command : the call of Snakemake.
    """
    all_options = {
        "job-name": f"escala-{e.name}",
        "chdir": Path.cwd(),
        "output": _log(e, "%j"),
        # SLURM may start a job again, such as after the loss of a node. The output is then
        # appended.
        "open-mode": "append",
        "nodes": shape.nodes,
        "ntasks-per-node": shape.tasks,
        "cpus-per-task": shape.cores,
        "exclusive": None,
        # 0 asks for all the memory of the nodes.
        "mem": 0,
        "time": time,
        "signal": f"B:TERM@{TERM_SECONDS}",
        **options,
    }
    # A job gets further variables from its site. They are in no key of a program.
    shell = []
    if CALLERS_VARIABLES in os.environ:
        value = shlex.quote(os.environ[CALLERS_VARIABLES])
        shell = [f"export {CALLERS_VARIABLES}={value}"]
    words = [
        f"--{name}" + ("" if value is None else f"={value}") for name, value in all_options.items()
    ]
    # Double quotes where an option holds a space.
    words = [
        json.dumps(word, ensure_ascii=False) if re.search(r"\s", word) else word for word in words
    ]
    return _SCRIPT.format(
        name=e.name,
        options="\n".join(f"#SBATCH {word}" for word in words),
        lines="\n".join([*lines, *shell, activation()]),
        command=shlex.join(command),
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
