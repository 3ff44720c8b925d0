"""Record some steps of each rank by PyTorch's own profiler, as a trace that Perfetto shows.

`ESCALA_TRACE` is `AFTER:STEPS:FOLDER`: the number of first steps, in which libraries load and
compile; the number of steps to record; and the folder of the files `rankN.trace.json.gz`. A step
calls `mark`: one that is seen or told (`escala_seen`), or one of Escala's own networks.

Of the step before the last of the first ones, PyTorch counts the floating-point operations. They
are in `rankN.flops.json`, with what a matrix product in float32 makes of them in a second on the
same device. Operations of compiled code are not counted.
"""

import atexit
import json
import os
import sys
import time
from pathlib import Path

#: Without the variable nothing is recorded.
_after, _steps, _folder = os.environ.get("ESCALA_TRACE", "0:0:").split(":", 2)
_seen, _profiler, _rank = 0, None, "0"
_counter = None
#: For how many seconds matrix products are measured, and their numbers of rows.
_SECONDS, _ROWS, _ROWS_ON_GPU = 0.2, 1024, 8192
#: Variables by which launchers tell a process its rank.
_RANKS = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def mark():
    """Note that a step ended; begin and end the record."""
    global _seen, _profiler, _rank
    torch = sys.modules.get("torch")
    if torch is None:
        return
    _seen += 1
    if _seen == int(_after) - 2:
        _begin_counting()
    elif _seen == int(_after) - 1 and _counter is not None:
        _counter.__exit__(None, None, None)
    if _seen == int(_after):
        group = torch.distributed
        if group.is_available() and group.is_initialized():
            _rank = str(group.get_rank())
        else:
            _rank = next((os.environ[name] for name in _RANKS if name in os.environ), "0")
        record = torch.profiler.ProfilerAction.RECORD
        # With a schedule, each step is a span.
        _profiler = torch.profiler.profile(schedule=lambda step: record)
        _profiler.start()
        # A process that ends while its profiler is on would crash.
        atexit.register(end)
    elif _seen == int(_after) + int(_steps):
        end()
    elif _profiler is not None:
        _profiler.step()


def _begin_counting():
    """Count operations, except those of compiled code: there, counting may end the training."""
    global _counter
    compiler = sys.modules.get("torch._dynamo.utils")
    if compiler is None or not compiler.counters["frames"]:
        try:
            from torch.utils.flop_counter import FlopCounterMode
        except ImportError:  # An old version.
            return
        _counter = FlopCounterMode(display=False)
        _counter.__enter__()


def _matrix_products():
    """Return how many operations of matrix products this process makes in a second."""
    import torch

    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    rows = _ROWS_ON_GPU if on_gpu else _ROWS
    matrix, fastest = torch.ones(rows, rows, device="cuda" if on_gpu else "cpu"), float("inf")
    ends = time.monotonic() + _SECONDS
    with torch.no_grad():
        while time.monotonic() < ends:
            began = time.monotonic()
            torch.mm(matrix, matrix)
            if on_gpu:
                torch.cuda.synchronize()
            fastest = min(fastest, time.monotonic() - began)
    return 2 * rows**3 / fastest


def end():
    """Write the trace, and how many operations a step has."""
    global _profiler
    if _profiler is not None:
        ended, _profiler = _profiler, None
        ended.stop()
        partial = "%s/%d.partial.json.gz" % (_folder, os.getpid())
        ended.export_chrome_trace(partial)
        Path(partial).replace("%s/rank%s.trace.json.gz" % (_folder, _rank))
        if _counter is not None:
            counted = {
                "step": _counter.get_total_flops(),
                "matrix_products_per_second": _matrix_products(),
            }
            Path("%s/rank%s.flops.json" % (_folder, _rank)).write_text(json.dumps(counted))
