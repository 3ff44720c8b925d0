"""The answer of a check, as a line of text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from escala.core import user_code
from escala.core.errors import InputError

#: Characters of the column of names.
WIDTH = 22


@dataclass(frozen=True)
class Answer:
    """The result of a check: `detail` is the finding, or the reason for a no."""

    name: str
    able: bool
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = "" if self.able else f". Remedy: {self.remedy}"
        return f"{self.name:<{WIDTH}}{'yes' if self.able else 'no':<5}{self.detail}{remedy}"


class Refused(Exception):
    """A part of a user's does not do what its contract says."""

    def __init__(self, reason: str, remedy: str):
        self.reason, self.remedy = reason, remedy
        super().__init__(reason)


def answer_of(name: str, check: Callable[[Any], str], subject: Any, folder: Path) -> Answer:
    """Return what a check finds; the code of a user, in a folder, may raise anything."""
    try:
        return Answer(name, True, check(subject))
    except Refused as error:
        return Answer(name, False, error.reason, error.remedy)
    except InputError as error:
        return Answer(name, False, f"{error.where}: {error.reason}", error.remedy)
    except Exception as error:
        place = user_code.location(error, folder.resolve())
        reason = user_code.message(error).splitlines()[0]
        return Answer(name, False, reason, f"see {place or 'the docstring of escala.workloads'}")
