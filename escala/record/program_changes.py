"""Find what a program reads that has changed since its run was planned.

A user edits a script while its experiment runs. The next call notices that, and measures with the
new script. What was measured in between must not be stored as a measurement of the old one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.core.readable import name_first
from escala.data import KINDS
from escala.data.base import DESCRIPTION
from escala.programs.environment import file_digests
from escala.programs.program import Program
from escala.record.key import WHERE


def changed(request: Mapping[str, Any], data: Path) -> list[str]:
    """Return the names of a program's files, and of its data, that are not as they were.

    Parameters
    ----------
    request : of a run; None of one that is not a program's was changed.
    data : folder of its split.
    """
    if WHERE not in request:
        return []
    known, now = request["program"]["files"], _now(request)
    found = [name for name, digest in known.items() if now.get(name) != digest]
    kind = KINDS[read_json(data / DESCRIPTION)["kind"]]
    return found + (kind.load("watch").changed(data) if kind.has("watch") else [])


def notes(request: Mapping[str, Any], data: Path) -> Iterator[str]:
    """Yield what is to be said of a program's run whose files changed, or that wrote new ones.

    Parameters
    ----------
    request, data : as of `changed`.
    """
    if others := changed(request, data):
        yield (
            f"{name_first(others)} changed since this call began. The run may have used the old or "
            "the new content, and is not stored. Remedy: make the same call again"
        )
    if WHERE in request and (new := sorted(_now(request).keys() - request["program"]["files"])):
        yield (
            f"its folder holds new files: {name_first(new)}. They count as files of the "
            "program, so the next call measures it again. Remedy: let it write into {output}, or "
            "name the files that it consists of: files: ['*.py']"
        )


def _now(request: Mapping[str, Any]) -> dict[str, str]:
    try:
        return file_digests(Program.from_plan(request[WHERE]["program"]))
    except (InputError, OSError):  # A file is gone.
        return {}
