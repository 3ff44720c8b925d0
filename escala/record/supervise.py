"""Start the ranks of a run on their nodes, watch them, and end everything that was started."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from escala import engines
from escala.core import children, interrupts
from escala.engines import environments
from escala.probes import probe_of_plan
from escala.programs.copy import COPY
from escala.programs.program import Program
from escala.record import diagnose
from escala.record.schema import Outcome
from escala.runtime import launch, mpi
from escala.runtime.layout import Launch
from escala.strategies import STRATEGIES
from escala.strategies.base import RAW_TIMELINE
from escala.training.process import Plan

POLL_SECONDS = 0.1
#: Seconds between two looks at whether processes of the run are stopped.
_LOOK_SECONDS = 0.5
#: A sleep of this process that lasts longer than this shows that this process was stopped, too.
_LATE_SECONDS = 2.0
#: A signal to a whole job reaches this process at most this many seconds after the ranks.
SIGNAL_DELAY_SECONDS = 0.5


def supervise(
    request: dict,
    plan: Plan,
    choice: Launch,
    folder: Path,
    limit_seconds: float,
    refused: Callable[[], str | None],
) -> Outcome:
    """Run the ranks to their end, show rank 0's progress, and end every process that was started.

    Parameters
    ----------
    plan : the run's knobs, and the place of each process.
    choice : the launcher and the nodes.
    folder : the ranks' folder, which holds `plan.json` and gets the logs.
    refused : returns why the run must end, or None if the run may go on.

    Returns
    -------
    The outcome: `ok`, with the seconds for which processes stood still; `timeout` after
    `limit_seconds`; `unavailable` if the launcher's program is missing; otherwise the status of the
    rank that failed first.
    """
    strategy = STRATEGIES[request["strategy"]]
    python = engines.interpreter(plan["engine"])
    program = Program.from_plan(plan["start"]["program"]) if "start" in plan else None
    environment = launch.environment(request["strategy"], plan["knobs"], choice, program)
    if strategy.meets_by == "mpi" and len(choice.nodes) > 1:
        link = request["link"]
        environment |= mpi.transport(link.get("transport"), link["interface"])
    if plan["knobs"]["timeline"]:
        environment |= strategy.timeline_environment(folder / RAW_TIMELINE, negotiation=False)
    probe = probe_of_plan(plan, folder)
    if probe:
        environment |= probe.environment(strategy)
    command = [python, "-m", "escala.training.rank", str(folder / "plan.json")]
    deadline, kills = time.monotonic() + limit_seconds, diagnose.memory_kills()
    progress = _Progress(folder / "rank0.log", request)
    launched = launch.command_line(choice, strategy, plan["places"], command, program)
    with launched as (arguments, extra_environment):
        if shutil.which(arguments[0]) is None:
            return _unavailable(arguments[0], program)
        started = []
        try:
            variables = environments.variables(python, environment | extra_environment)
            launcher = children.start(arguments, variables, folder / "launcher.log")
            started.append(launcher)
            if probe and probe.program:
                sampler = probe.program(choice.nodes[0].interface)
                log = folder / f"{probe.name}.log"
                started.append(launch.start_on_nodes(choice, sampler, environment, log))
            stops = _Stops(launcher.pid)
            while launcher.poll() is None:
                interrupts.end_if_received()
                if time.monotonic() > deadline:
                    return diagnose.timeout(limit_seconds, folder, plan)
                if why := refused():
                    return Outcome("failed", why)
                stops.wait()
                progress.show()
            if code := launcher.poll():
                # If a signal to the whole job ended the ranks, this process gets it too, perhaps
                # later. Wait for it: the run is then interrupted, not failed.
                time.sleep(SIGNAL_DELAY_SECONDS)
        finally:
            children.stop(started)
            launch.end_job_step(choice)
            progress.show()
    if code:
        return diagnose.failure(code, folder, kills)
    return Outcome("ok", stopped_seconds=stops.seconds)


def _unavailable(launcher: str, program: Program | None) -> Outcome:
    remedy = "`uv sync --reinstall` installs Escala's own programs again"
    if program:
        remedy = "let the program's environment, or PATH, have the mpirun of an Open MPI"
    return Outcome("unavailable", f"{launcher} is missing. Remedy: {remedy}")


class _Stops:
    """The seconds for which a process of a run was stopped, as by SIGSTOP or with its whole job."""

    def __init__(self, root: int):
        self._root, self._looked, self.seconds = root, time.monotonic(), 0.0

    def wait(self) -> None:
        before = time.monotonic()
        time.sleep(POLL_SECONDS)
        now = time.monotonic()
        if now - before > _LATE_SECONDS:
            self.seconds += now - before
        elif now - self._looked < _LOOK_SECONDS:
            return
        elif "T" in children.states(self._root):
            self.seconds += now - self._looked
        self._looked = now


class _Progress:
    """Show rank 0's log messages on the terminal."""

    def __init__(self, log: Path, request: dict):
        names = [request[name] for name in ("workload", "strategy", "layout", "variant", "series")]
        last = request["instrument"] or f"rep{request['repeat']}"
        self._log, self._title, self._offset = log, " ".join(filter(None, [*names, last])), 0
        self._copy = str((log.parent / COPY).resolve())

    def show(self) -> None:
        if not self._log.exists():
            return
        with open(self._log, "rb") as handle:
            handle.seek(self._offset)
            text = handle.read()
        complete_lines = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete_lines)
        for line in complete_lines.decode(errors="replace").splitlines():
            _, marker, message = line.partition(" escala: ")
            if marker:
                message = message.replace(f" in {self._copy}", " in a copy of ")
                with suppress(OSError):  # A closed terminal must not end the run.
                    print(f"[{self._title}] {message}\n", end="", file=sys.stderr, flush=True)
