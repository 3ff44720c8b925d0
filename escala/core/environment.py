"""The environment that the jobs of a workflow inherit from the process that starts them."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

SESSION = "ESCALA_SESSION"


def prepare(root: Path) -> None:
    """Let jobs that call `python` find this interpreter first, and the library and its scripts.

    Parameters
    ----------
    root : folder that holds `escala/` and `scripts/`.
    """
    _prepend("PATH", Path(sys.executable).parent)
    _prepend("PYTHONPATH", root)


def start_session() -> None:
    """Name the series of measurements that this process begins."""
    os.environ[SESSION] = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}"


def session() -> str:
    """Return the name of the session, a new one if no workflow has begun it."""
    if not os.environ.get(SESSION):
        start_session()
    return os.environ[SESSION]


def _prepend(variable: str, folder: Path) -> None:
    kept = os.environ.get(variable)
    os.environ[variable] = os.pathsep.join(filter(None, [str(folder), kept]))
