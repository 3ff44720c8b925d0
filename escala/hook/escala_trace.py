"""Record some steps of each rank by PyTorch's own profiler, as a trace that Perfetto shows.

`ESCALA_TRACE` is `AFTER:STEPS:FOLDER`: the number of first steps, in which libraries load and
compile; the number of steps to record; and the folder of the files `rankN.trace.json.gz`. A step
calls `mark`: one that is seen or told (`escala_seen`), or one of Escala's own networks.

Of the step after these, PyTorch counts the floating-point operations. They are in
`operationsN.json`, with what matrix products in float32 make of them in a second on the same
device. Operations of compiled code are not counted.
"""

import atexit
import json
import os
import sys
import time
from pathlib import Path

#: Without the variable nothing is recorded.
_after, _steps, _folder = os.environ.get("ESCALA_TRACE", "0:0:").split(":", 2)
_seen, _profiler, _counter, _rank = 0, None, None, "0"
#: For how many seconds matrix products are measured, and their numbers of rows.
_SECONDS, _ROWS, _ROWS_ON_GPU = 0.2, 1024, 4096
#: Variables by which launchers tell a process its rank.
_RANKS = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def mark():
    """Note that a step ended; begin and end the record."""
    global _seen, _profiler, _rank
    torch = sys.modules.get("torch")
    if torch is None:
        return
    _seen += 1
    if _seen == int(_after):
        group = torch.distributed
        if group.is_available() and group.is_initialized():
            _rank = str(group.get_rank())
        else:
            _rank = next((os.environ[name] for name in _RANKS if name in os.environ), "0")
        record = torch.profiler.ProfilerAction.RECORD
        # With a schedule, each step is a span. Shapes tell what collectives of Gloo move.
        _profiler = torch.profiler.profile(schedule=lambda step: record, record_shapes=True)
        _profiler.start()
        # A process that ends while its profiler is on would crash.
        atexit.register(end)
    elif _seen == int(_after) + int(_steps):
        end()
        _begin_counting()
    elif _counter is not None:
        _end_counting()
    elif _profiler is not None:
        _profiler.step()


def end():
    """Write the trace."""
    global _profiler
    if _profiler is not None:
        ended, _profiler = _profiler, None
        ended.stop()
        partial = "%s/%d.partial.json.gz" % (_folder, os.getpid())
        ended.export_chrome_trace(partial)
        Path(partial).replace("%s/rank%s.trace.json.gz" % (_folder, _rank))


def _compiled():
    """Return how often code was compiled; a count misses its operations."""
    compiler = sys.modules.get("torch._dynamo.utils")
    return sum(compiler.counters["frames"].values()) if compiler else 0


def _begin_counting():
    global _counter
    try:
        from torch.utils.flop_counter import FlopCounterMode

        if not _compiled():
            _counter = FlopCounterMode(display=False)
            _counter.__enter__()
    except Exception as error:  # Such as an old version.
        _counter = None
        print("escala: operations of a step are not counted: %r" % error, file=sys.stderr)


def _end_counting():
    global _counter
    ended, _counter = _counter, None
    try:
        ended.__exit__(None, None, None)
        if not _compiled():
            products = _matrix_products()
            counted = {"step": ended.get_total_flops(), "matrix_products_per_second": products}
            Path("%s/operations%s.json" % (_folder, _rank)).write_text(json.dumps(counted))
    except Exception as error:  # Such as too little memory for the products.
        print("escala: operations of a step are not counted: %r" % error, file=sys.stderr)


def _matrix_products():
    """Return how many operations of matrix products this process makes in a second."""
    import torch

    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    rows, device = (_ROWS_ON_GPU, "cuda") if on_gpu else (_ROWS, "cpu")
    matrix = torch.ones(rows, rows, dtype=torch.float32, device=device)
    made, began = 0, time.monotonic()
    with torch.no_grad(), torch.autocast(device, enabled=False):
        while made < 2 or time.monotonic() - began < _SECONDS:
            if made == 1:  # The first one includes what a library prepares.
                began = time.monotonic()
            torch.mm(matrix, matrix)
            if on_gpu:
                torch.cuda.synchronize()
            made += 1
    return (made - 1) * 2 * rows**3 / (time.monotonic() - began)
