"""Python imports this at the start of each process of a program, to see its imports and files.

Then it imports the `sitecustomize` of the program's own environment, if there is one.
"""

import os
import sys

_HERE, _PATH = os.path.dirname(os.path.abspath(__file__)), sys.path[:]
_OURS = sys.modules.pop("sitecustomize")

try:
    import escala_processes  # noqa: F401
except Exception:  # An older Python does without.
    pass

sys.path[:] = [folder for folder in _PATH if os.path.abspath(folder) != _HERE]
try:
    import sitecustomize  # noqa: F401
except ImportError as _error:
    sys.modules["sitecustomize"] = _OURS
    if getattr(_error, "name", "") != "sitecustomize":
        raise
finally:
    sys.path[:] = _PATH + [folder for folder in sys.path if folder not in _PATH]
