"""Find where an error arose in a user's code, and describe it."""

from __future__ import annotations

import re
import traceback
from pathlib import Path


def location(error: BaseException, folder: Path) -> str | None:
    """Return the file and line of a folder's code where an error was raised, or None.

    TensorFlow raises a new error for a compiled function; the file and line are in its text.
    """
    raised = [(each.filename, each.lineno) for each in traceback.extract_tb(error.__traceback__)]
    raised += re.findall(r'File "([^"]+)", line (\d+)', str(error))
    inside = [place for place in raised if folder in Path(place[0]).parents]
    return "{}, line {}".format(*inside[-1]) if inside else None


def message(error: BaseException) -> str:
    """Return the type and the text of an error, without what TensorFlow and Keras add to it.

    They add a traceback, and the names and the arguments of the layers that were called.
    """
    text = str(error).strip()
    kind = f"{type(error).__name__}: "
    if text.startswith(("in user code:", "Exception encountered when calling")):
        # The text of a traceback names the type itself.
        kind = "" if "in user code:" in text else kind
        text = text.partition("Call arguments received")[0].strip().split("\n\n")[-1].strip()
    return kind + text
