"""Record some steps of a program by PyTorch's own profiler, as a trace that Perfetto shows.

`escala_steps` imports this where `ESCALA_TRACE` is `STEPS:FILE`, and tells of each mark. The first
steps, in which libraries load and compile, are left out.
"""

import atexit
import os
import sys
from pathlib import Path

#: Steps before those that are recorded.
LEFT_OUT = 3
_steps, _path = os.environ["ESCALA_TRACE"].split(":", 1)
_seen, _profiler = 0, None


def mark(event):
    global _seen, _profiler
    torch = sys.modules.get("torch")
    # Of several processes of one program, the first rank is recorded.
    if event != "step" or torch is None or os.environ.get("RANK", "0") != "0":
        return
    _seen += 1
    if _seen == LEFT_OUT:
        _profiler = torch.profiler.profile()
        _profiler.start()
        atexit.register(_end)
    elif _seen == LEFT_OUT + int(_steps):
        _end()


def _end():
    global _profiler
    if _profiler is not None:
        ended, _profiler = _profiler, None
        ended.stop()
        own = "%s.%d" % (_path, os.getpid())
        ended.export_chrome_trace(own)
        Path(own).replace(_path)
