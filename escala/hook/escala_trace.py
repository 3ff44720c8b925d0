"""Record some steps of each rank by PyTorch's own profiler, as a trace that Perfetto shows.

`ESCALA_TRACE` is `AFTER:STEPS:FOLDER`: the number of first steps, in which libraries load and
compile; the number of steps to record; and the folder of the files `rankN.trace.json.gz`. A step
calls `mark`: one that is seen or told (`escala_seen`), or one of Escala's own networks.
"""

import atexit
import os
import sys
from pathlib import Path

#: Without the variable nothing is recorded.
_after, _steps, _folder = os.environ.get("ESCALA_TRACE", "0:0:").split(":", 2)
_seen, _profiler, _rank = 0, None, "0"
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
        # With a schedule, each step is a span.
        _profiler = torch.profiler.profile(schedule=lambda step: record)
        _profiler.start()
        # A process that ends while its profiler is on would crash.
        atexit.register(end)
    elif _seen == int(_after) + int(_steps):
        end()
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
