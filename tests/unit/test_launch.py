"""What each strategy starts, in what environment, and who can reach it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import psutil
import pytest

from escala.core.errors import InputError
from escala.runtime import launch
from escala.runtime.asking import step_environment
from escala.runtime.layout import EXTRA_PORTS, Launch, Layout, Node, places
from escala.runtime.node import EPHEMERAL_PORTS, FIRST_PORT, describe
from escala.strategies import STRATEGIES
from escala.strategies.base import Place
from tests import conftest
from tests.calls import python

KNOBS = conftest.KNOBS | {"threads": {"intra_op": 3, "inter_op": 1}}

COMMAND = ["python", "-m", "rank", "request.json"]
FOREIGN = {
    "HOROVOD_RANK": "7",
    "HOROVOD_FUSION_THRESHOLD": "1",
    "OMPI_COMM_WORLD_RANK": "7",
    "OMPI_MCA_btl": "tcp",
    "PMIX_RANK": "7",
    "PMI_RANK": "7",
    "SLURM_PROCID": "7",
    "TF_CONFIG": "{}",
    "TF_VAR_database": "Terraform's",
    "OMP_PROC_BIND": "spread",
    "ESCALA_PROCESS": "7",
    "http_proxy": "http://proxy:8080",
    "TOKENIZERS_PARALLELISM": "true",
}

SECRETS = ("NCBI_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "UV_INDEX_MINE_PASSWORD")
#: What ranks, or the programs that start them, cannot do without.
KEPT = ("LC_ALL", "TMPDIR", "SLURM_CONF", "SLURM_CLUSTERS", "OPENBLAS_CORETYPE", "UCX_TLS")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_get_what_is_kept_of_the_environment_and_their_own_mpi(strategy, monkeypatch):
    others = FOREIGN | dict.fromkeys(SECRETS, "secret") | dict.fromkeys(KEPT, "kept")
    for name, value in (others | {"LD_LIBRARY_PATH": "/opt/mpi/lib"}).items():
        monkeypatch.setenv(name, value)
    environment = launch.environment(strategy, KNOBS)
    assert not set(FOREIGN) & set(environment)
    assert "secret" not in environment.values()
    assert "secret" not in step_environment("1").values()
    assert {environment[name] for name in KEPT} == {"kept"}
    assert step_environment("1")["SLURM_CONF"] == "kept"
    assert set(FOREIGN) <= set(os.environ)
    assert environment["OPAL_PREFIX"] == sys.prefix
    assert environment["LD_LIBRARY_PATH"] == f"{sys.prefix}/lib:/opt/mpi/lib"
    assert environment["OMP_NUM_THREADS"] == "3"
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert launch.environment(strategy, KNOBS)["LD_LIBRARY_PATH"] == f"{sys.prefix}/lib"


def test_knobs_reach_horovod_and_open_mpi_and_absent_ones_leave_their_own():
    def told(prefix: str, **knobs: object) -> set[str]:
        found = launch.environment("horovod-mpi", KNOBS | knobs)
        return {value for name, value in found.items() if name.startswith(prefix)}

    assert told("HOROVOD_AUTOTUNE") == told("OMPI_MCA_btl_tcp_", eager_limit_mib=None) == set()
    assert told("HOROVOD_AUTOTUNE", autotune=True) == {"1"}
    assert told("OMPI_MCA_btl_tcp_", eager_limit_mib=8) == {"8388608"}


MACHINE = {"cpu": "x", "cores_available": 2, "cores_total": 2, "memory_bytes": 2**33}
HERE = Node("here", "lo", "127.0.0.1", [0, 1], [4000, 4001, 4002], MACHINE)


def placed(strategy: str, layout: str, nodes: list[Node]) -> list[dict]:
    return places(Layout.parse(layout), STRATEGIES[strategy], KNOBS, nodes)


def start(strategy: str, launched: Launch, layout: str, command: list[str] = COMMAND):
    """Enter what starts a run's processes."""
    on_nodes = placed(strategy, layout, launched.nodes)
    return launch.command_line(launched, STRATEGIES[strategy], on_nodes, command)


def test_one_node_is_started_by_itself_or_by_mpirun():
    for name, strategy in STRATEGIES.items():
        found = launch.survey(Layout(1, 1), strategy, None, "auto")
        assert found.launcher == ("mpirun" if strategy.meets_by == "mpi" else "local"), name
        assert found.job is None
        [node] = found.nodes
        assert (node.interface, node.address) == ("lo", "127.0.0.1")
        assert len(set(node.ports)) == 1 + EXTRA_PORTS


