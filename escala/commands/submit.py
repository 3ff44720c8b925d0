"""Write the script of a SLURM job that measures an experiment, and submit it with --now.

All runs of the experiment are measured in one job, one after the other, on the same nodes. So both
sides of a ratio run on the same nodes, minutes apart, and you wait in the queue once.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
from pathlib import Path

from escala import submit
from escala.core import console, environment
from escala.core.arguments import Parser
from escala.core.console import say
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import write_text
from escala.experiment import Experiment, load
from escala.measure import estimate
from escala.measure.plan import plan_session
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


def add(parser: Parser) -> None:
    parser.usage = "escala submit [FILE] [OPTION …] [-- SNAKEMAKE …]"
    parser.set_defaults(extra=[])
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help="file of the experiment; default: config.yaml"
    )
    text = "the same file, as for escala run"
    parser.add_argument("-e", "--experiment", dest="named", metavar="FILE", help=text)
    parser.add_argument("--now", action="store_true", help="submit the job, too")
    text = "with --now: wait until the job has ended, and end with its exit code"
    parser.add_argument("--wait", action="store_true", help=text)
    parser.add_argument(
        "--time", metavar="HH:MM:SS", help="limit of the job; default: the estimate with a margin"
    )
    text = "a line of the shell before the runs, such as 'module load gcc'; may be repeated"
    parser.add_argument("--setup", metavar="LINE", action="append", default=[], help=text)
    for name, what in submit.OPTIONS.items():
        parser.add_argument(f"--{name}", metavar="NAME", help=f"for sbatch: {what}")
    parser.add_argument(
        "--output", metavar="FILE", help="file to write; default: results/NAME/job.sh"
    )


def run(arguments: argparse.Namespace) -> int:
    named = arguments.file or arguments.named
    options = {name: value for name in submit.OPTIONS if (value := getattr(arguments, name))}
    if arguments.wait and not arguments.now:
        raise InputError("--wait", None, "is for a job that --now submits", "add --now")
    submit.require_plain(options, arguments.time)
    snakemake = call_of_file(named, arguments.extra)  # It refuses a file that is missing.
    e = load(workflow.find_file(named) if named else "config.yaml")
    if arguments.now and submit.left(e) and (lacking := submit.unprepared(e)):
        reason = "is not prepared, and the nodes of the job would wait for that"
        remedy = f"first {call('run prepare', *_option(named))}"
        raise InputError("--now", lacking[0], reason, remedy)
    number = write_and_submit(e, named, snakemake, options, arguments)
    if arguments.wait:
        return _wait(number, Path(submit.log_folder(e), f"job-{number}.log"))
    return console.DONE


def _wait(number: str, log: Path) -> int:
    """Wait for a job, say how it ended, and return its exit code."""
    say(f"Waiting for the end of job {number}. Ctrl-C cancels the job")
    code = slurm.wait(number)
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    last = next((line for line in reversed(lines) if line.strip()), "nothing")
    say(f"Job {number} ended with exit code {code}" + f"; its last line: {last}" * bool(code))
    return code


def _option(file: str | None) -> list[str]:
    return ["-e", file] if file else []


def call_of_file(file: str | None, extra: list[str]) -> list[str]:
    """Return the call of Snakemake inside the job."""
    arguments = argparse.Namespace(experiment=file, extra=extra)
    return workflow.call_of(arguments, ["runs", "--cores", "all"])


def write_and_submit(
    e: Experiment,
    file: str | None,
    snakemake: list[str],
    options: dict[str, str],
    arguments: argparse.Namespace,
) -> str | None:
    """Write and print the script of a job, submit it if asked to, and say what comes next.

    Returns
    -------
    SLURM's number of the job, None if it is not submitted.
    """
    option = _option(file)
    prepare, report = (call(f"run {target}", *option) for target in ("prepare", "report"))
    if not (runs := submit.left(e)):
        remedy = f"report them: {report}; to repeat failed ones: {call(f'retry results/{e.name}')}"
        raise InputError("FILE", e.origin, "all its runs are measured", remedy)
    shape = estimate.shape([planned.run for planned in plan_session(e).runs])
    time = estimate.time_of(runs)
    limit = arguments.time or submit.clock(time.minutes)
    why = "as --time says" if arguments.time else time.why
    text = submit.script(e, shape, limit, options, arguments.setup, snakemake)
    environment.claim_results(Path("results", e.name))
    Path(submit.log_folder(e)).mkdir(parents=True, exist_ok=True)
    path = arguments.output or f"results/{e.name}/job.sh"
    write_text(path, text)
    print(text, end="", flush=True)
    say(f"Written: {path}, for {submit.sentence(runs, shape, limit, why)}")
    if arguments.now:
        number = submit.submit(path)
        say(f"Submitted: job {number}. Its output: {submit.log_folder(e)}/job-{number}.log")
        say(f"Next, also while it runs: {report}")
        return number
    where = "" if shutil.which("sbatch") else "on the login node of a cluster: "
    where += f"{prepare}; " * bool(submit.unprepared(e))
    say(f"Next: {where}sbatch {shlex.quote(path)}; {report}")
    return None
