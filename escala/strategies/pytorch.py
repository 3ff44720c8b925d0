"""The base of the strategies whose models are of PyTorch."""

from __future__ import annotations

from escala.strategies.base import Strategy

#: With these the C library of Linux gives no freed memory back to the system, whatever its size
#: (`man 3 mallopt`). By default it gives back every block of 32 MiB or more.
_KEPT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**62),
    "MALLOC_ARENA_MAX": "1",
}


class PyTorch(Strategy):
    """A strategy of the engine `torch`."""

    @classmethod
    def environment(cls, knobs):
        return super().environment(knobs) | (_KEPT if knobs["keep_memory"] else {})
