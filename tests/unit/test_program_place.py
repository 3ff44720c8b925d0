"""What a program finds in its environment: its place in the run, and nothing of the rank's."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from escala.core import environment
from escala.core.errors import InputError
from escala.experiment import Experiment
from escala.experiment.checks import find_unread
from escala.programs.environment import identity
from escala.programs.program import HOOK, Program, words
from escala.runtime import launch, mpi
from escala.runtime.layout import Layout, Node, places
from escala.strategies import STRATEGIES
from escala.strategies.base import Place
from escala.training import by_program
from tests import conftest
from tests.conftest import ROOT
from tests.programs import experiment_on

KNOBS = conftest.KNOBS | {"cores_per_process": 2, "threads": {"intra_op": 2, "inter_op": 2}}
NODES = [
    Node("n1", "eth0", "10.0.0.1", [2, 3, 4, 5], [4000, 4001, 4002, 4003], {}),
    Node("n2", "eth0", "10.0.0.2", [2, 3, 4, 5], [5000, 5001, 5002, 5003], {}),
]
#: What a shell may hold that would tell a program of another training.
OF_ANOTHER = """RANK WORLD_SIZE LOCAL_RANK NODE_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID
    TORCHELASTIC_USE_AGENT_STORE JAX_PROCESS_ID HOROVOD_RANK OMPI_COMM_WORLD_RANK PMIX_RANK
    TF_CONFIG SLURM_PROCID PBS_JOBID LSB_JOBID NSLOTS PET_NNODES PMI_SIZE OMP_NUM_THREADS
    GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME MKL_NUM_THREADS NUMEXPR_MAX_THREADS OMP_THREAD_LIMIT
    GOMP_CPU_AFFINITY GOMAXPROCS LOKY_MAX_CPU_COUNT"""
OF_ANOTHER = dict.fromkeys(OF_ANOTHER.split(), "77")


def program(tmp_path: Path, **environment: object) -> Program:
    declared = {"command": "python train.py", "environment": environment}
    return Program.of(declared, tmp_path, "workloads.train")


def started(
    monkeypatch: pytest.MonkeyPatch,
    found: Program,
    strategy: str,
    layout: str,
    process: int,
    threads: dict[str, int] | None = None,
    **launcher_variables: str,
) -> dict[str, str]:
    """Return the variables of a program, started from a shell that holds those of another one."""
    for name, value in OF_ANOTHER.items():
        monkeypatch.setenv(name, value)
    knobs = KNOBS | ({"threads": threads} if threads else {})
    reached = launch.environment(strategy, knobs, None, found) | launcher_variables
    with monkeypatch.context() as rank_variables:
        for name in [*os.environ]:
            rank_variables.delenv(name)
        for name, value in reached.items():
            rank_variables.setenv(name, value)
        parsed = Layout.parse(layout)
        every = places(parsed, STRATEGIES[strategy], knobs, NODES[: parsed.nodes])
        request = {"strategy": strategy, "knobs": knobs, "instrument": None}
        request["start"] = {"program": found.as_plan(), "interface": "eth0"}
        return by_program.variables(request, Place(**every[process]), found.directory / "marks")


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("python train.py python", 0),
        ("env -u B A=/x nice -n 5 python3 train.py", 7),
        ("numactl -l python train.py", 2),
        ("nice ./train --use python", None),
    ],
)
def test_what_starts_python_starts_the_interpreter_of_the_program(command, place, tmp_path):
    declared = {"command": command, "environment": {"python": sys.executable}}
    found = Program.of(declared, tmp_path, "workloads.train").arguments({})
    expected = command.split()
    if place is not None:
        expected[place] = sys.executable
    assert [*found] == expected


@pytest.mark.parametrize("lines", [[], ["PYTHONPATH=lib"], ["unset PYTHONPATH"]])
def test_a_command_or_a_line_that_sets_pythonpath_leaves_the_hook_there(lines, tmp_path):
    code = "import sys; print([p for p in sys.path if p.endswith(('hook', 'src'))])"
    command = ["env", "PYTHONPATH=src", "python", "-c", code]
    declared = {"command": command, "environment": {"python": sys.executable, "lines": lines}}
    called = Program.of(declared, tmp_path, "workloads.train").arguments({})
    done = subprocess.run(called, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == [str(HOOK), str(tmp_path / "src")]


def test_a_quote_within_quotes_ends_none_and_lines_go_on():
    text = """train.py "it's" \\\n --x 'a b'"""
    assert words(text, "here") == ["train.py", "it's", "--x", "a b"]


OF_TORCHRUN = {
    **{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
    **{"GROUP_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4002"},
    **{"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"},
}
WORKERS = ["10.0.0.1:4000", "10.0.0.1:4001", "10.0.0.2:5000", "10.0.0.2:5001"]
EXPECTED = {
    "processes": OF_TORCHRUN,
    "torch-ddp": OF_TORCHRUN
    | {"TORCHELASTIC_RUN_ID": "escala", "TORCHELASTIC_USE_AGENT_STORE": "False"},
    "mpi": {
        **{"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},
        **{"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4002"},
    },
    "horovod-mpi": {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"},
    "horovod-gloo": {
        **{"HOROVOD_CONTROLLER": "gloo", "HOROVOD_HOSTNAME": "n2", "HOROVOD_RANK": "3"},
        **{"HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"},
        **{"HOROVOD_CROSS_RANK": "1", "HOROVOD_CROSS_SIZE": "2"},
    },
    "tf-config": {
        "TF_CONFIG": json.dumps(
            {"cluster": {"worker": WORKERS}, "task": {"type": "worker", "index": 3}}
        )
    },
}
#: Names that runs keep, and record (`escala.core.variables`).
KEPT = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}
FOR_PROGRAMS = [name for name, each in STRATEGIES.items() if each.programs]


@pytest.mark.parametrize("strategy", sorted(EXPECTED))
def test_a_program_finds_its_place_and_the_others(strategy, tmp_path, monkeypatch):
    found = started(monkeypatch, program(tmp_path), strategy, "2x2", 3)
    assert EXPECTED[strategy].items() <= found.items()
    assert found["ESCALA_STEPS"] == str(tmp_path / "marks")


def test_data_in_a_folder_that_is_copied_are_those_of_the_copy(tmp_path):
    [first, *_] = places(Layout.parse("1x1"), STRATEGIES["processes"], KNOBS, NODES[:1])
    plan = {"global_batch": 4, "ranks": 1, "epochs": 1, "seed": 0}
    plan["start"] = {"copy": {"into": "/run/copy", "roots": [str(tmp_path)], "without": []}}
    data = {"own": f"{tmp_path}/reads", "other": "/data"}
    found = by_program.values(plan, Place(**first), tmp_path, data)
    assert (found["data.own"], found["data.other"]) == (f"/run/copy{tmp_path}/reads", "/data")


@pytest.mark.parametrize("strategy", FOR_PROGRAMS)
def test_another_trainings_place_does_not_reach_a_program(strategy, tmp_path, monkeypatch):
    layout = "1x1" if STRATEGIES[strategy].layouts.one_rank else "1x2"
    found = started(monkeypatch, program(tmp_path), strategy, layout, 0)
    left = {n for n, v in OF_ANOTHER.items() if found.get(n) == v and n not in KEPT}
    assert not left
    assert found["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize(("strategy", "kept"), [("own-launcher", 0), ("mpi", 4)])
def test_what_is_of_the_rank_and_of_its_job_step_does_not_reach_a_program(
    strategy, kept, tmp_path, monkeypatch
):
    """Open MPI finds the other processes of a job step by its variables."""
    step = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "17", "SLURMD_NODENAME": "n1", "SRUN_DEBUG": "3"}
    rank = {"ESCALA_PROCESS": "1", "PYTHONPATH": f"{ROOT}:/own", "SLURM_CONF": "/etc/slurm.conf"}
    found = started(monkeypatch, program(tmp_path), strategy, "1x2", 0, **step, **rank)
    assert [name for name in found if name.startswith("ESCALA_")] == ["ESCALA_STEPS"]
    assert found["PYTHONPATH"] == f"{HOOK}:/own"
    assert found["SLURM_CONF"] == "/etc/slurm.conf"
    assert len(step.keys() & found.keys()) == kept


def test_variables_of_the_shell_reach_a_program_and_secrets_if_they_are_named(
    tmp_path, monkeypatch
):
    given = {"HIDDEN": "4000", "WANDB_MODE": "offline", "OMP_PROC_BIND": "spread"}
    given |= {"https_proxy": "http://proxy:8080", "ACCELERATE_USE_CPU": "yes", "HF_HOME": "/hf"}
    for name, value in (given | {"WANDB_API_KEY": "k", "HF_TOKEN": "t"}).items():
        monkeypatch.setenv(name, value)
    named = program(tmp_path, variables=["WANDB_API_KEY", "SLURM_PROCID", "MKL_NUM_THREADS"])
    found = started(monkeypatch, named, "processes", "1x2", 0)
    assert given.items() <= found.items()
    assert (found["WANDB_API_KEY"], found["SLURM_PROCID"]) == ("k", "77")
    assert found["MKL_NUM_THREADS"] == "77"
    assert "HF_TOKEN" not in found


def test_what_the_shell_set_decides_a_programs_result_and_what_comes_later_does_not(
    tmp_path, monkeypatch
):
    for name in [*os.environ]:
        if name not in ("PATH", "HOME"):
            monkeypatch.delenv(name)
    monkeypatch.setattr("escala.programs.environment.versions", lambda _: {})
    mine = program(tmp_path, variables=["ASKED", "HF_TOKEN"])

    def key(**given: str) -> dict:
        with monkeypatch.context() as shell:
            for name, value in given.items():
                shell.setenv(name, value)
            return identity(mine)["variables"]

    assert key() == {"ASKED": None, "HF_TOKEN": None}
    small, large = key(HIDDEN="100"), key(HIDDEN="4000")
    assert small.keys() == {"ASKED", "HF_TOKEN", "HIDDEN"} and small != large
    # Neither the terminal, nor what is recorded by its value, nor what a secret is.
    assert key(TERM="x", SSH_TTY="/dev/pts/1", TMUX="/t", VSCODE_PID="1", XLA_FLAGS="-x") == key()
    assert key(HF_TOKEN="one") == key(HF_TOKEN="two") != key()
    assert key(ESCALA_SHELL="HIDDEN,ASKED", HIDDEN="100", OF_THE_JOB="7") == small


def test_folders_of_modules_that_are_not_for_escala_are_for_a_program(tmp_path, monkeypatch):
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("ESCALA_PYTHONPATH", "")
    monkeypatch.delenv("ESCALA_PYTHONPATH")
    environment.drop_shadowing_paths(ROOT)
    assert os.environ["PYTHONPATH"] == ""
    found = started(monkeypatch, program(tmp_path), "single", "1x1", 0)
    assert found["PYTHONPATH"] == f"{HOOK}:{tmp_path}"


@pytest.mark.parametrize(
    ("strategy", "threads", "told"),
    [
        ("own-launcher", None, {"OMP_NUM_THREADS": "2", "TF_NUM_INTRAOP_THREADS": "2"}),
        ("processes", (4, 1), {"OMP_NUM_THREADS": "4", "TF_NUM_INTEROP_THREADS": "1"}),
        # As of every strategy: of each rank.
        ("own-launcher", (4, 1), {"OMP_NUM_THREADS": "4"}),
        ("own-launcher", (0, 1), {"OMP_NUM_THREADS": "2"}),
    ],
)
def test_a_rank_is_told_its_threads(strategy, threads, told, tmp_path, monkeypatch):
    threads = threads and dict(zip(("intra_op", "inter_op"), threads, strict=True))
    found = started(monkeypatch, program(tmp_path), strategy, "1x2", 0, threads)
    assert told.items() <= found.items()


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "other" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(sys.executable)
    write(folder / "mpirun", "mpirun (Open MPI) 5.0.3")
    monkeypatch.setenv("PATH", f"{sys.prefix}/bin:/usr/bin:/bin")
    return folder


def write(path: Path, version: str) -> None:
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)


def declared(other: Path, by: str) -> dict:
    if by == "python":
        return {"python": str(other / "python")}
    return {"lines": [f'echo "a module was loaded"; export PATH="{other}:$PATH"']}


@pytest.mark.parametrize(("by", "has_mpi"), [("python", True), ("lines", True), ("lines", False)])
def test_an_environment_is_started_by_its_mpi_and_has_the_projects_where_it_has_none(
    by, has_mpi, other, tmp_path
):
    if not has_mpi:
        (other / "mpirun").unlink()
    found = program(tmp_path, **declared(other, by))
    assert mpi.mpirun(found) == str((other if has_mpi else Path(sys.prefix, "bin")) / "mpirun")
    # They would lead its libraries to those of the project.
    environment = launch.environment("mpi", KNOBS, None, found)
    assert not {"LD_LIBRARY_PATH", "OPAL_PREFIX"} & environment.keys() or not has_mpi
    assert has_mpi or environment["LD_LIBRARY_PATH"].startswith(f"{sys.prefix}/lib")
    assert "LD_LIBRARY_PATH" not in launch.environment("torch-ddp", KNOBS, None, found)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("mpirun (Open MPI) 5.0.3", 5),
        ("HYDRA build details: Version: 4.2.1", None),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.14 Build 20241121", None),
    ],
)
def test_the_make_of_an_mpi_is_what_its_mpirun_says(version, release, other, tmp_path):
    write(other / "mpirun", version)
    assert mpi.release(mpi.mpirun(program(tmp_path, **declared(other, "python")))) == release


def test_an_mpi_of_another_make_is_refused(other):
    write(other / "mpirun", "A start script of some other make")
    with pytest.raises(InputError, match="own-launcher"):
        mpi.release(str(other / "mpirun"))


def test_the_projects_mpirun_does_not_change_which_python_a_program_is(
    other, tmp_path, monkeypatch
):
    """`mpirun` puts its own folder before the PATH of what it starts."""
    monkeypatch.setenv("PATH", f"{other}:/usr/bin:/bin")
    path = f"{sys.prefix}/bin:{other}:/usr/bin:/bin"
    found = started(monkeypatch, program(tmp_path), "mpi", "1x2", 0, PATH=path)
    assert found["PATH"] == f"{other}:/usr/bin:/bin"


def test_probes_that_need_the_inside_of_a_step_are_told_to_be_idle(tmp_path):
    asked = ("clocks", "collectives", "resources", "energy", "torch-trace")
    waits = {"command": "sleep 1", "directory": str(tmp_path), "files": []}
    probes = {name: {"enabled": True} for name in asked}
    settings = experiment_on("mine", {"waits": waits}, **probes)
    found = Experiment(settings, tmp_path / "experiment.yaml")
    # Clocks are on by default, so nobody has asked for them.
    assert [each.partition(" is ")[0] for each in find_unread(found)] == ["collectives"]
    assert {run.instrument for name in asked for run in found.probe_runs(name)} == set(asked[2:])
