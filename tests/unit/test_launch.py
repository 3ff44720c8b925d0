"""What each strategy starts, in what environment and memory, and who can reach it."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys

import pytest

from escala.core.errors import InputError
from escala.runtime import launch
from escala.runtime.asking import step_environment
from escala.runtime.layout import EXTRA_PORTS, Launch, Layout, Node, places
from escala.runtime.node import EPHEMERAL_PORTS, FIRST_PORT, describe
from escala.strategies import STRATEGIES
from escala.strategies.base import Place
from escala.strategies.knobs import complete, read_by_strategy
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


@pytest.fixture
def allocation(tmp_path, monkeypatch):
    """The shell of `salloc --nodes=2`, on a login node."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho n1; echo n2\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("nodes", "launcher", "given", "within", "where", "said"),
    [
        (2, "auto", [], False, "layout", "--profile profiles/slurm"),
        (1, "srun", [], False, "launcher", "--profile profiles/slurm"),
        (1, "auto", [], True, "SLURM_JOB_ID", r"17.*n\[1-2\].*srun --jobid=17"),
        (1, "local", [], True, "SLURM_JOB_ID", r"17.*n\[1-2\].*srun --jobid=17"),
        (1, "local", ["n2"], False, "launcher", r"given n2.*use auto"),
    ],
)
def test_what_cannot_be_started_there_is_refused(
    monkeypatch, request, nodes, launcher, given, within, where, said
):
    for name in ("SLURM_JOB_ID", "SLURM_JOBID"):
        monkeypatch.delenv(name, raising=False)
    if within:
        request.getfixturevalue("allocation")
    with pytest.raises(InputError, match=said) as refused:
        launch.survey(Layout(nodes, 1), STRATEGIES["horovod-mpi"], None, launcher, given)
    assert refused.value.where == where


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


def test_a_killed_process_is_named_although_another_that_missed_it_ended_first():
    done = spawned(
        code="import os, signal, time\n"
        "if os.environ['ESCALA_PROCESS'] == '0': os._exit(1)\n"
        "time.sleep(0.3); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert (done.returncode, done.stdout) == (1, "process rank 1 exited on signal 9\n")


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


#: Both print page faults: of 20 arrays of 64 MiB, and of two steps, with a digest of the weights.
FREES = {
    "ddp-gloo": """
import resource
import numpy as np
for _ in range(20):
    np.empty(2**26, np.uint8).fill(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt, "same")
""",
    "single": """
import hashlib, resource
import numpy as np
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential([tf.keras.layers.Conv1D(64, 2), tf.keras.layers.Dense(1)])
inputs = tf.constant(np.random.default_rng(0).random((96, 2000, 8), np.float32))
model(inputs[:1])

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(inputs) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    for variable, gradient in zip(model.trainable_variables, gradients):
        variable.assign_sub(0.1 * gradient)

faults = []
for _ in range(4):
    step()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.weights))
print(faults[-1] - faults[1], digest.hexdigest())
""",
}
#: NumPy asks for large pages, with which there are fewer faults; oneDNN keeps memory.
SMALL = {"NUMPY_MADVISE_HUGEPAGE": "0", "TF_ENABLE_ONEDNN_OPTS": "0"}


def knobs(keep_memory: bool) -> dict:
    threads = {"intra_op": 1, "inter_op": 1}
    return complete({"keep_memory": keep_memory, "threads": threads}, "virus-cnn")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the variables are those of glibc")
@pytest.mark.parametrize("strategy", ["ddp-gloo", pytest.param("single", marks=pytest.mark.sweep)])
def test_a_page_is_cleared_once_and_not_in_each_step(strategy):
    def run(keep_memory: bool) -> tuple[int, str]:
        variables = launch.environment(strategy, knobs(keep_memory)) | SMALL
        faults, digest = python(
            "-c", FREES[strategy], variables=variables, check=True
        ).stdout.split()
        return int(faults), digest

    (given, same), (kept, digest) = run(keep_memory=False), run(keep_memory=True)
    assert given - kept > max(10_000, 0.95 * given * (strategy == "single")) and digest == same


def test_one_knob_keeps_the_memory_of_each_engine_and_none_of_a_program():
    for strategy in (name for name in STRATEGIES if STRATEGIES[name].engine):
        given, kept = (launch.environment(strategy, knobs(keep)) for keep in (False, True))
        assert given.items() < kept.items()
        assert "keep_memory" in read_by_strategy(knobs(True), strategy)
        assert "keep_memory" not in read_by_strategy(knobs(True), strategy, takes_steps=False)
