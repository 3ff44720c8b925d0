"""Horovod's rendezvous, at which the processes of a run find each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from escala.core.errors import Unavailable
from escala.runtime.placement import Node


@contextmanager
def served(
    nodes: Sequence[Node], places: Sequence[dict], here: str | None
) -> Iterator[dict[str, str]]:
    """Serve Horovod's rendezvous on one address; Horovod's own class listens on every address.

    Parameters
    ----------
    here : the address of this machine, None for that of the first node.

    Yields
    ------
    The variables by which processes find it.

    Raises
    ------
    Unavailable : Escala's own environment has no Horovod, as for programs alone.
    """
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
        from horovod.runner.util.threads import in_thread
    except ModuleNotFoundError:
        raise Unavailable(
            "its processes find each other by Horovod's server, and Escala's own environment has "
            "no Horovod. Remedy: use horovod-mpi, or own-launcher with horovodrun in the command, "
            "or install Escala in a clone of the project: uv sync"
        ) from None

    address, per_node = here or nodes[0].address, places[0]["processes_per_node"]
    hosts = parse_hosts(",".join(f"{node.host}:{per_node}" for node in nodes))
    server = RendezvousHTTPServer((address, 0), RendezvousHandler, False)
    server.init(get_host_assignments(hosts, len(places)))
    thread = in_thread(target=server.serve_forever)
    try:
        yield {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_address[1]),
            "HOROVOD_GLOO_IFACE": nodes[0].interface,
        }
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
