"""Measure the incomplete runs of a plan, in one process that has the machine to itself.

The workflow writes a plan, .escala/plans/NAME/session/plan.json: the runs of an experiment in their
drawn order. Complete runs are left out. Other runs are measured together with the runs that they
are compared with, repeat after repeat. If Ctrl-C, a failure or the end of a job ended an earlier
call, the same call continues there.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from escala import lab
from escala.analysis.looks import level_of
from escala.core import console
from escala.core.arguments import Parser
from escala.core.children import die_with_parent
from escala.core.environment import SESSION_VARIABLE, call, session
from escala.core.errors import InputError
from escala.core.files import write_json, write_text
from escala.experiment import Run
from escala.measure import lost, table
from escala.measure.allocated import Allocated
from escala.measure.plan import Plan, PlannedRun, looks_file, no_time_file, until_stop
from escala.measure.session import Session
from escala.report.progress import Progress, find_comparisons, why_decided
from escala.runtime import allocation

EXAMPLES = """\
examples:
  escala measure .escala/plans/demo/session/plan.json
  srun --ntasks=1 escala measure .escala/plans/demo/session/plan.json    inside a job of SLURM
"""


def add(parser: Parser) -> None:
    text = "file of the plan, .escala/plans/NAME/session/plan.json"
    parser.add_argument("plan", type=Path, help=text)
    text = "measure nothing: record the runs whose session was killed, as the next session does"
    parser.add_argument("--lost", action="store_true", help=text)
    text = "measure nothing: write the table of the runs that are there"
    parser.add_argument("--table", action="store_true", help=text)
    # The workflow uses this option: the session is that of the call that started this process.
    parser.add_argument("--in-call", action="store_true", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    if not arguments.plan.is_file():
        remedy = f"name .escala/plans/NAME/session/plan.json, which {call('run')} writes"
        raise InputError("plan", str(arguments.plan), "no such file", remedy)
    if arguments.in_call:
        # Ranks must not go on after Snakemake was killed: the next call would start further ranks
        # beside them.
        die_with_parent()
    plan, session_of_call = Plan.read(arguments.plan), session()
    if arguments.lost:
        lost.record(plan.runs, write_lost)
        return console.DONE
    if arguments.table:
        write_text(plan.table, table.text(until_stop(plan)))
        return console.DONE
    if arguments.in_call:
        console.join_call()
    if number := allocation.job_number():
        # Each job of a call is a session of its own: their nodes may differ, so runs of two jobs
        # form no paired run.
        os.environ[SESSION_VARIABLE] = f"{session_of_call}-{number}"
    allocated = Allocated(number)
    allocated.require(planned.run for planned in plan.runs)

    progress = Progress(level=level_of(plan.sequential))

    def measure_run(planned: PlannedRun, output: Path) -> Any:
        from escala.record.run import measure

        progress.begin(planned.run)
        return measure(
            planned.request,
            Path(planned.data),
            output,
            planned.seconds,
            turn=planned.turn,
            # The lab has SLURM. Hosts of another scheduler are none of its nodes.
            links=lab.links() if allocation.by_slurm() else None,
            nodes=allocated.nodes_of(planned.run),
        )

    looks: list[dict] = []
    threshold = plan.sequential["threshold"] if plan.sequential else None

    def look(repeats: int, runs: list[Run], why: str | None) -> str | None:
        """Record what is decided. Return why the session stops; `why` if it stops in any case."""
        compared = find_comparisons(runs, plan.references, threshold)
        ended = why_decided(compared, threshold) or why
        is_final = ended not in (None, why)
        about = {"repeats": repeats, "ended": ended, "threshold": threshold}
        about["goes_on"] = not is_final and repeats < plan.sequential["at_most"]
        looks.extend(about | row for row in compared)
        content = {"repeats": repeats, "is_final": is_final, "threshold": threshold}
        write_json(looks_file(plan.experiment), content | {"looks": looks})
        return ended

    code = Session(
        plan,
        measure_run,
        write_lost,
        lack_of_time=allocated.lack_of_time,
        remedy=lambda: allocated.remedy,
        look=look,
        tell=progress.tell,
        job=allocated.job,
    ).measure()
    if code == console.NO_TIME:
        write_text(no_time_file(plan.experiment), session_of_call)
    return code


def write_lost(planned: PlannedRun, status: str, reason: str) -> None:
    """Write the `run.json` of a run that ended with its session."""
    from escala.record import run

    output = Path(planned.file)
    run.write_lost(planned.request, Path(planned.data), output, status, reason, turn=planned.turn)
