"""Horovod's rendezvous, by which the processes of a run find each other.

The rendezvous is a store of values by keys, in scopes, over HTTP. A process puts its address into
the store, and gets the addresses of other processes (`horovod/common/gloo/http_store.cc` and
`horovod/runner/http/http_server.py` of Horovod 0.28). Horovod's own server listens on every
address, and needs Horovod.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from escala.runtime.layout import Node

#: Seconds within which a process must send a request.
_REQUEST_SECONDS = 3


@contextmanager
def serve(
    nodes: Sequence[Node], places: Sequence[dict], here: str | None
) -> Iterator[dict[str, str]]:
    """Serve the rendezvous of the processes of a run on one address.

    Parameters
    ----------
    here : the address of this machine; None means the address of the first node.

    Yields
    ------
    The variables by which processes find the rendezvous.
    """
    address, per_node = here or nodes[0].address, places[0]["processes_per_node"]
    sizes = {"global": len(places)}
    sizes |= {f"local_{node.host}": per_node for node in nodes}
    sizes |= {f"cross_{number}": len(nodes) for number in range(per_node)}
    with _Store((address, 0), sizes) as store:
        thread = threading.Thread(target=store.serve_forever, daemon=True)
        thread.start()
        try:
            yield {
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(store.server_address[1]),
                "HOROVOD_GLOO_IFACE": nodes[0].interface,
            }
        finally:
            store.shutdown()
            thread.join()


class _Store(ThreadingHTTPServer):
    """A store of values by scope and key.

    Parameters
    ----------
    sizes : the number of processes in a scope, for scopes that Horovod's processes use together.
        When all processes have left such a scope, it is emptied.
    """

    def __init__(self, address: tuple[str, int], sizes: Mapping[str, int]):
        super().__init__(address, _Handler)
        self.lock, self._sizes = threading.Lock(), sizes
        self.values: dict[str, dict[str, bytes]] = defaultdict(dict)
        self._left: Counter[str] = Counter()

    def leave(self, scope: str, key: str) -> None:
        """Let a process leave a scope in `sizes`; in another scope, remove the key."""
        if scope not in self._sizes:
            self.values[scope].pop(key, None)
            return
        self._left[scope] += 1
        if self._left[scope] == self._sizes[scope]:
            del self._left[scope]
            self.values.pop(scope, None)


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS
    server: _Store

    def _answer(self) -> None:
        """Answer a request for `/SCOPE/KEY`."""
        if self.path.count("/") != 2:
            self._send(HTTPStatus.BAD_REQUEST)
            return
        _, scope, key = self.path.split("/")
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.lock:
            value: bytes | None = b""
            if self.command == "GET":
                value = self.server.values[scope].get(key)
            elif self.command == "PUT":
                self.server.values[scope][key] = content
            else:
                self.server.leave(scope, key)
        self._send(HTTPStatus.NOT_FOUND if value is None else HTTPStatus.OK, value or b"")

    do_GET = do_PUT = do_DELETE = _answer

    def _send(self, status: HTTPStatus, content: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Print nothing for each request."""
