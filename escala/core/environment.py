"""Environment variables that the jobs of a workflow inherit from the process that starts them."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

#: Environment variable that holds the name of the session.
SESSION_VARIABLE = "ESCALA_SESSION"


def prepend_search_paths(root: Path) -> None:
    """Put this interpreter first on PATH, and the project folder first on PYTHONPATH.

    Parameters
    ----------
    root : the project folder, which holds `escala/` and `scripts/`.
    """
    _prepend("PATH", Path(sys.executable).parent)
    _prepend("PYTHONPATH", root)


def start_session() -> None:
    """Give this call of the workflow a session name, which every measurement records.

    The name is written into the environment, which the jobs inherit.
    """
    os.environ[SESSION_VARIABLE] = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}"


def session() -> str:
    """Return the name of the session; start a session if there is none."""
    if not os.environ.get(SESSION_VARIABLE):
        start_session()
    return os.environ[SESSION_VARIABLE]


def _prepend(variable: str, folder: Path) -> None:
    current = os.environ.get(variable)
    os.environ[variable] = os.pathsep.join(filter(None, [str(folder), current]))
