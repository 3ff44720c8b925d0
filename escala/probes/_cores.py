"""The speed of a process's cores, alone and while they call collectives; threads of a library."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

#: Numbers that are copied to measure the memory.
_COPIED = 2**24
#: Shape of a product of two factors. Its rows are many, because the model asks for the time of
#: further rows, without that of writing the result. If the number of inputs were a power of two,
#: they would compete for the same lines of the cache, and the product would take twice as long.
_ROWS, _INPUTS, _OUTPUTS = 256, 8000, 128
_COMPUTED = 256
#: Time in which calls are made before their rate is measured. In the first ones, the system gives
#: the memory of the result page by page.
_WARM_SECONDS = 0.3


#: Returns a call that multiplies two factors of common rows: (rows, in) and (rows, out), float32.
Product = Callable[[np.ndarray, np.ndarray], Callable[[], object]]


class Timed(Protocol):
    """A call that knows its time."""

    def seconds(self) -> float: ...


def seconds_of(call: Callable, *arguments: Any) -> float:
    """Return the time of a call."""
    before = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - before


class Computing:
    """Computes products on the cores of this process in a further thread, within a context."""

    def __enter__(self) -> Computing:
        self._done, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._compute, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _compute(self) -> None:
        values = np.ones((_COMPUTED, _COMPUTED), np.float32)
        while not self._ended.is_set():
            np.dot(values, values)
            self._done += 1

    def rate(self, seconds: float) -> float:
        """Return the products per second in some time without calls."""
        done, start = self._done, time.perf_counter()
        time.sleep(seconds)
        return (self._done - done) / (time.perf_counter() - start)

    def alongside(self, call: Timed, count: int, usual: float) -> tuple[list[float], float]:
        """Return the times of `count` calls, and the seconds that computing loses by each.

        Without calls, it makes so many products per second as `usual`.
        """
        done, start = self._done, time.perf_counter()
        found = [call.seconds() for _ in range(count)]
        lost = time.perf_counter() - start - (self._done - done) / usual
        return found, lost / count


def rates(repeats: int, threads: int, product: Product) -> dict[str, list[float]]:
    """Return how fast a core copies memory and multiplies two factors, one for each repeat.

    Parameters
    ----------
    threads : those of a product in this process.
    product : of the framework.
    """
    source, target = np.ones(_COPIED, np.float32), np.zeros(_COPIED, np.float32)
    factors = (np.ones((_ROWS, numbers), np.float32) for numbers in (_INPUTS, _OUTPUTS))
    operations = 2 * _ROWS * _INPUTS * _OUTPUTS / threads
    return {
        "bytes_per_second": _rates(lambda: np.copyto(target, source), source.nbytes, repeats),
        "operations_per_second": _rates(product(*factors), operations, repeats),
    }


def _rates(work: Callable, amount: float, repeats: int) -> list[float]:
    """Return rates of a call when its memory is in use already, as in a training step."""
    ready = time.perf_counter() + _WARM_SECONDS
    while time.perf_counter() < ready:
        work()
    return [amount / seconds_of(work) for _ in range(repeats)]


#: Until threads that have just computed are asleep, and while the others are looked for.
_SETTLE, _IDLE = 0.1, 0.3


def library_threads() -> list[int]:
    """Return the numbers of the threads that run while this process waits.

    A library that exchanges in the background wakes up at every cycle, also without anything to
    send.
    """
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
