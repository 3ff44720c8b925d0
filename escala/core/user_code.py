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
    """Return the type and the text of an error, without the traceback that TensorFlow adds."""
    text = str(error).strip()
    if text.startswith("in user code:"):
        return text.split("\n\n")[-1].strip()
    return f"{type(error).__name__}: {text}"
