"""The lab while it is up: a real SLURM and real networks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from escala.lab import daemons, location, network
from escala.lab.network import measure, shape
from escala.lab.state import FOLDER
from tests.cluster.conftest import output, run_lab
from tests.programs import eventually

pytestmark = pytest.mark.cluster


def in_job(*command: str) -> list[str]:
    """Run a command on n1, in a job, and return the lines it printed."""
    return output("srun", "--nodelist=n1", "--ntasks=1", *command).splitlines()


def state(node: str) -> str:
    return output("sinfo", "--noheader", f"--nodes={node}", "--format=%t").strip()


@pytest.mark.sweep
def test_a_connection_that_is_closed_ends_no_daemon_and_still_ends_a_program_of_a_job(lab):
    def ignored(status: str) -> bool:
        [line] = [line for line in status.splitlines() if line.startswith("SigIgn")]
        return bool(int(line.split()[1], 16) >> (signal.SIGPIPE - 1) & 1)

    started = [each.pid for each in daemons.processes() if each.name() == "slurmd"]
    assert len(started) == len(lab.nodes)
    assert all(ignored(Path(f"/proc/{pid}/status").read_text()) for pid in started)
    assert not ignored("\n".join(in_job("cat", "/proc/self/status")))


def test_nodes_are_idle_and_have_their_own_address_and_cores(lab):
    assert eventually(lambda: {state("n1"), state("n2")} == {"idle"})
    ask = (
        "import os, psutil, json;"
        "print(json.dumps([psutil.net_if_addrs()['eth0'][0].address, *os.sched_getaffinity(0)]))"
    )
    said = output("srun", "--nodes=2", "--label", sys.executable, "-c", ask)
    found = sorted(json.loads(line.partition(": ")[2]) for line in said.splitlines())
    assert found == [[node.address, *node.cores] for node in lab.nodes]
    assert not set(lab.nodes[0].cores) & set(lab.nodes[1].cores)


def test_a_job_reaches_the_other_node_by_name_over_its_link(lab):
    ping = ["sh", "-c", "ping -c 1 -W 2 -I eth0 n2 >/dev/null; echo $?"]
    assert in_job(*ping) == ["0"]
    network.cut("n2")
    try:
        assert in_job(*ping) == ["1"]
        assert "cut" in run_lab("status").stdout
        with pytest.raises(OSError, match="100% packet loss"):
            measure("n1", "n2", seconds=1)
    finally:
        network.mend("n2")
    assert measure("n1", "n2", seconds=1)["latency_ms"] > 0


@pytest.mark.sweep
def test_connections_between_nodes_control_congestion_as_linux_does_by_default(lab):
    # To the other node's slurmd.
    connect = "import socket; ends = socket.create_connection(('{}', 6818))"
    ask = f"{connect}; print(ends.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 9))"
    sender, receiver = lab.nodes
    said = output(*network.inside(sender), sys.executable, "-c", ask.format(receiver.address))
    assert said.strip() == repr(b"cubic\0\0\0\0")


@pytest.mark.sweep
def test_what_tcp_learnt_of_the_links_is_forgotten_when_their_rate_is_set(lab):
    sender, receiver = lab.nodes
    learnt = ["ip", "-n", sender.link, "tcp_metrics", "show"]
    measure(sender.name, receiver.name, seconds=1)
    assert receiver.address in output(*learnt)
    shape("100mbit")
    assert receiver.address not in output(*learnt)


def test_a_job_gives_the_links_a_rate_that_is_measured(lab):
    program = (
        "import sys, json; from escala.lab import network as lab; lab.shape(sys.argv[1]);"
        "print(json.dumps([lab.measure('n1', 'n2', 1), lab.measure('n2', 'n1', 1)]))"
    )
    try:
        for rate, asked in (("10mbit", 10), ("100mbit", 100)):
            [line] = in_job(sys.executable, "-c", program, rate)
            for found in json.loads(line):
                # A busy machine carries less, never more: unshaped, a link carries some 30 Gbit/s.
                assert asked / 3 < found["mbit_per_second"] < 1.1 * asked
                assert found["latency_ms"] > 0
            assert [network.rates(node) for node in lab.nodes] == [[asked, asked]] * 2
            assert f"{asked:g} Mbit/s" in run_lab("status").stdout
    finally:
        shape("native")
    assert [network.rates(node) for node in lab.nodes] == [[None, None]] * 2


@pytest.mark.sweep
def test_a_stopped_node_is_noticed_and_comes_back(lab):
    assert run_lab("stop-node", "n2").returncode == 0
    assert "stopped" in run_lab("status").stdout
    assert eventually(lambda: state("n2").endswith("*"))
    assert run_lab("start-node", "n2").returncode == 0
    assert eventually(lambda: state("n2") == "idle")


@pytest.mark.sweep
def test_a_lab_that_is_up_stays_and_a_job_outlives_a_restart_of_the_scheduler(lab):
    job = output("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 500").strip()
    running = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
    assert eventually(lambda: output(*running).strip() == "RUNNING")
    pid = FOLDER / "slurmctld.pid"
    before = pid.read_text()
    assert "is up, with 2 nodes" in run_lab("up", "--nodes", "5").stdout
    assert location() == lab and pid.read_text() == before
    assert run_lab("restart-scheduler").returncode == 0
    assert pid.read_text() != before
    assert output(*running).strip() == "RUNNING"
    output("scancel", job)
    assert eventually(lambda: state("n1") == state("n2") == "idle")


@pytest.mark.sweep
def test_in_the_shell_of_an_allocation_one_node_is_not_measured_beside_it(lab):
    survey = (
        "from escala.runtime.launch import survey; from escala.runtime.layout import Layout; "
        "from escala.strategies import STRATEGIES; "
        "print(survey(Layout(1, 1), STRATEGIES['single'], None, 'auto').nodes[0].host)"
    )
    command = [sys.executable, "-c", survey]
    done = subprocess.run(["salloc", "--nodes=1", *command], capture_output=True, text=True)
    assert done.returncode and "is not part of it: runs of one node" in done.stderr
    assert "n1" in output("salloc", "--nodes=1", "--nodelist=n1", "srun", "--nodes=1", *command)