@pytest.mark.parametrize(
    ("nodes", "asked", "where"), [(2, "auto", "layout"), (1, "srun", "launcher")]
)
def test_several_nodes_and_srun_need_an_allocation(monkeypatch, nodes, asked, where):
    for name in ("SLURM_JOB_ID", "SLURM_JOBID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="--profile profiles/slurm") as caught:
        launch.survey(Layout(nodes, 1), STRATEGIES["horovod-mpi"], None, asked)
    assert caught.value.where == where


@pytest.fixture
def allocation(tmp_path, monkeypatch):
    """The shell of `salloc --nodes=2`, on a login node."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho n1; echo n2\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("allocation")
@pytest.mark.parametrize("asked", ["auto", "local"])
def test_one_node_is_not_measured_beside_an_allocation(asked):
    with pytest.raises(InputError, match=r"17.*n\[1-2\].*srun --jobid=17") as caught:
        launch.survey(Layout(1, 1), STRATEGIES["single"], None, asked)
    assert caught.value.where == "SLURM_JOB_ID"


@pytest.mark.usefixtures("allocation")
def test_the_network_is_the_one_by_which_slurm_knows_a_node(tmp_path):
    held = {
        entry.address: name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET
    }
    # One that the name of this machine does not stand for, where there is one.
    named = socket.gethostbyname(socket.gethostname())
    address = next((each for each in held if each != named), named)
    programs = {
        "scontrol": "printf 'JobId=17\\n   NodeList=n1\\n'\n"
        f"echo NodeName=n1 Arch=x86_64 NodeAddr={address} NodeHostName=n1",
        "srun": 'while [ "${1#-}" != "$1" ]; do shift; done\nSLURMD_NODENAME=n1 exec "$@"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    found = launch.survey(Layout(1, 1), STRATEGIES["single"], None, "srun")
    assert [node.interface for node in found.nodes] == [held[address]]


def test_an_interface_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(InputError, match=r"ib7.*name one of.*lo"):
        describe("ib7", 1)


def test_ranks_listen_on_ports_that_the_kernel_gives_to_nobody_else_while_some_are_free(
    tmp_path, monkeypatch
):
    first, last = map(int, EPHEMERAL_PORTS.read_text().split())
    ports = describe("lo", 50).ports
    assert len(set(ports)) == 50
    assert not [port for port in ports if first <= port <= last]
    (tmp_path / "range").write_text(f"{FIRST_PORT + 2}\t65535\n")
    monkeypatch.setattr("escala.runtime.node.EPHEMERAL_PORTS", tmp_path / "range")
    with socket.socket() as used:
        used.bind(("127.0.0.1", FIRST_PORT))
        ports = describe("lo", 3).ports
    assert FIRST_PORT not in ports and FIRST_PORT + 1 in ports
    assert len(set(ports)) == 3


@pytest.mark.parametrize(
    "strategy", [name for name, s in STRATEGIES.items() if s.meets_by == "servers"]
)
def test_what_listens_to_everybody_is_given_a_network_of_its_own(strategy):
    with start(strategy, Launch("local", [HERE], None), "1x2") as (arguments, _):
        assert "--private-network" in arguments


def test_mpirun_starts_ranks_where_no_ssh_is_installed(tmp_path):
    started = tmp_path / "started"
    started.mkdir()
    rank = f"import os; open('{started}/' + os.environ['OMPI_COMM_WORLD_RANK'], 'x')"
    launched, command = Launch("mpirun", [HERE], None), [sys.executable, "-c", rank]
    with start("horovod-mpi", launched, "1x2", command) as (arguments, _):
        done = subprocess.run(
            arguments,
            env=launch.environment("horovod-mpi", KNOBS) | {"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in started.iterdir()} == {"0", "1"}


THERE = Node("there", "lo", "127.0.0.1", [0, 1], [4000, 4001, 4002], MACHINE)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_on_given_nodes_is_a_step_there_also_of_one_node(strategy):
    launched = Launch("srun", [THERE], "17", ("n2",), "127.0.0.2")
    layout = "1x1" if STRATEGIES[strategy].layouts.one_rank else "1x2"
    with start(strategy, launched, layout) as (arguments, variables):
        assert {"--jobid=17", "--nodes=1", "--nodelist=n2"} <= set(arguments)
        if STRATEGIES[strategy].meets_by == "servers":
            assert "--ntasks=1" in arguments and "--private-network" in arguments
        if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in variables:
            assert variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.2"
    environment = launch.environment(strategy, KNOBS, launched)
    assert environment["SLURM_JOB_ID"] == "17"
    assert "OMPI_MCA_oob_tcp_if_include" not in environment, "loopback reaches no other node"


def test_mpirun_reaches_one_node_that_is_not_this_machine():
    launched = Launch("mpirun", [THERE], "17", ("n2",), "10.0.0.1")
    with start("horovod-mpi", launched, "1x2") as (arguments, _):
        words = " ".join(arguments)
    assert "--host there:2" in words
    assert "plm_slurm_args --nodes=1 --nodelist=there" in words
    assert "oob_tcp_if_include" not in words and "isolated" not in words


def test_local_cannot_start_processes_on_given_nodes():
    with pytest.raises(InputError, match=r"given n2.*use auto"):
        launch.survey(Layout(1, 1), STRATEGIES["single"], None, "local", ["n2"])


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("layout", ["1x3", "2x2"])
def test_places_hold_every_rank_once_on_cores_of_their_own(strategy, layout):
    parsed, one = Layout.parse(layout), STRATEGIES[strategy].layouts.process_per_node
    nodes = [
        Node(f"n{i}", "eth0", f"10.0.0.{i}", [0, 1, 2, 3], [4000, 4001, 4002, 4003, 4004], MACHINE)
        for i in range(parsed.nodes)
    ]
    found = [
        Place.of({"places": placed(strategy, layout, nodes)}, number)
        for number in range(parsed.nodes * (1 if one else parsed.processes))
    ]
    assert [rank for place in found for rank in place.ranks] == list(range(parsed.ranks))
    for number, node in enumerate(nodes):
        here = [place for place in found if place.node == number]
        assert {place.host for place in here} == {node.host}
        assert [place.local for place in here] == list(range(len(here)))
        cores = [core for place in here for core in place.cores]
        assert len(set(cores)) == len(cores) == parsed.processes
    assert len({address for place in found for address in place.addresses}) == len(found)
    assert not set(found[0].extra_addresses) & set(found[0].addresses)


def test_a_process_that_is_not_bound_may_use_all_cores_of_its_node():
    free = KNOBS | {"bind": False}
    found = places(Layout(1, 2), STRATEGIES["horovod-mpi"], free, [HERE])
    assert [place["cores"] for place in found] == [[0, 1], [0, 1]]


def spawned(*options: str, code: str, processes: int = 2) -> subprocess.CompletedProcess:
    program = [processes, sys.executable, "-c", code]
    return python("-m", "escala.runtime.spawn", *options, *program, timeout=60)


def test_spawned_processes_are_numbered_and_when_one_is_killed_all_end():
    code = "import os; os.write(1, os.environ['ESCALA_PROCESS'].encode() + b'\\n')"
    done = spawned(code=code, processes=3)
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["0", "1", "2"])
    done = spawned(
        code="import os, signal, time\n"
        "if os.environ['ESCALA_PROCESS'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(600)"
    )
    assert done.returncode == 1
    assert "process rank 1 exited on signal 9" in done.stdout


def test_the_process_that_fails_first_is_named_although_others_fail_at_once(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = (
        "import os, signal, time\n"
        "if os.environ['ESCALA_PROCESS'] == '2':\n"
        f"    file = open({str(fifo)!r}, 'w')\n"
        "    {how}\n"
        # Their input ends as the process does. On idle cores an error is told within milliseconds.
        f"open({str(fifo)!r}).read(); time.sleep(0.05); os._exit(1)"
    )
    for how, said in {
        "os._exit(7)": "with code 7",
        "os.kill(os.getpid(), signal.SIGTERM)": "on signal 15",
    }.items():
        done = spawned(code=code.replace("{how}", how), processes=3)
        assert (done.returncode, done.stdout) == (1, f"process rank 2 exited {said}\n")


def test_in_a_private_network_only_the_processes_of_the_run_reach_each_other():
    code = (
        "import os, socket, psutil, time\n"
        "names = set(psutil.net_if_addrs())\n"
        "assert names == {'lo'}, names\n"
        "if os.environ['ESCALA_PROCESS'] == '0':\n"
        "    s = socket.create_server(('127.0.0.1', 45678)); s.accept()\n"
        "else:\n"
        "    for _ in range(200):\n"
        "        try: socket.create_connection(('127.0.0.1', 45678)); break\n"
        "        except ConnectionRefusedError: time.sleep(0.05)\n"
        "    print('reached')"
    )
    done = spawned("--private-network", code=code)
    if "no private network" in done.stderr:
        pytest.skip(done.stderr)
    assert (done.returncode, done.stdout.split()) == (0, ["reached"]), done.stderr
