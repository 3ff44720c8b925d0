"""The lab put up and taken down: nothing is left of it, and nothing else is touched."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from functools import partial

import psutil
import pytest

from escala.core.errors import InputError
from escala.lab import cluster, read_lab
from escala.lab.state import FOLDER, read_claim
from tests.cluster.conftest import lab_command, machine, output, run_lab
from tests.conftest import ROOT
from tests.programs import eventually

pytestmark = pytest.mark.cluster


def processes(command: str) -> list[int]:
    """Return the numbers of the processes of that command line, of a program on the PATH."""
    listed = output("ps", "-eo", "pid=,args=").splitlines()
    return [int(line.split()[0]) for line in listed if line.endswith(f"/{command}")]


@pytest.mark.sweep
def test_down_leaves_nothing_also_of_its_jobs(no_lab, bare_machine):
    cluster.up(2, 1)
    output("sbatch", "--nodes=2", "--output=/dev/null", "--wrap=srun sleep 98765")
    sleepers = partial(processes, "sleep 98765")
    assert eventually(sleepers)
    assert machine() != bare_machine
    for _ in range(2):
        assert run_lab("down").returncode == 0
        assert not sleepers()
        assert machine() == bare_machine
        assert read_lab() is None


@pytest.mark.sweep
def test_an_up_that_was_killed_is_named_and_taken_down(no_lab, bare_machine):
    process = subprocess.Popen(
        lab_command("up"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout.readline().startswith("network")
    process.kill()
    process.communicate(timeout=60)
    assert read_lab() is None and machine() != bare_machine
    refused = run_lab("up")
    assert refused.returncode == 2 and "down" in refused.stderr
    assert run_lab("down").returncode == 0
    assert machine() == bare_machine


@pytest.mark.sweep
def test_a_configuration_of_another_cluster_is_refused_and_kept(no_lab, bare_machine):
    cluster.CONFIGURATION.write_text("ClusterName=other\n")
    try:
        with pytest.raises(InputError, match="not the lab"):
            cluster.up(2, 1)
        cluster.down()
        assert cluster.CONFIGURATION.read_text() == "ClusterName=other\n"
    finally:
        cluster.CONFIGURATION.unlink()
    assert machine() == bare_machine


@pytest.fixture
def foreign() -> Iterator[contextlib.ExitStack]:
    """Remove, at the end, what a test made under the names of a lab."""
    with contextlib.ExitStack() as made:
        yield made


def links() -> set[str]:
    return set(psutil.net_if_stats())


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "name", "add", "remedy"),
    [
        ("interface", "escala", "ip link add escala type bridge", "ip link delete escala"),
        ("namespace", "escala-n1", "ip netns add escala-n1", "ip netns delete escala-n1"),
    ],
)
def test_a_foreign_network_of_a_labs_name_is_refused_and_kept(
    no_lab, foreign, kind, name, add, remedy
):
    output(*add.split())
    foreign.callback(output, *remedy.split())
    refused = run_lab("up")
    assert refused.returncode == 2
    assert f"'{name}': is a network {kind} that is not the lab's" in refused.stderr
    assert remedy in refused.stderr
    assert run_lab("down").returncode == 0
    assert name in {*links(), *output("ip", "netns", "list").split()}
    assert not FOLDER.exists()


@pytest.mark.sweep
def test_addresses_in_use_are_refused_and_others_serve(no_lab, foreign):
    """A proxy has the whole range that is set aside for benchmarks."""
    output("ip", "link", "add", "proxy0", "type", "bridge")
    foreign.callback(output, "ip", "link", "delete", "proxy0")
    output("ip", "address", "add", "198.18.0.1/15", "dev", "proxy0")
    output("ip", "link", "set", "proxy0", "up")
    refused = run_lab("up")
    assert refused.returncode == 2
    for said in ("in use on this machine", "proxy0", "--subnet"):
        assert said in refused.stderr
    done = run_lab("up", "--cores-per-node", "1", "--subnet", "10.198.18.0/24")
    assert done.returncode == 0, done.stderr
    assert sorted(output("srun", "--nodes=2", "hostname").split()) == ["n1", "n2"]
    assert [node.address for node in read_lab().nodes] == ["10.198.18.11", "10.198.18.12"]
    assert run_lab("down").returncode == 0
    assert "proxy0" in links()


@pytest.mark.sweep
@pytest.mark.usefixtures("cold")
def test_only_the_labs_own_processes_are_ended(no_lab, foreign):
    """A shell in which ESCALA_LAB is set calls `down`, and goes on."""
    cluster.up(2, 1)
    shell = subprocess.Popen(
        ["sh", "-c", '"$@"; echo "down: $?"', "sh", *lab_command("down")],
        cwd=ROOT,
        env=os.environ | {"ESCALA_LAB": read_claim().mark},
        stdout=subprocess.PIPE,
        text=True,
    )
    other = subprocess.Popen(["sleep", "600"], env={"ESCALA_LAB": "1"})
    foreign.callback(other.kill)
    said, _ = shell.communicate(timeout=120)
    assert shell.returncode == 0
    assert "down: 0" in said
    assert other.poll() is None
    assert read_lab() is None
