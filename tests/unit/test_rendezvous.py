"""Horovod's rendezvous: values by keys, which are gone when all processes have left."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest

from escala.engines.tensorflow.rendezvous import served
from escala.runtime.node import LOOPBACK, describe


@pytest.fixture
def connection() -> Iterator[http.client.HTTPConnection]:
    """A connection to the rendezvous of two processes of one node."""
    places = [{"processes_per_node": 2}] * 2
    with served([describe(LOOPBACK, 1)], places, None) as variables:
        address = variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
        assert address == "127.0.0.1"
        port = int(variables["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        yield http.client.HTTPConnection(address, port, timeout=10)


def asked(connection, method: str, path: str, content: bytes | None = None) -> tuple[int, bytes]:
    connection.request(method, path, content)
    response = connection.getresponse()
    return response.status, response.read()


def test_a_value_is_there_for_all_once_it_is_put(connection):
    assert asked(connection, "GET", "/global/0") == (404, b"")
    assert asked(connection, "PUT", "/global/0", b"\0address") == (200, b"")
    assert asked(connection, "GET", "/global/0") == (200, b"\0address")
    assert asked(connection, "GET", "/cross_0/0") == (404, b"")
    assert asked(connection, "GET", "/global")[0] == 400


def test_a_scope_is_empty_once_all_its_processes_have_left(connection):
    for scope, sizes in {"global": 2, "cross_0": 1, "set": 1}.items():
        asked(connection, "PUT", f"/{scope}/1", b"a")
        for left in range(sizes):
            assert asked(connection, "GET", f"/{scope}/1") == (200, b"a"), left
            asked(connection, "DELETE", f"/{scope}/1")
        assert asked(connection, "GET", f"/{scope}/1")[0] == 404
