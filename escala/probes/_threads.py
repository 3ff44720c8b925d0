"""Find the threads of a library, and the time that they take of the cores.

A library that exchanges in the background wakes up at every cycle, also without anything to send.
Its threads are those that run while the process has nothing to do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path

#: Until threads that have just computed are asleep, and while the others are looked for.
_SETTLE, _IDLE = 0.1, 0.3


def library_threads() -> list[int]:
    """Return the numbers of the threads that run while this process waits."""
    time.sleep(_SETTLE)
    before = {thread: core_seconds([thread]) for thread in _threads()}
    time.sleep(_IDLE)
    own = threading.get_native_id()
    return [
        thread
        for thread, seconds in before.items()
        if thread != own and core_seconds([thread]) > seconds
    ]


def core_seconds(threads: Iterable[int]) -> float:
    """Return the seconds that threads of this process have run; 0 for those that have ended.

    The number of a thread's clock is that of `MAKE_THREAD_CPUCLOCK` with `CPUCLOCK_SCHED` in
    Linux's `include/linux/posix-timers_types.h`.
    """
    total = 0.0
    for thread in threads:
        try:
            total += time.clock_gettime((~thread << 3) | 6)
        except OSError:
            continue
    return total


def _threads() -> list[int]:
    return [int(thread.name) for thread in Path("/proc/self/task").iterdir()]
