"""Record the peak memory of every process of a run."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from typing import ClassVar

from escala.core.files import read_json, write_json
from escala.probes.base import Probe, section


class Memory(Probe):
    """The largest resident memory of every process, as the kernel counts it."""

    settings = section("A separate run that records the peak memory of its ranks.", enabled=False)
    result: ClassVar[dict] = {
        "description": "Largest resident memory of each process; null in runs of no such probe.",
        "unit": "bytes",
        "type": ["array", "null"],
        "items": {"type": "integer", "minimum": 0},
    }

    @contextmanager
    def around(self, process, node):
        yield
        kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        write_json(self._file(process), kibibytes * 1024)

    def read(self, processes):
        return [read_json(self._file(process)) for process in range(len(processes))]

    def _file(self, process):
        return self.folder / f"rank{process}.memory.json"
