"""What is told of a machine: its cores, memory, accelerators."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from escala import engines
from escala.analysis import comparable
from escala.core import hardware, proc
from escala.core.errors import Unavailable
from escala.core.hardware import VISIBLE_GPUS, available_gpus
from escala.engines.base import gpus_in_use
from escala.record import key
from escala.runtime import node
from escala.strategies.base import Place
from tests.calls import python
from tests.unit.nvml import Gpu, Nvml

MILAN = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC
stepping\t: 1
flags\t\t: fpu sse2 avx2
"""
ARM = """\
processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd0c
CPU revision\t: 1
"""


@pytest.fixture
def described(tmp_path):
    def of(cpuinfo: str) -> dict:
        file = tmp_path / "cpuinfo"
        file.write_text(cpuinfo)
        return hardware.describe(file)

    return of


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("cpu family\t: 25", "cpu family\t: 26"),
        ("model\t\t: 1", "model\t\t: 17"),
        ("stepping\t: 1", "stepping\t: 2"),
        ("sse2 avx2", "sse2 avx2 avx512f"),
        ("AuthenticAMD", "HygonGenuine"),
    ],
)
def test_processors_of_one_name_are_told_from_each_other(described, monkeypatch, field, other):
    one, unlike = described(MILAN), described(MILAN.replace(field, other))
    assert comparable.unlike_machines([one], [described(MILAN)]) is None
    assert comparable.unlike_machines([one], [unlike])
    # The store and the history tell them apart by the same.
    keys = []
    for machine in (one, unlike):
        monkeypatch.setattr(hardware, "describe", lambda machine=machine: dict(machine))
        keys.append(key.machine())
    assert keys[0] != keys[1]
    runs = [{"ranks": {"machines": [machine]}} for machine in (one, unlike)]
    assert comparable.machines(runs[0]) != comparable.machines(runs[1])


def test_a_name_shows_family_and_model_and_the_first_processor_counts(described):
    assert described(MILAN)["cpu"] == "AMD EPYC (family 25 model 1)"
    assert described(ARM)["cpu"].endswith("(family 8 model 0xd0c)")
    assert set(described("")["processor"].values()) == {None}
    second = MILAN.replace("processor\t: 0", "processor\t: 1").replace("25", "26")
    again = MILAN.replace("fpu sse2 avx2", "avx2 fpu sse2") + "\n" + second
    assert described(again) == described(MILAN)
    assert hardware.describe(Path("/proc/cpuinfo")) == hardware.describe()


def test_a_record_without_the_family_is_unlike_a_known_processor_and_like_another_such(described):
    known = described(MILAN)
    older = {k: v for k, v in known.items() if k != "processor"} | {"cpu": "AMD EPYC"}
    reason = comparable.unlike_machines([older], [known])
    assert "different kinds of machines: AMD EPYC, " in reason and "older record" in reason
    assert comparable.unlike_machines([older], [older]) is None


def test_a_node_tells_its_speed_and_the_store_does_not_use_it():
    machine = node.describe(node.LOOPBACK, ports=1).machine
    assert 0 < machine["speed_seconds"] < 1 and "speed_seconds" not in key.machine()
    assert json.dumps(key.machine())


def test_equal_processors_of_another_speed_are_told_from_each_other():
    for times, alike in ((1.2, True), (1 / 1.2, True), (2, False)):
        assert comparable.are_alike(0.0024, 0.0024 * times, comparable.SPEED) == alike
    assert comparable.are_alike(None, 0.0024, comparable.SPEED)


