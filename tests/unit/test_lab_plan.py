"""What can be told of the lab without putting it up."""

from __future__ import annotations

import subprocess

import psutil
import pytest

from escala.core.errors import InputError
from escala.lab import cluster, daemons, network, state


def test_cores_are_divided_among_nodes_or_dealt_in_turn():
    nodes = cluster.plan_nodes(2, None, [0, 1, 2, 3])
    assert [(node.name, node.cores) for node in nodes] == [("n1", [0, 1]), ("n2", [2, 3])]
    assert nodes[0].address != nodes[1].address
    assert cluster.shared_cores(nodes) == []
    assert len(cluster.plan_nodes(1, None, [0])) == 1
    few = cluster.plan_nodes(3, 1, [4, 6])
    assert [node.cores for node in few] == [[4], [6], [4]]
    assert cluster.shared_cores(few) == [4]
    up = state.Lab(few, "198.18.0.254")
    assert [up.node(node.name) for node in few] == few
    for refused, value, reason in (
        (up.node, ("n4",), "name one of n1, n2, n3"),
        *(
            (cluster.plan_nodes, lab, r"\d")
            for lab in ((0, None, [0]), (1000, None, [0]), (2, 0, [0]))
        ),
        *((network.bits_per_second, (rate,), "10mbit") for rate in ("", "10", "0mbit", "1mbit; x")),
        *((network.address, (1, subnet), "write it as 198") for subnet in ("10.1.2.3/24", "all")),
    ):
        with pytest.raises(InputError, match=reason):
            refused(*value)


@pytest.mark.parametrize(
    ("destination", "taken"),
    [
        ("default", False),
        ("198.18.1.0/24", False),
        ("198.18.0.0/15", True),
        ("198.0.0.0/8", True),
        ("198.18.0.128/30", True),
    ],
)
def test_routes_to_the_addresses_of_a_lab_are_found(destination, taken):
    routes = [{"dst": "192.0.2.7", "type": "local"}, {"dst": destination, "dev": "tun0"}]
    found = network.find_overlap("198.18.0.0/24", routes)
    assert (found is not None) == taken
    if taken:
        assert "tun0" in found


@pytest.fixture
def claimed(tmp_path, monkeypatch):
    """Let a test say what the lab has claimed."""
    monkeypatch.setattr(state, "_CLAIM", tmp_path / "claim.json")
    return state.write_claim


def test_names_are_claimed_before_their_numbers_are_known_until_a_reboot(
    claimed, tmp_path, monkeypatch
):
    assert state.read_claim() == state.Claim("", {}, {}) and network.namespaces() == []
    claimed(state.Claim("m", {"escala": None}, {"escala-n1": 5}))
    kept = state.read_claim()
    assert kept.has_link("escala", 1) and kept.has_link("escala", 2)
    assert kept.has_namespace("escala-n1", 5) and not kept.has_namespace("escala-n1", 6)
    assert not kept.has_link("eth0", 1) and not kept.has_namespace("other", 5)
    monkeypatch.setattr(state, "_BOOT", tmp_path / "boot")
    (tmp_path / "boot").write_text("another\n")
    assert state.read_claim() == state.Claim("", {}, {})


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.usefixtures("sleeper")
def test_nobody_is_ended_for_the_network_that_the_caller_is_in(claimed, tmp_path, monkeypatch):
    """A namespace of a node's name may stand for the machine's own network."""
    (tmp_path / "escala-n1").symlink_to("/proc/self/ns/net")
    monkeypatch.setattr(network, "_NAMESPACES", tmp_path)
    claimed(state.Claim("mark of this lab", {}, {"escala-n1": None}))
    assert [path.name for path in network.namespaces()] == ["escala-n1"]
    assert [process.pid for process in daemons.processes()] == []


@pytest.mark.timeout(60)
def test_processes_that_do_not_end_are_named_after_a_while(monkeypatch, sleeper):
    monkeypatch.setattr(daemons, "processes", lambda: [psutil.Process(sleeper.pid)])
    monkeypatch.setattr(daemons, "_end", lambda found: None)
    monkeypatch.setattr(daemons, "DOWN_SECONDS", 0.1)
    with pytest.raises(TimeoutError, match=rf"{sleeper.pid} \(sleep\)"):
        daemons.stop_all()
