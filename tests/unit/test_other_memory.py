"""MPI ranks exchange also where the kernel forbids to read another process's memory."""

from __future__ import annotations

import json

import pytest

from escala.core import proc
from tests.calls import python

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


def found(code: str) -> list[str]:
    return json.loads(python("-c", code, timeout=120, check=True).stdout)


@pytest.mark.skipif(not proc.can_read_child(), reason="it is forbidden here")
def test_where_it_is_allowed_ranks_read_each_others_memory():
    mechanism, said, checked = found(RUN.format(rank=RANK))
    assert (mechanism, "".join(said.split())) == ("cma", "added" * 2)
    assert " yes " in checked


def test_where_it_is_forbidden_ranks_are_told_to_copy_and_the_check_names_the_remedy():
    mechanism, said, checked = found(FORBID + RUN.format(rank=RANK))
    # Open MPI would try, and write `Read -1, expected 2097152, errno = 1`.
    assert (mechanism, "".join(said.split())) == ("none", "added" * 2)
    assert " no " in checked and "--cap-add=SYS_PTRACE" in checked