#: Forbid process_vm_readv and process_vm_writev to this process and those that it starts, as Docker
#: does: a seccomp filter (linux/seccomp.h, linux/filter.h) that answers EPERM.
FORBID = """
import ctypes, struct
steps = [(0x20, 0, 0, 0), (0x15, 1, 0, 310), (0x15, 0, 1, 311), (6, 0, 0, 0x50001),
         (6, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
program = Program(len(steps), ctypes.addressof(code))
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
"""
#: Two MPI ranks add up 4 MB.
RANK = """
import ctypes
mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
mpi.MPI_Init(None, None)
world, number, total = (
    ctypes.byref(ctypes.c_char.in_dll(mpi, f"ompi_mpi_{name}"))
    for name in ("comm_world", "int", "op_sum")
)
ones = (ctypes.c_int * 2**20)(*[1] * 2**20)
added = (ctypes.c_int * 2**20)()
mpi.MPI_Allreduce(ones, added, 2**20, number, total, world)
assert set(added) == {2}
mpi.MPI_Finalize()
print("added", flush=True)
"""
RUN = """
import json, subprocess, sys
from escala.check import machine as check
from escala.runtime import launch
from escala.runtime.node import describe
from escala.strategies import STRATEGIES
from tests.conftest import KNOBS
started = launch.Launch("mpirun", [describe("lo", 1)], None)
rank = [sys.executable, "-c", {rank!r}]
with launch.command_line(started, STRATEGIES["horovod-mpi"], [{{}}] * 2, rank) as (call, _):
    knobs = KNOBS | {{"threads": {{"intra_op": 1}}}}
    environment = launch.environment("horovod-mpi", knobs, started)
    done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=60)
[found] = check.answers([each for each in check.CHECKS if each.name == "direct copies"])
print(json.dumps([launch.single_copy(started.nodes), done.stdout + done.stderr, str(found)]))
"""


@pytest.mark.parametrize("forbidden", [False, True])
def test_ranks_read_each_others_memory_where_it_is_allowed(forbidden):
    """Open MPI would try elsewhere, and write `Read -1, expected 2097152, errno = 1`."""
    if not (forbidden or proc.can_read_child()):
        pytest.skip("it is forbidden here")
    code = FORBID * forbidden + RUN.format(rank=RANK)
    mechanism, said, checked = json.loads(python("-c", code, timeout=120, check=True).stdout)
    assert "".join(said.split()) == "added" * 2
    if forbidden:
        assert mechanism == "none" and " no " in checked and "--cap-add=SYS_PTRACE" in checked
    else:
        assert mechanism == "cma" and " yes " in checked


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


V1 = "5:cpuset:/\n2:cpu,cpuacct:/job/step\n1:memory:/other\n"


@pytest.mark.parametrize(
    ("membership", "limits", "quota"),
    [
        ("0::/job\n", {}, None),
        ("0::/job\n", {"job": "max 100000"}, None),
        ("0::/job\n", {"job": "max 100000", "": "150000 100000"}, 1.5),
        ("0::/job\n", {"job": "50000 100000", "": "150000 100000"}, 0.5),
        ("0::/job\n", {"job": "unreadable"}, None),
        (V1, {"cpu/job": "200000 100000", "cpu/job/step": "-1 100000"}, 2.0),
        (V1, {"cpu/job": "200000 100000", "cpu/job/step": "50000 100000"}, 0.5),
    ],
)
def test_the_smallest_quota_of_the_control_groups_counts(tmp_path, membership, limits, quota):
    member = tmp_path / "cgroup"
    member.write_text(membership)
    for group, text in limits.items():
        if membership == V1:
            limit, period = text.split()
            write(tmp_path / "groups" / group, cpu__cfs_quota_us=limit, cpu__cfs_period_us=period)
        else:
            write(tmp_path / "groups" / group, cpu__max=text)
    assert hardware.cpu_quota(member, tmp_path / "groups") == quota


@pytest.mark.parametrize(("quota", "cores"), [(0.5, 1), (1.0, 1), (1.9, 1), (64.0, None)])
def test_a_quota_leaves_whole_cores_and_at_least_one(monkeypatch, quota, cores):
    monkeypatch.setattr(hardware, "cpu_quota", lambda: quota)
    found = hardware.describe()
    assert found["cores_available"] == (cores or len(os.sched_getaffinity(0)))
    assert found["cpu_quota"] == quota


