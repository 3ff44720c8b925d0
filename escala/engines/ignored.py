"""Refuse a workload with a part that a run would ignore; each engine says what that is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType

from escala.core.errors import InputError

#: Why a part is ignored.
STEPS = "Escala makes the steps and computes `row_losses` itself"


def refuse(work: ModuleType, ignored: Iterable[tuple[str, str]]) -> None:
    """Refuse a workload with a part that a run would ignore.

    Parameters
    ----------
    work : the module of the workload's model.
    ignored : the reason and the remedy for each such part.

    Raises
    ------
    InputError : for the first one.
    """
    for reason, remedy in ignored:
        raise InputError(file_of(work), None, reason, remedy)


def unread(work: ModuleType, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield what a module holds under names that nothing reads, each with the remedy."""
    for name in names:
        if callable(value := vars(work).get(name)) or isinstance(value, list | tuple | dict):
            reason = f"{name} of the module is never used: {STEPS}"
            yield reason, f"remove {name}, or rename it if your code uses it"


def file_of(work: ModuleType) -> str:
    """Return the file of a workload's module, for messages."""
    return work.__file__ or work.__name__
