"""Record some steps by PyTorch's own profiler, as a trace that Perfetto shows.

`ESCALA_TRACE` is `AFTER:STEPS:FILE`: the number of first steps, in which libraries load and
compile; the number of steps to record; and the file. `escala_steps` and the recorder of Escala's
own networks call `mark`.
"""

import atexit
import os
import sys
from pathlib import Path

#: Without the variable nothing is recorded.
_after, _steps, _path = os.environ.get("ESCALA_TRACE", "0:0:").split(":", 2)
_seen, _profiler = 0, None


def mark(event):
    """Begin and end the record; `event` is a mark of the hook."""
    global _seen, _profiler
    torch = sys.modules.get("torch")
    # Of several processes, the first rank is recorded.
    if event != "step" or torch is None or os.environ.get("RANK", "0") != "0":
        return
    _seen += 1
    if _seen == int(_after):
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
        partial = "%s.%d" % (_path, os.getpid())
        ended.export_chrome_trace(partial)
        Path(partial).replace(_path)
