"""What each strategy starts, in what environment, and who can reach it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest

from escala.parallel import launch
from escala.parallel.layout import Layout
from escala.parallel.strategies import STRATEGIES

KNOBS = {
    "threads": {"intra_op": 3, "inter_op": 1},
    "sparse_as_dense": True,
    "yield_when_idle": True,
}
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
    "OMP_PROC_BIND": "spread",
}


def listening() -> set[tuple[str, int]]:
    connections = psutil.Process().net_connections(kind="inet")
    return {tuple(c.laddr) for c in connections if c.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_others_left_in_the_environment_does_not_reach_the_ranks(strategy, monkeypatch):
    for name, value in FOREIGN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MY_PROXY", "kept")
    environment = launch.environment(strategy, KNOBS)
    assert not set(FOREIGN) & set(environment)
    assert environment["MY_PROXY"] == "kept"
    assert set(FOREIGN) <= set(os.environ)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_find_the_environments_own_mpi(strategy, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/mpi/lib")
    environment = launch.environment(strategy, KNOBS)
    assert environment["OPAL_PREFIX"] == sys.prefix
    assert environment["LD_LIBRARY_PATH"] == f"{sys.prefix}/lib:/opt/mpi/lib"
    assert environment["OMP_NUM_THREADS"] == "3"
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert launch.environment(strategy, KNOBS)["LD_LIBRARY_PATH"] == f"{sys.prefix}/lib"


def test_each_strategy_names_its_transport():
    mpi = launch.environment("horovod-mpi", KNOBS)
    assert (mpi["HOROVOD_CONTROLLER"], mpi["HOROVOD_CPU_OPERATIONS"]) == ("mpi", "mpi")
    gloo = launch.environment("horovod-gloo", KNOBS)
    assert (gloo["HOROVOD_CONTROLLER"], gloo["HOROVOD_CPU_OPERATIONS"]) == ("gloo", "gloo")
    assert not [k for k in launch.environment("single", KNOBS) if k.startswith("HOROVOD_")]


@pytest.mark.parametrize(("knob", "said"), [(True, "1"), (False, "0")])
def test_open_mpi_is_told_whether_to_yield(knob, said):
    environment = launch.environment("horovod-mpi", KNOBS | {"yield_when_idle": knob})
    assert environment["OMPI_MCA_mpi_yield_when_idle"] == said


def test_single_starts_the_command_as_it_is():
    with launch.launcher("single")(COMMAND, Layout(1, 1), {"A": "1"}) as started:
        assert started == [(COMMAND, {"A": "1"})]


def test_mpirun_starts_as_many_ranks_as_the_layout_has_on_this_machine_alone():
    with launch.launcher("horovod-mpi")(COMMAND, Layout(1, 3), {"A": "1"}) as started:
        [(arguments, environment)] = started
    assert environment == {"A": "1"}
    assert Path(arguments[0]).is_file()
    assert arguments[0] == f"{sys.prefix}/bin/mpirun"
    assert arguments[-len(COMMAND) :] == COMMAND
    options = arguments[1 : -len(COMMAND)]
    assert options[options.index("-np") + 1] == "3"
    assert options[options.index("--host") + 1] == "localhost:3"
    assert options[options.index("--bind-to") + 1] == "none"
    parameters = {options[i + 1]: options[i + 2] for i, o in enumerate(options) if o == "--mca"}
    assert parameters == {"btl": "self,vader", "oob_tcp_if_include": "lo"}


def test_gloo_starts_one_process_per_rank_each_with_its_place():
    with launch.launcher("horovod-gloo")(COMMAND, Layout(1, 3), {"A": "1"}) as started:
        assert [arguments for arguments, _ in started] == [COMMAND] * 3
        places = [environment for _, environment in started]
    for name in ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK"):
        assert [int(place[name]) for place in places] == [0, 1, 2]
    for name in ("HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE"):
        assert {place[name] for place in places} == {"3"}
    assert {place["HOROVOD_GLOO_IFACE"] for place in places} == {"lo"}
    assert {place["A"] for place in places} == {"1"}


def test_the_rendezvous_is_on_loopback_alone_and_ends_with_its_run():
    before = listening()
    with launch.launcher("horovod-gloo")(COMMAND, Layout(1, 2), {}) as started:
        _, environment = started[0]
        address = environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
        port = int(environment["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        assert listening() - before == {("127.0.0.1", port)}
        assert address == "127.0.0.1"
        # An answer, if only that there is no such key yet, shows that somebody serves.
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"http://{address}:{port}/scope/key", timeout=20)
    assert listening() == before


def test_the_rendezvous_ends_also_when_its_run_fails():
    before = listening()
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with launch.launcher("horovod-gloo")(COMMAND, Layout(1, 2), {}):
            raise KeyboardInterrupt
    assert listening() == before


@pytest.mark.parametrize(
    ("variables", "rank"),
    [({}, 0), ({"HOROVOD_RANK": "2"}, 2), ({"OMPI_COMM_WORLD_RANK": "3"}, 3)],
)
def test_a_rank_knows_its_number_from_its_launcher(monkeypatch, variables, rank):
    for name in ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launch.rank_of_environment() == rank
