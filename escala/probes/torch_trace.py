"""Record some steps of PyTorch as a trace for Perfetto, by `torch.profiler`.

The hook starts the profiler (`escala/hook/escala_trace.py`) in the first process.
"""

from __future__ import annotations

from contextlib import contextmanager

from escala.core.errors import Unavailable
from escala.core.variables import TRACED
from escala.probes.base import Probe, section, value
from escala.strategies.base import TRACE

#: Number of steps before the recorded steps.
_SKIPPED = 3


class TorchTrace(Probe):
    """Trace some steps of the first process, by PyTorch's profiler."""

    captures_programs = True
    settings = section(
        "A separate run of every configuration of PyTorch, and of every program, that records some "
        "steps of its first process by PyTorch's profiler. It is unavailable for programs without "
        "PyTorch or without the hook.",
        enabled=False,
        steps=value("integer", "Training steps to record.", minimum=1, default=10),
    )
    products = (TRACE,)
    records_steps = True

    @classmethod
    def steps(cls, values):
        return _SKIPPED + values["steps"]

    def environment(self, strategy):
        return {TRACED: f"{_SKIPPED}:{self.values['steps']}:{self._file}"}

    @contextmanager
    def around(self, process, node):
        yield
        if process == 0 and not self._file.exists():
            raise Unavailable(
                f"no trace was left: a trace needs more than {_SKIPPED} steps. In a program, it "
                "also needs PyTorch, and the hook's `steps` or `step` in the first process"
            )

    @property
    def _file(self):
        return (self.folder.parent / TRACE).resolve()
