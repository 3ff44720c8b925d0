"""The answers on all parts of the contract of a workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from escala.core.engines import ENGINES
from escala.core.errors import Answer, InputError, answer_of
from escala.workload_check.fits import FIT_CHECKS
from escala.workload_check.network import PRECONDITIONS
from escala.workload_check.steps import STEPS_CHECKS
from escala.workload_check.subject import NAME, subject
from escala.workloads import WORKLOADS


def answers(
    folder: Path,
    scratch: Path,
    *,
    dataset: Path | None = None,
    kind: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    engine: str | None = None,
) -> Iterator[Answer]:
    """Check a workload and yield an answer for each part of the contract.

    Once the workload cannot be read, has no data, does not build, or computes wrong losses of rows,
    nothing more is checked. `scratch` is an empty folder. The first rows of the split in the folder
    `dataset` are taken; without it, rows are drawn at random after the `example` that the workload
    declares. `kind` is the folder of the dataset's kind, where that is outside the project.
    `settings` are those of the workload in an experiment; those with a default may be absent.
    `engine` trains; by default the first for which there is a network.
    """
    try:
        found = subject(folder, scratch, dataset, kind, settings or {}, engine)
    except InputError as error:
        yield Answer("declaration", False, f"{error.where}: {error.reason}", error.remedy)
        return
    declared = WORKLOADS[NAME]
    by = f"steps of {ENGINES[found.engine].title}" if found.engine else "a fit"
    yield Answer("declaration", True, f"trained by {by}, reads {declared.data_kind}")
    checks = FIT_CHECKS
    if found.engine:
        for answer in found.network_answers():
            yield answer
            if answer.name in PRECONDITIONS and not answer.able:
                return
        checks = STEPS_CHECKS
    for name, check in checks.items():
        answer = answer_of(name, check, found, folder)
        yield answer
        if name == "fit" and not answer.able:
            return
