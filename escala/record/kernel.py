"""Time a fixed kernel on the cores of a run, before and after it (`escala.core.speed`).

It shows what no counter of the kernel tells: a lower frequency, another virtual machine on the same
cores whose time is not reported as steal, a neighbour that uses the bandwidth of the memory. It
knows nothing of the run, and does not look at the run's time.

The times are compared with the usual ones: the medians of the same session on the same cores,
since several cores at once are slower than one, and cores may differ. The first runs have none yet.
Only the cores of this machine are timed. What disturbs a GPU or a network, and what comes and goes
during the run, is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.files import read_json, write_json
from escala.core.speed import seconds_of_kernel

#: A run is disturbed if a core takes more than this many times its usual time. Equal kernels on a
#: quiet machine differ by a few percent; a neighbour on the sibling of a core, or a core that gets
#: four fifths of its time, exceeds it.
SLOWDOWN = 1.25
#: Fewest earlier times on the same cores from which the usual one is known: those of two runs.
_USUAL_FROM = 4
#: The least of this many counts: a kernel that is held up for a moment is not slow.
_TIMES = 2


class Kernel:
    """The times of the kernel before and after a run.

    Parameters
    ----------
    cores : of the run; None if some are of another machine than this one.
    """

    def __init__(self, cores: Sequence[int] | None):
        self._cores, self._times = cores, []
        self._unavailable = None if cores else "not timed: the run has cores of another machine"

    def time(self) -> None:
        """Time the kernel. If the cores may not be used, it is unavailable."""
        if self._unavailable is None:
            try:
                kernels = [seconds_of_kernel(self._cores) for _ in range(_TIMES)]
            except ValueError as error:
                self._unavailable = f"not timed: {error}"
                return
            walls = ((each.wall for each in kernel) for kernel in kernels)
            self._times.append([1000 * min(core) for core in zip(*walls, strict=True)])

    def judge(self, log: Path) -> dict[str, Any]:
        """Return what a run.json holds of the kernel, and add its times to those of the session.

        Parameters
        ----------
        log : the file with the times of the session, by the cores.

        Returns
        -------
        `slowdown` is the largest quotient of a time and the usual one of its core, divided by what
        that usually is, since the slowest of many cores is slower than that of one. It is None if
        there is no usual one yet, or if the kernel is unavailable.
        """
        names = ("cores", "before_ms", "after_ms", "usual_ms", "slowdown")
        if self._unavailable:
            return dict.fromkeys(names) | {"unavailable": self._unavailable}
        times = read_json(log) if log.exists() else {}
        earlier = times.setdefault(",".join(map(str, self._cores)), [])
        usual, slowdown = None, None
        if len(earlier) >= _USUAL_FROM:
            usual = np.median(earlier, axis=0)
            usual_slowest = np.median(np.max(earlier / usual, axis=1))
            slowdown = float(np.max(self._times / usual) / usual_slowest)
            usual = usual.tolist()
        earlier += self._times
        write_json(log, times, durable=False)
        found = list(self._cores), *self._times, usual, slowdown
        return dict(zip(names, found, strict=True)) | {"unavailable": None}
