"""What can be told of the lab without putting it up."""

from __future__ import annotations

import os
import shutil
import subprocess

import psutil
import pytest

from escala.command import parse
from escala.commands import lab
from escala.core.errors import InputError
from escala.lab import cluster, daemons, network, state
from tests.calls import python


def test_cores_are_divided_among_nodes_or_dealt_in_turn():
    nodes = cluster.nodes_of(2, None, [0, 1, 2, 3])
    assert [(node.name, node.cores) for node in nodes] == [("n1", [0, 1]), ("n2", [2, 3])]
    assert nodes[0].address != nodes[1].address
    assert cluster.shared_cores(nodes) == []
    few = cluster.nodes_of(3, 1, [4, 6])
    assert [node.cores for node in few] == [[4], [6], [4]]
    assert cluster.shared_cores(few) == [4]


def test_a_node_is_found_by_its_name():
    nodes = cluster.nodes_of(3, 1, [0])
    up = state.Lab(nodes, "198.18.0.254")
    assert [up.node(each.name) for each in nodes] == nodes
    with pytest.raises(InputError, match="name one of n1, n2, n3"):
        up.node("n4")


@pytest.mark.parametrize(("count", "cores"), [(0, None), (1000, None), (2, 3), (2, 0)])
def test_an_impossible_lab_is_refused(count, cores):
    with pytest.raises(InputError):
        cluster.nodes_of(count, cores, [0, 1])


@pytest.mark.parametrize("rate", ["", "10", "0mbit", "10mbit; reboot", "1.5gbit"])
def test_what_is_no_rate_is_refused(rate):
    with pytest.raises(InputError, match="10mbit"):
        network.bits_per_second(rate)


@pytest.mark.parametrize("subnet", ["10.1.2.0/16", "10.1.2.3/24", "fd00::/120", "all"])
def test_what_is_no_subnet_of_a_lab_is_refused(subnet):
    with pytest.raises(InputError, match="write it as 198"):
        network.address(1, subnet)


@pytest.mark.parametrize(
    ("destination", "taken"),
    [
        ("default", False),
        ("128.0.0.0/1", False),
        ("198.18.1.0/24", False),
        ("198.18.0.0/15", True),
        ("198.18.0.128/30", True),
        ("198.18.0.1", True),
    ],
)
def test_routes_to_the_addresses_of_a_lab_are_found(destination, taken):
    routes = [{"dst": "192.0.2.7", "type": "local"}, {"dst": destination, "dev": "tun0"}]
    found = network.overlapping("198.18.0.0/24", routes)
    assert (found is not None) == taken
    if taken:
        assert "tun0" in found


@pytest.fixture
def claimed(tmp_path, monkeypatch):
    """Let a test say what the lab has claimed."""
    monkeypatch.setattr(state, "_CLAIM", tmp_path / "claim.json")
    return state.keep_claim


def test_names_are_claimed_before_their_numbers_are_known_until_a_reboot(
    claimed, tmp_path, monkeypatch
):
    assert state.claim() == state.Claim("", {}, {}) and network.namespaces() == []
    claimed(state.Claim("m", {"escala": None}, {"escala-n1": 5}))
    kept = state.claim()
    assert kept.has_link("escala", 1) and kept.has_link("escala", 2)
    assert kept.has_namespace("escala-n1", 5) and not kept.has_namespace("escala-n1", 6)
    assert not kept.has_link("eth0", 1) and not kept.has_namespace("other", 5)
    monkeypatch.setattr(state, "_BOOT", tmp_path / "boot")
    (tmp_path / "boot").write_text("another\n")
    assert state.claim() == state.Claim("", {}, {})


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


def test_a_node_whose_namespace_was_deleted_has_the_processes_in_it(claimed, monkeypatch):
    own = psutil.Process()
    monkeypatch.setattr(daemons, "processes", lambda: [own])
    nodes = cluster.nodes_of(2, 1, [0, 1])
    assert not daemons.runs(nodes[0])
    claimed(state.Claim("m", {}, {nodes[0].link: daemons._network(own), nodes[1].link: 5}))
    assert network.namespaces() == []
    assert daemons._in_network(nodes[0]) == [own]
    assert daemons._in_network(nodes[1]) == []


@pytest.mark.parametrize("command", ["up", "cut n2"])
def test_whoever_is_not_root_is_told_so_by_every_command(command, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda program: program)
    monkeypatch.setattr(cluster.ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="is not root"):
        lab.run(parse(["lab", *command.split()])[1])
    assert capsys.readouterr().out == ""


def test_what_a_machine_lacks_is_told_at_once_with_the_remedy():
    done = python("-m", "escala.command", "lab", "up", variables={"PATH": "/nonexistent"})
    [line] = done.stderr.splitlines()
    assert done.returncode == 2 and "apt-get install" in line
    assert all(package in line for package in ("munge", "slurm-wlm", "iproute2", "iperf3"))
