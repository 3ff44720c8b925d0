"""The schema of a run.json, checked when a file is written or read, and the outcome of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from escala.core.console import say
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import read_schema
from escala.probes import PROBES, with_probe_settings
from escala.runtime.layout import with_layout
from escala.strategies.knobs import all_knobs, strategy_knobs

#: The format of a run.json. Files of another format are refused.
FORMAT = 10
SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "run.schema.yaml"


def compose_schema(schema: dict) -> dict:
    """Return the schema of run.json, completed by knobs, and by names and results of probes."""
    names = {"instrument": {"enum": [None, *PROBES]}}
    results = {name: probe.result for name, probe in PROBES.items() if probe.result}
    declared = schema["properties"]["knobs"]
    knobs = declared | {
        "required": list(strategy_knobs()),
        "properties": {name: knob.value_schema for name, knob in all_knobs().items()}
        | declared["properties"],
    }
    return schema | {
        "required": [*schema.get("required", []), *results],
        "properties": with_probe_settings(schema["properties"], results) | {"knobs": knobs},
        "$defs": schema.get("$defs", {}) | names,
    }


def validate_run(result: dict) -> None:
    """Check the content of a run.json against its schema.

    Raises
    ------
    ValueError : a key is unknown or missing, or the schema does not allow its value. The message
        names the key.
    """
    error = best_match(_validator().iter_errors(result))
    if error is not None:
        key = ".".join(map(str, error.absolute_path)) or "(top level)"
        raise ValueError(f"run.json: {key}: {error.message}")


_say_once = cache(say)
#: The content of each file that this process has read, with the file's time, size and inode, by
#: path.
_READ: dict[Path, tuple[tuple[int, int, int], dict]] = {}


def read_result(path: Path) -> dict:
    """Return the content of a run.json, or of a copy of it in `sessions/`.

    A process reads a file once, and again when the file has changed. Callers share its values.

    Raises
    ------
    InputError : the file is incomplete, for example after a power loss, or has another format.
    FileNotFoundError : there is no such file.
    """
    status = path.stat()
    version = status.st_mtime_ns, status.st_size, status.st_ino
    if path in _READ and _READ[path][0] == version:
        return dict(_READ[path][1])
    try:
        run = json.loads(path.read_bytes())
    except ValueError:
        run = None
    if not isinstance(run, dict) or "status" not in run:
        problem = f"{status.st_size} bytes", "is empty, cut off, or not a run.json"
    elif run.get("format") != FORMAT:
        problem = f"format {run.get('format')}", f"is not the present one, {FORMAT}"
    else:
        _READ[path] = version, with_layout(run)
        return dict(_READ[path][1])
    experiment = next((p.parent for p in path.parents if p.name == "runs"), path.parent)
    remedy = f"remove it by `{call('retry', experiment)}`, then the same call again"
    raise InputError(path, *problem, remedy)


def read_session(path: Path) -> dict | None:
    """Return the content of an older measurement in `sessions/`, or None if it cannot be read.

    A process names such a file once on standard error, and goes on without it.
    """
    try:
        return read_result(path)
    except InputError as error:
        _say_once(f"left out: {error}")
        return None


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(compose_schema(read_schema(SCHEMA)))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run, or of a part of it.

    Attributes
    ----------
    status : as in a run.json.
    reason : why the status is not ok.
    stopped_seconds : seconds for which processes stood still, in a run that is ok.
    measured : a part of the run.json.
    """

    status: str
    reason: str | None = None
    stopped_seconds: float = 0.0
    measured: Mapping[str, Any] = field(default_factory=dict)


def merge_records(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of parts: mappings are merged, lists joined, other values replaced."""
    record: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            before = record.get(key)
            if isinstance(value, Mapping):
                value = merge_records(before if isinstance(before, Mapping) else {}, value)
            elif isinstance(value, list) and isinstance(before, list):
                value = before + value
            record[key] = value
    return record
