"""Place the ranks of a run on nodes, start and watch them, and end everything that was started.

The links and transports between the nodes are set and checked here too. Open MPI selects a
component of its framework `pml`: `ucx`, which uses InfiniBand and other RDMA whatever the
interface, `cm`, or `ob1`. With `ob1` a component of `btl` carries the messages to each node, such
as `tcp`. `escala.runtime.mpi.transport` lets it log both.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from escala import engines
from escala.core import children, interrupts
from escala.core.errors import InputError
from escala.core.hardware import hardware_threads, quota_clause
from escala.engines import environments
from escala.probes import probe_of_plan
from escala.programs.copy import COPY
from escala.programs.program import Program
from escala.record import diagnose
from escala.record.schema import Outcome
from escala.runtime import asking, launch, mpi, slurm
from escala.runtime.layout import Launch, places
from escala.strategies import STRATEGIES
from escala.strategies.base import RAW_TIMELINE
from escala.training.process import Plan


class Links(Protocol):
    """Controls the links between emulated nodes, which share one machine."""

    def shape(self, rate: str) -> None:
        """Set the rate of every link, such as `100mbit` or `native`."""

    def measure(self, source: str, target: str) -> dict[str, float]:
        """Return `mbit_per_second` and `latency_ms` from one node to another."""


def place_ranks(request: dict, plan: Plan, links: Links | None) -> tuple[Launch, dict]:
    """Find the nodes of a run, and write the place of every process into its plan.

    Parameters
    ----------
    request : also with `nodes`, the names of the nodes to use; empty to let the launcher select.
    links : controller of the links between nodes, None where they are real.

    Returns
    -------
    The launcher and the nodes, and `ranks` of the run.json.

    Raises
    ------
    InputError : there are fewer nodes or cores than the layout needs.
    """
    layout, strategy = request["layout"], STRATEGIES[request["strategy"]]
    per_process = plan["knobs"]["cores_per_process"]
    choice = launch.survey(
        layout, strategy, request["link"]["interface"], request["launcher"], request["nodes"]
    )
    fewest = min(choice.nodes, key=lambda node: len(node.cores))
    needed, available = layout.processes * per_process, len(fewest.cores)
    if needed > available and not request["oversubscribe"]:
        raise InputError(
            "layout",
            request["layout"],
            f"needs {needed} cores on each node, and {available} are available"
            f"{quota_clause(fewest.machine.get('cpu_quota'))}",
            "ask for fewer processes or set oversubscribe: true",
        )
    if "start" in plan:
        plan["start"]["interface"] = choice.nodes[0].interface
    plan["places"] = places(layout, strategy, plan["knobs"], choice.nodes)
    # Nodes of the lab are parts of one machine, and may have a physical core in common.
    taken = [{min(hardware_threads(core)) for core in node.cores} for node in choice.nodes]
    are_shared = len(set().union(*taken)) < sum(map(len, taken))
    ranks = {
        "launcher": choice.launcher,
        "hosts": [node.host for node in choice.nodes],
        "machines": [node.machine for node in choice.nodes],
        "interface": choice.nodes[0].interface,
        "oversubscribed": needed > available or (links is not None and are_shared),
        # The lab may be up beside runs that do not use it.
        "emulated": links is not None and slurm.job_number() is not None,
        "cores": [place["cores"] for place in plan["places"]],
    }
    if strategy.meets_by == "mpi" and layout.processes > 1:
        ranks["single_copy"] = launch.single_copy(choice.nodes)
    return choice, {"ranks": ranks}


def experiment_folder(request: dict, folder: Path) -> Path:
    """Return the folder of the experiment of a run; outside of one, the folder of the run."""
    return next((path for path in folder.parents if path.name == request["experiment"]), folder)


def set_links(request: dict, choice: Launch, links: Links | None, folder: Path) -> Outcome:
    """Set the links between nodes to the requested rate, and measure one of them.

    Real links are measured once in a job, by TCP, and not if the network uses UCX.

    Parameters
    ----------
    folder : the folder of the run, inside the folder of its experiment.
    """
    rate, hosts = request["link"]["rate"], [node.host for node in choice.nodes]
    if len(hosts) == 1:
        return Outcome("ok")
    if rate and links is None:
        return Outcome(
            "unavailable",
            f"the rate {rate} can be set only on the links of the lab; see docs/how-to/lab.md",
        )
    link = request["link"] | {"mbit_per_second": None, "latency_ms": None}
    if links is not None:
        links.shape(rate or "native")
        link |= links.measure(hosts[0], hosts[1])
    elif choice.job and request["link"].get("transport") != "ucx":
        name = f"link-{choice.job}-{choice.nodes[0].interface}.json"
        known = experiment_folder(request, folder) / "logs" / name
        link |= asking.measure_link(choice, known) | {"measured_by": asking.LINK_MEASURED_BY}
    return Outcome("ok", measured={"link": link})


_PML = re.compile(r"^\[\S+:\d+\] select: component (\w+) selected$", re.MULTILINE)
_BTL = re.compile(
    r"^\[(\S+):\d+\] mca: bml: Using (\w+) btl for send to \S+ on node (\S+)$", re.MULTILINE
)
#: The component of `pml` of each transport, and the components of `btl` between nodes.
_COMPONENTS = {"tcp": ("ob1", {"tcp"}), "ucx": ("ucx", set())}


def check_transport(request: dict, folder: Path, interface: str | None) -> Outcome:
    """Read by which transport MPI ranks exchanged; fail if the network names another one.

    Parameters
    ----------
    folder : the ranks' folder, with their logs.
    interface : of the ranks, unless UCX chooses it.
    """
    transport = request["link"].get("transport")
    if STRATEGIES[request["strategy"]].meets_by != "mpi":
        return Outcome("ok")
    pml, between = read_transport(folder)
    ranks = {}
    if pml is not None:
        obeyed = transport == "ucx" or between == {"tcp"}
        # UCX takes the interface that the experiment names, if any.
        interface = request["link"]["interface"] if transport == "ucx" else interface
        ranks["transport"] = {
            "pml": pml,
            "btl": sorted(between) if pml == "ob1" else None,
            "interface": interface if obeyed else None,
        }
    ok = Outcome("ok", measured={"ranks": ranks})
    if transport is None:
        return ok
    wanted, carriers = _COMPONENTS[transport]
    if pml == wanted and between <= carriers:
        return ok
    chosen = "Open MPI said nothing of its choice" if pml is None else f"Open MPI chose pml {pml}"
    by = f", btl {', '.join(sorted(between))} between nodes" if between else ""
    remedy = f"see `escala check` in a job; leave networks.{request['network']}.transport out"
    reason = f"transport {transport} was asked for, and {chosen}{by}. Remedy: {remedy}"
    return replace(ok, status="failed", reason=reason)


def read_transport(folder: Path) -> tuple[str | None, set[str]]:
    """Return the component of `pml`, and those of `btl` that carried messages between nodes.

    If ranks have several components of `pml`, they are joined by commas. None: no log names one.
    """
    selected, between = set(), set()
    for log in sorted(folder.glob("rank*.log")):
        text = log.read_text(encoding="utf-8", errors="replace")
        selected |= set(_PML.findall(text))
        between |= {btl for here, btl, there in _BTL.findall(text) if here != there}
    return ", ".join(sorted(selected)) or None, between


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
    why_end: Callable[[], str | None],
) -> Outcome:
    """Run the ranks to their end, show rank 0's progress, and end every process that was started.

    Parameters
    ----------
    plan : the run's knobs, and the place of each process.
    choice : the launcher and the nodes.
    folder : the ranks' folder, which holds `plan.json` and gets the logs.
    why_end : returns why the run must end, or None if the run may go on.

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
                if why := why_end():
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
