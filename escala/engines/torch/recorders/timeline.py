"""Record every step of a rank by PyTorch's profiler; `escala.probes.timeline` joins all ranks."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from torch.profiler import record_function

from escala.engines.torch.step import Computed
from escala.probes.timeline import PROFILE, Timeline


def recorder(probe: Timeline, plan: Mapping, process: int, device: torch.device) -> Profile:
    """Return the recorder of a process, see `escala.engines.torch.recorders`."""
    return Profile(probe.folder / PROFILE.format(process))


class Profile:
    """Record the operations and the spans of steps of one process, from now on, in the file `path`.

    The profiler itself adds spans of updates, and of Gloo's operations in Gloo's threads.
    """

    # The profiler sees the exchange as it is.
    watched_exchange = None

    def __init__(self, path: Path):
        self._path, self._step, self._backward = path, ExitStack(), ExitStack()
        self._stepping = False
        self._profiler = Profiler()
        self._profiler.start()

    def watched(self, computed: Computed, optimizer: torch.optim.Optimizer) -> Computed:
        def model(inputs):
            if not self._stepping:
                self._stepping = True
                self._step.enter_context(record_function("step"))
            with record_function("forward"):
                return computed.model(inputs)

        def row_losses(targets, outputs):
            losses = computed.row_losses(targets, outputs)
            self._backward.enter_context(record_function("backward"))
            return losses

        def correct(targets, outputs):
            self._backward.close()
            return computed.correct(targets, outputs)

        def end(*_: object) -> None:
            self._stepping = False
            self._step.close()

        optimizer.register_step_post_hook(end)
        return Computed(model, row_losses, correct)

    def note(self, epoch: int, step: int, began: float, gathered: float, returned: float) -> None:
        """Add nothing: the spans of a step are in the trace."""

    def write(self) -> None:
        self._profiler.stop(self._path)


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
