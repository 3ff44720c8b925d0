"""Start the ranks of a run on their nodes, watch them, and end all of them when one fails."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from escala.core import children, interrupts
from escala.probes import of_run
from escala.record import diagnose
from escala.record.outcome import Outcome
from escala.runtime import launch
from escala.runtime.launch import Launch
from escala.strategies import STRATEGIES
from escala.strategies.base import RAW_TIMELINE

POLL_SECONDS = 0.1
SIGNAL_SECONDS = 0.5
#: Module that imports scikit-learn; a run loads it while its ranks load TensorFlow.
EVALUATION = "escala.record.evaluation"


def supervise(request: dict, plan: dict, started: Launch, folder: Path, limit: float) -> Outcome:
    """Start the ranks, echo rank 0's progress, and end all of them when one fails."""
    strategy = STRATEGIES[request["strategy"]]
    environment = launch.environment(request["strategy"], plan["knobs"], started)
    if plan["knobs"]["timeline"]:
        environment |= strategy.timeline_environment(folder / RAW_TIMELINE, negotiation=False)
    probe = of_run(plan, folder)
    if probe:
        environment |= probe.environment(strategy)
    command = [sys.executable, "-m", "escala.training.rank", str(folder / "request.json")]
    title = " ".join(
        filter(
            None,
            [
                request["workload"],
                request["strategy"],
                request["layout"],
                request["variant"],
                request["pair"],
                request["instrument"] or f"rep{request['repeat']}",
            ],
        )
    )
    deadline = time.monotonic() + limit
    progress = _Progress(folder / "rank0.log", title)
    with launch.started_by(started, strategy, plan["places"], command) as (arguments, added):
        if shutil.which(arguments[0]) is None:
            return Outcome("unavailable", f"{arguments[0]} is missing")
        launcher = children.start(arguments, environment | added, folder / "launcher.log")
        beside = [launcher]
        # This loads scikit-learn, while the ranks are busy loading TensorFlow.
        import_module(EVALUATION)
        try:
            if probe and probe.scope == "node":
                program = probe.program(started.nodes[0].interface)
                log = folder / f"{probe.name}.log"
                beside.append(launch.on_each_node(started, program, environment, log))
            while launcher.poll() is None:
                interrupts.end_if_received()
                if time.monotonic() > deadline:
                    reason = f"not finished after {limit:g} seconds{diagnose.tail(folder, 0)}"
                    return Outcome("timeout", reason)
                time.sleep(POLL_SECONDS)
                progress.show()
            code = launcher.poll()
            if code:
                # A signal to a whole job ends the ranks first and then reaches this process.
                time.sleep(SIGNAL_SECONDS)
        finally:
            children.stop(beside)
            launch.end_steps(started)
            progress.show()
    return diagnose.failure(code, folder) if code else Outcome("ok")


class _Progress:
    """Show rank 0's log messages on the terminal."""

    def __init__(self, log: Path, title: str):
        self._log, self._title, self._offset = log, title, 0

    def show(self) -> None:
        if not self._log.exists():
            return
        with open(self._log, "rb") as handle:
            handle.seek(self._offset)
            text = handle.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            _, marker, message = line.partition(" escala: ")
            if marker:
                with suppress(OSError):  # A closed terminal must not end the run.
                    print(f"[{self._title}] {message}", file=sys.stderr, flush=True)