@pytest.fixture
def driver(monkeypatch):
    def install(uuids: list[str] | None) -> Nvml:
        made = Nvml(
            None if uuids is None else [Gpu(uuid, f"Model {n}") for n, uuid in enumerate(uuids)]
        )
        monkeypatch.setitem(sys.modules, "pynvml", made)
        return made

    for name in (VISIBLE_GPUS, "TF_FORCE_GPU_ALLOW_GROWTH"):
        # Set before it is deleted: the fixture then restores what a test sets.
        monkeypatch.setenv(name, "before")
        monkeypatch.delenv(name)
    return install


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [("GPU-a", "Model 0"), ("GPU-b", "Model 1"), ("GPU-c", "Model 2")]),
        ("", []),
        ("-1", []),
        ("2,0", [("2", "Model 2"), ("0", "Model 0")]),
        ("GPU-b, 0", [("GPU-b", "Model 1"), ("0", "Model 0")]),
        # CUDA shows those before the first that does not exist.
        ("1,7,0", [("1", "Model 1")]),
        ("GPU-x,0", []),
    ],
)
def test_gpus_are_those_that_cuda_shows(driver, visible, expected):
    made = driver(["GPU-a", "GPU-b", "GPU-c"])
    environment = {} if visible is None else {VISIBLE_GPUS: visible}
    assert available_gpus(environment) == expected
    assert made.open == 0


def place(local: int, ranks: list[int]) -> Place:
    return Place(
        process=local, processes=2, ranks=ranks, node=0, nodes=1, local=local,
        processes_per_node=2, host="n", cores=[0], addresses=[], extra_addresses=[],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "ranks", "expected"),
    [
        # More ranks than GPUs share them in turns.
        (["GPU-a", "GPU-b"], [[0], [1], [2], [3]], ["GPU-a", "GPU-b", "GPU-a", "GPU-b"]),
        # One process for the ranks of a node.
        (["GPU-a", "GPU-b", "GPU-c"], [[0, 1]], ["GPU-a,GPU-b"]),
        (["GPU-a"], [[0, 1]], ["GPU-a"]),
    ],
)
def test_each_rank_has_a_gpu_of_its_node(driver, monkeypatch, gpus, ranks, expected):
    driver(gpus)
    shown = []
    for local, held in enumerate(ranks):
        monkeypatch.delenv(VISIBLE_GPUS, raising=False)
        engines.show_device(("auto", "gpu")[local % 2], place(local, held))
        shown.append(os.environ[VISIBLE_GPUS])
        assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert shown == expected


def test_without_gpus_auto_changes_nothing_and_gpu_is_refused(driver):
    driver(None)
    assert available_gpus({}) == [] and "gpus" not in hardware.describe()
    engines.show_device("auto", place(0, [0]))
    assert VISIBLE_GPUS not in os.environ
    with pytest.raises(Unavailable, match="device: gpu needs a GPU"):
        engines.show_device("gpu", place(0, [0]))
    driver(["GPU-a"])
    engines.show_device("cpu", place(0, [0]))
    assert available_gpus() == [], "ranks on cores see none"


def test_a_tensorflow_without_cuda_is_not_taken_for_one_that_uses_the_gpu(driver):
    driver(["GPU-a"])
    without, with_cuda = ((found, "TensorFlow", "install it") for found in (False, True))
    assert gpus_in_use("auto", *without) == []
    with pytest.raises(Unavailable, match=r"TensorFlow finds no GPU.*install it"):
        gpus_in_use("gpu", *without)
    assert gpus_in_use("gpu", *with_cuda) == ["GPU-a"]


@pytest.mark.parametrize("strategy", ["ddp-nccl", "fsdp"])
def test_ranks_that_would_share_a_gpu_by_nccl_are_unavailable(driver, strategy):
    driver(["GPU-a"])
    plan = {"strategy": strategy, "knobs": {"device": "auto"}}
    with pytest.raises(Unavailable, match="a GPU for each of 2 ranks, and the node has 1"):
        engines.create_engine(plan, place(0, [0]))
