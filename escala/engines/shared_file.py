"""An anonymous file of the first rank (man 2 memfd_create), as memory that ranks of a node share.

The others open it while the first one waits for them. It has no name, so it ends with the last of
their processes, however they end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from escala.core.errors import Unavailable
from escala.engines.base import Group

Opened = TypeVar("Opened")


def opened(among: Group, opening: Callable[[str], Opened], instead: str) -> Opened:
    """Return what each rank makes of the file that all share, which is closed then.

    Each rank is a process on one node, and has started. All call this, and others of their calls of
    this in the same order.

    Parameters
    ----------
    opening : opens a path, which is valid during this call. The first rank is called before all
        others, with an empty file, and gives it its size.
    instead : what needs no such memory, to name as a remedy.

    Raises
    ------
    Unavailable : the first rank cannot make a file, or another rank cannot reach it, for example
        because it runs in another container.
    """
    [rank] = among.place.ranks
    try:
        file = os.memfd_create("escala") if rank == 0 else None
    except OSError as error:
        raise Unavailable(f"no memory that ranks share: {error}") from error
    try:
        result = None if file is None else opening(f"/proc/self/fd/{file}")
        mine = [0] * 4 if file is None else [os.getpid(), file, *_identity(os.fstat(file))]
        process, number, *identity = map(int, among.total(np.array(mine, np.float64)))
        if file is None:
            path = f"/proc/{process}/fd/{number}"
            _require_same(path, identity, instead)
            result = opening(path)
        # Now all have opened it.
        among.total(np.zeros(1))
    finally:
        if file is not None:
            os.close(file)
    return result


def _identity(status: os.stat_result) -> list[int]:
    return [status.st_dev, status.st_ino]


def _require_same(path: str, identity: list[int], instead: str) -> None:
    """Refuse a path that is not the file of the first rank."""
    try:
        same = _identity(Path(path).stat()) == identity
    except OSError:
        same = False
    if not same:
        raise Unavailable(
            f"{path} is not the memory of the first rank: do all ranks run in one container? "
            f"Otherwise use `{instead}`"
        )
