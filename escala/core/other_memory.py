"""Whether a process may read the memory of another one of its user (man 2 process_vm_readv).

MPI ranks of one node do so to exchange with one copy. A container may forbid it, as Docker does by
default, and so may a kernel (Yama).
"""

from __future__ import annotations

import ctypes
import os
import signal

_LIBC = ctypes.CDLL(None, use_errno=True)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def may_be_read() -> bool:
    """Return whether this process can read the memory of a child that it starts for that."""
    own, other = ctypes.create_string_buffer(8), ctypes.create_string_buffer(b"written", 8)
    vectors = [_Vector(ctypes.addressof(each), len(each)) for each in (own, other)]
    # After a fork the child has the same content at the same address.
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        local, remote = map(ctypes.byref, vectors)
        read = _LIBC.process_vm_readv(child, local, 1, remote, 1, 0)
        return read == len(own) and own.raw == other.raw
    except AttributeError:  # A C library without the call.
        return False
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
