"""What can be told of the lab without putting it up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from escala.errors import InputError
from escala.lab import cluster, network
from scripts import lab
from tests.conftest import ROOT


def test_cores_are_divided_among_nodes():
    nodes = cluster.nodes_of(2, None, [0, 1, 2, 3])
    assert [node.cores for node in nodes] == [[0, 1], [2, 3]]
    assert [node.name for node in nodes] == ["n1", "n2"]
    assert nodes[0].address != nodes[1].address
    assert cluster.shared_cores(nodes) == []


def test_too_few_cores_are_dealt_in_turn():
    nodes = cluster.nodes_of(3, 1, [4, 6])
    assert [node.cores for node in nodes] == [[4], [6], [4]]
    assert cluster.shared_cores(nodes) == [4]


@pytest.mark.parametrize(("count", "cores"), [(0, None), (1000, None), (2, 3), (2, 0)])
def test_an_impossible_lab_is_refused(count, cores):
    with pytest.raises(InputError):
        cluster.nodes_of(count, cores, [0, 1])


def test_memory_is_divided_among_nodes():
    [whole] = cluster.nodes_of(1, None, [0])
    halves = cluster.nodes_of(2, None, [0])
    assert all(node.memory_mib == whole.memory_mib // 2 for node in halves)


@pytest.mark.parametrize(("rate", "bits"), [("10mbit", 10**7), ("1gbit", 10**9), ("5kbit", 5000)])
def test_rates(rate, bits):
    assert network.bits_per_second(rate) == bits


@pytest.mark.parametrize("rate", ["", "0mbit", "10", "10Mbit", "10mbit; reboot", "1.5gbit"])
def test_what_is_no_rate_is_refused(rate):
    with pytest.raises(InputError, match="10mbit"):
        network.bits_per_second(rate)


COMMANDS = ["up", "status", "down", "shape 1gbit", "measure", "cut n2", "mend n2", "stop-node n2"]


@pytest.mark.parametrize("command", [*COMMANDS, "start-node n2", "restart-scheduler"])
def test_whoever_is_not_root_is_told_so_by_every_command(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lab.py", *command.split()])
    monkeypatch.setattr(shutil, "which", lambda program: program)
    monkeypatch.setattr(cluster, "_has_pmix", lambda: True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="is not root"):
        lab.main()
    assert capsys.readouterr().out == ""


def test_what_a_machine_lacks_is_told_at_once_with_the_remedy():
    done = subprocess.run(
        [sys.executable, "-m", "scripts.lab", "up"],
        cwd=ROOT,
        env=os.environ | {"PATH": "/nonexistent"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "apt-get install" in line
    assert all(package in line for package in ("munge", "slurm-wlm", "iproute2", "iperf3"))
