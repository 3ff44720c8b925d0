"""PyTorch's profiler of a process."""

from __future__ import annotations

import atexit
import tempfile
from pathlib import Path

import torch


class Profiler:
    """Records what this process does from `start` to `stop`; a process has one at a time.

    A process that ends while it is on would crash, so it is stopped before.
    """

    def __init__(self):
        self._on: torch.profiler.profile | None = None
        atexit.register(self._stopped)

    def start(self) -> None:
        self._on = torch.profiler.profile()
        self._on.start()

    def stop(self, path: Path | None = None) -> None:
        """Write what was recorded to a file; without `path` it is not kept."""
        profile = self._stopped()
        with tempfile.TemporaryDirectory() as folder:
            profile.export_chrome_trace(str(path or Path(folder, "trace.json")))

    def _stopped(self) -> torch.profiler.profile | None:
        profile, self._on = self._on, None
        if profile:
            profile.stop()
        return profile
