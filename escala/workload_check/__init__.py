"""Check a user's workload, in its folder, against the contract of `escala.workloads`.

Each check is one function. It returns what it found, or raises `Refused` with the reason and the
remedy. An error in the workload's own code is an answer too, with its file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from escala.core import user_code
from escala.core.answer import Answer
from escala.core.errors import InputError
from escala.workload_check.fits import FIT_CHECKS
from escala.workload_check.steps import STEPS_CHECKS
from escala.workload_check.subject import NAME, Refused, Subject, subject
from escala.workloads import WORKLOADS

__all__ = ["FIT_CHECKS", "STEPS_CHECKS", "Refused", "Subject", "answers", "subject"]

#: Checks without which the later ones would only fail for the same reason.
PRECONDITIONS = frozenset({"build", "row losses", "fit"})


def answers(
    folder: Path,
    scratch: Path,
    *,
    dataset: Path | None = None,
    kind: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Answer]:
    """Check a workload and yield an answer for each part of the contract.

    Once the workload cannot be read, has no data, does not build, or computes wrong losses of rows,
    nothing more is checked. `scratch` is an empty folder. The first rows of the split in the folder
    `dataset` are taken; without it, rows are drawn at random after the `example` that the workload
    declares. `kind` is the folder of the dataset's kind, where that is outside the project.
    `settings` are those of the workload in an experiment; those with a default may be absent.
    """
    try:
        found = subject(folder, scratch, dataset, kind, settings or {})
    except InputError as error:
        yield Answer("declaration", False, f"{error.where}: {error.reason}", error.remedy)
        return
    declared = WORKLOADS[NAME]
    how, checks = ("fit", FIT_CHECKS) if declared.is_fitted else ("steps", STEPS_CHECKS)
    yield Answer("declaration", True, f"trained by {how}, reads {declared.data_kind}")
    for name, check in checks.items():
        answer = answer_of(name, check, found, folder)
        yield answer
        if name in PRECONDITIONS and not answer.able:
            return


def answer_of(name: str, check: Callable[[Subject], str], subject: Subject, folder: Path) -> Answer:
    """Return what a check finds; the code of a user may raise anything."""
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
