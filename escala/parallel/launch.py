"""How ranks are started: plainly, by `mpirun`, or by Horovod's Gloo rendezvous.

A launcher is a context manager that yields the processes to start, each a command and its
environment. What it needs while they run (a rendezvous server) lives as long as the context.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from escala.parallel.layout import Layout
from escala.parallel.strategies import STRATEGIES

#: On one node ranks talk over loopback alone.
LOOPBACK, LOOPBACK_ADDRESS = "lo", "127.0.0.1"

#: Of the environment, whatever else is on the PATH.
MPIRUN = "mpirun"

Command = list[str]
Environment = dict[str, str]
Launcher = Callable[
    [Command, Layout, Environment], AbstractContextManager[list[tuple[Command, Environment]]]
]

# What another MPI job, SLURM or the user's shell may have left that would steer these ranks.
_FOREIGN = ("HOROVOD_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "TF_CONFIG", "OMP_")


def launcher(strategy: str) -> Launcher:
    """Return the launcher of a strategy."""
    return _LAUNCHERS[STRATEGIES[strategy].launcher]


def rank_of_environment() -> int:
    """Return the number of this rank, as its launcher has told it."""
    for name in ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK"):
        if name in os.environ:
            return int(os.environ[name])
    return 0


def environment(strategy: str, knobs: dict) -> Environment:
    """Return the environment of every rank: this one's, cleaned, with what the libraries need."""
    prefix = Path(sys.prefix)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    libraries = [str(prefix / "lib"), *filter(None, [inherited.get("LD_LIBRARY_PATH")])]
    return (
        inherited
        | {
            # Horovod is linked with the environment's own Open MPI, which is installed elsewhere
            # than it was built for; a system MPI must not take its place.
            "LD_LIBRARY_PATH": ":".join(libraries),
            "OPAL_PREFIX": str(prefix),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMP_NUM_THREADS": str(knobs["threads"]["intra_op"]),
            "TF_CPP_MIN_LOG_LEVEL": inherited.get("TF_CPP_MIN_LOG_LEVEL", "2"),
        }
        | STRATEGIES[strategy].environment(knobs)
    )


@contextmanager
def _plain(command: Command, layout: Layout, environment: Environment) -> Iterator[list]:
    yield [(command, environment)]


@contextmanager
def _mpirun(command: Command, layout: Layout, environment: Environment) -> Iterator[list]:
    options = {
        "-np": [str(layout.ranks)],
        "--host": [f"localhost:{layout.ranks}"],
        # Each rank binds itself to the cores of the request.
        "--bind-to": ["none"],
        # The ranks of one node exchange through shared memory, so no transport listens on a port.
        "--mca btl": ["self,vader"],
        "--mca oob_tcp_if_include": [LOOPBACK],
    }
    arguments = [word for key, values in options.items() for word in [*key.split(), *values]]
    yield [([str(Path(sys.prefix) / "bin" / MPIRUN), *arguments, *command], environment)]


@contextmanager
def _gloo(command: Command, layout: Layout, environment: Environment) -> Iterator[list]:
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.gloo_run import create_slot_env_vars

    hosts = parse_hosts(f"localhost:{layout.processes}")
    slots = get_host_assignments(hosts, layout.ranks)
    with _rendezvous(slots) as port:
        shared = environment | {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": LOOPBACK_ADDRESS,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_GLOO_IFACE": LOOPBACK,
        }
        yield [(command, shared | create_slot_env_vars(slot)) for slot in slots]


@contextmanager
def _rendezvous(slots: list) -> Iterator[int]:
    """Serve Horovod's rendezvous on loopback; its own class would listen on every address."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    from horovod.runner.util.threads import in_thread

    server = RendezvousHTTPServer((LOOPBACK_ADDRESS, 0), RendezvousHandler, False)
    server.init(slots)
    thread = in_thread(target=server.serve_forever)
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


_LAUNCHERS: dict[str, Launcher] = {"plain": _plain, "mpirun": _mpirun, "gloo": _gloo}
