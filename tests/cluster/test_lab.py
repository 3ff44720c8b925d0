"""The lab while it is up: a real SLURM and real networks."""

from __future__ import annotations

import json
import sys

import pytest

from escala.check import job as checks
from escala.core.errors import WIDTH
from escala.lab import network, read_lab
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


@pytest.mark.sweep
def test_in_a_job_a_node_tells_what_the_site_gives(lab):
    said = output(
        "salloc", "--partition=lab", "--nodes=2", "--time=5", "--quiet",
        "srun", "--nodes=1", "--ntasks=1", sys.executable, "-m", "escala.command", "check",
    )  # fmt: skip
    answers = {line[:WIDTH].strip(): line[WIDTH:] for line in said.splitlines()}
    assert answers.keys() >= {each.name for each in checks.CHECKS}
    for name, found in {
        "PMIx": "yes  pmix",
        # The lab has no plugin that keeps jobs to their cores.
        "control groups": "no   TaskPlugin is task/none. Remedy: ",
        "interfaces": "yes  eth0 198.18.",
        "shared files": "yes  2 nodes see ",
        # SLURM counts whole seconds.
        "time limit": ("yes  4 min ", "yes  5 min 0 s "),
    }.items():
        assert answers[name].startswith(found), said


@pytest.mark.sweep
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
def test_what_tcp_learnt_of_the_links_is_forgotten_when_their_rate_is_set(lab):
    sender, receiver = lab.nodes
    learnt = ["ip", "-n", sender.link, "tcp_metrics", "show"]
    measure(sender.name, receiver.name, seconds=1)
    assert receiver.address in output(*learnt)
    shape("100mbit")
    assert receiver.address not in output(*learnt)


@pytest.mark.sweep
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
    assert read_lab() == lab and pid.read_text() == before
    assert run_lab("restart-scheduler").returncode == 0
    assert pid.read_text() != before
    assert output(*running).strip() == "RUNNING"
    output("scancel", job)
    assert eventually(lambda: state("n1") == state("n2") == "idle")
