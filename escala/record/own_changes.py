"""Find what a program reads that has changed since its run was planned.

A user edits a script while its experiment runs. The next call notices that, and measures with the
new script. What was measured in between must not be stored as a measurement of the old one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.data import KINDS
from escala.data.base import DESCRIPTION
from escala.record.key import WHERE
from escala.workloads.program import Program
from escala.workloads.program_environment import file_digests


def changed(request: Mapping[str, Any], data: Path) -> list[str]:
    """Return the names of a program's files, and of its data, that are not as they were.

    Parameters
    ----------
    request : of a run; None of one that is no program's was changed.
    data : folder of its split.
    """
    if WHERE not in request:
        return []
    known, now = request["program"]["files"], _now(request)
    found = [name for name, digest in known.items() if now.get(name) != digest]
    kind = KINDS[read_json(data / DESCRIPTION)["kind"]]
    return found + (kind.load("watch").changed(data) if kind.has("watch") else [])


def written(request: Mapping[str, Any]) -> list[str]:
    """Return the names of files that a program's folder holds now and that count as its own."""
    if WHERE not in request:
        return []
    return sorted(_now(request).keys() - request["program"]["files"].keys())


def _now(request: Mapping[str, Any]) -> dict[str, str]:
    try:
        return file_digests(Program.from_plan(request[WHERE]["program"]))
    except (InputError, OSError):  # A file is gone.
        return {}
