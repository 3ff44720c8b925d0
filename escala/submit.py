"""Write the script of a SLURM job that measures all runs of an experiment on the same nodes.

The script asks for the nodes of the largest layout. Inside, each run is a job step, one after the
other. Data are prepared before, and the report is written after.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from escala.core.errors import InputError
from escala.core.readable import with_noun
from escala.core.variables import SHELL
from escala.engines.environments import provide_all
from escala.experiment import Experiment, Run
from escala.experiment.runs import engines_of
from escala.measure import standing
from escala.measure.estimate import Shape
from escala.measure.plan import plan_session, within_pilot
from escala.runtime import slurm

#: Options of sbatch that a site may ask for, with what they are.
OPTIONS = {
    "account": "the account whose compute time is used",
    "partition": "the queue",
    "constraint": "a feature of nodes, so that all are of one kind",
    "reservation": "nodes that are reserved for you",
    "qos": "the quality of service",
    "gres": "devices of a node, such as gpu:4",
    "hint": "nomultithread: one process for each physical core",
}
#: Seconds before the end of the job at which its shell, which is Snakemake, gets SIGTERM. SLURM may
#: send it up to a minute earlier.
TERM_SECONDS = 120
#: The shortest job: a shorter one may get that signal before its first run.
SHORTEST_MINUTES = 5
_SBATCH_SECONDS = 30
_PLAIN = re.compile(r"""[^\s'"\\$`]+""")
#: What sbatch prints of a job: `31`, `31;cluster`, or as without --parsable.
_NUMBER = re.compile(r"(?:Submitted batch job )?(\d+)(?:;\S+| on cluster \S+)?")
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


def left(e: Experiment) -> list[Run]:
    """Return the runs that a call inside the job measures, as far as that is known here."""
    plan = within_pilot(plan_session(e))
    # The nodes of the job may have no network.
    provide_all(engines_of(each.run for each in plan.runs))
    return [each.run for each in standing.runs_left_of(plan, standing.Present())]


def clock(minutes: int) -> str:
    """Return minutes as SLURM reads a time: `01:20:00`, or `2-01:20:00` with days."""
    hours, rest = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{rest:02}:00"


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
    days, _, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    hours, minutes, seconds, *_ = (*([0] if not days and len(parts) < 3 else []), *parts, 0, 0)
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def script(
    e: Experiment,
    shape: Shape,
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
    lines : of the shell, before the environment is activated.
    command : the call of Snakemake.
    """
    wanted = {
        "job-name": f"escala-{e.name}",
        "chdir": Path.cwd(),
        "output": f"{log_folder(e)}/job-%j.log",
        # A job that SLURM starts again, as after the loss of a node, goes on in it.
        "open-mode": "append",
        "nodes": shape.nodes,
        "ntasks-per-node": shape.tasks,
        "cpus-per-task": shape.cores,
        "exclusive": None,
        # All the memory of the nodes.
        "mem": 0,
        "time": time,
        "signal": f"B:TERM@{TERM_SECONDS}",
        **options,
    }
    # A job has further variables of its site, which are in no key of a program.
    shell = [f"export {SHELL}={shlex.quote(os.environ[SHELL])}"] if SHELL in os.environ else []
    named = (f"--{name}" + ("" if value is None else f"={value}") for name, value in wanted.items())
    return _SCRIPT.format(
        name=e.name,
        options="\n".join(f"#SBATCH {_quoted(option)}" for option in named),
        lines="\n".join([*lines, *shell, activation()]),
        command=shlex.join(command),
    )


def _quoted(option: str) -> str:
    """Return an option of an #SBATCH line, in double quotes where it holds a space."""
    return json.dumps(option, ensure_ascii=False) if re.search(r"\s", option) else option


def log_folder(e: Experiment) -> str:
    return f"results/{e.name}/logs"


def activation() -> str:
    """Return the line of the shell that selects this environment."""
    file = Path(sys.prefix, "bin", "activate")
    if not file.exists():
        return f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
    near = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"source {shlex.quote(str(near))}"


def sentence(runs: Sequence[Run], shape: Shape, limit: str, why: str) -> str:
    """Return a sentence on what a job script asks for."""
    nodes = with_noun(shape.nodes, "node")
    return f"{with_noun(len(runs), 'run')} on {nodes}, in {limit} at most: {why}."


def unprepared(e: Experiment) -> list[str]:
    """Return the descriptions of splits that are not prepared yet."""
    return [file for file in e.largest.dataset_files() if not Path(file).exists()]


def submit(file: str) -> str:
    """Submit a job script and return SLURM's number of the job.

    Raises
    ------
    InputError : SLURM does not answer, or refuses the job; with its reason.
    """
    slurm.require_controller()
    try:
        done = slurm.call(["sbatch", "--parsable", file], _SBATCH_SECONDS)
        lines = done.stderr.strip().splitlines()
    except subprocess.TimeoutExpired:
        lines = [
            f"no answer within {_SBATCH_SECONDS} s; squeue --me shows whether the job is there"
        ]
        done = None
    if done is None or done.returncode:
        remedy = "name what your site asks for, such as --account or --partition (sinfo lists them)"
        raise InputError("sbatch", file, lines[-1] if lines else "refused it", remedy)
    # A site may print a welcome as well.
    numbers = [
        found for line in done.stdout.splitlines() if (found := _NUMBER.fullmatch(line.strip()))
    ]
    if not numbers:
        reason = f"printed no number of a job: {done.stdout.strip()[:200]!r}"
        raise InputError("sbatch", file, reason, "see whether it was submitted: squeue --me")
    return numbers[-1][1]
