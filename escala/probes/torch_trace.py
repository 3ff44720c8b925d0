"""Record some steps of PyTorch as a trace of each rank, by `torch.profiler`.

The hook starts the profiler (`escala/hook/escala_trace.py`). The trace of rank 0 is also kept
unpacked, for Perfetto. The traces divide the steps of a program among their parts
(`escala/analysis/traces/spans.py`); of Escala's own networks, clocks do.
"""

from __future__ import annotations

import gzip
import shutil
from contextlib import contextmanager
from pathlib import Path

from escala.core.errors import Unavailable
from escala.core.files import atomic
from escala.core.variables import TRACED
from escala.probes.base import Probe, section, value
from escala.probes.clocks import REPEATS
from escala.strategies.base import TRACE

#: Number of steps before the recorded steps.
_SKIPPED = 3


def trace_files(run_file: Path) -> list[Path]:
    """Return the traces of the ranks of a run, alongside its `run.json`."""
    return sorted(run_file.parent.glob("ranks/rank*.trace.json.gz"))


def counted_files(run_file: Path) -> list[Path]:
    """Return the files with the floating-point operations of the ranks of a run."""
    return sorted(run_file.parent.glob("ranks/operations*.json"))


class TorchTrace(Probe):
    """Trace some steps of each rank, by PyTorch's profiler."""

    captures_programs = True
    settings = section(
        "Separate runs of PyTorch, and of programs whose steps are seen, which record steps by "
        "PyTorch's profiler, and split those of a program into parts.",
        enabled=False,
        repeats=value(
            "integer",
            "Runs of each configuration, spread among the repeats; an interval needs two.",
            minimum=1,
            maximum=1000,
            default=REPEATS,
            determines_run=False,
        ),
        steps=value("integer", "Steps to record.", minimum=1, default=10),
    )
    products = (TRACE,)
    tabulated = True
    compared = True
    records_steps = True

    @classmethod
    def steps(cls, values):
        return _SKIPPED + values["steps"] + 1  # In the last one, operations are counted.

    def environment(self, strategy):
        return {TRACED: f"{_SKIPPED}:{self.values['steps']}:{self.folder.resolve()}"}

    @contextmanager
    def around(self, process, node):
        yield
        if process:
            return
        first = self.folder / "rank0.trace.json.gz"
        if not first.exists():
            raise Unavailable(
                f"no trace was left: a trace needs more than {_SKIPPED} steps. In a program, it "
                "also needs PyTorch, and steps that are seen or told by the hook"
            )
        with (
            gzip.open(first) as packed,
            atomic(self.folder.parent / TRACE) as path,
            path.open("wb") as unpacked,
        ):
            shutil.copyfileobj(packed, unpacked)
