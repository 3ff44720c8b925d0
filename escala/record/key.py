"""The cache key of a run: what is declared to determine the run, besides its data and its request.

The key contains

- the code that trains: the folders of the trainer, of the workload and of the kind of data, what
  all trainers share, the entry of the strategy, and the file of the probe;
- the versions of the packages in the environment of the run, and of the compiler where something is
  compiled;
- the kind of machine.

For a program, the code is the entry of the strategy alone: its files are in the request. The code
that starts runs, times them and records them counts by one number, `RECORD`.

A user edits a script while its experiment runs. The next call notices that, and measures with the
new script. What was measured in between must not be stored as a measurement of the old one.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from escala import engines, training, workloads
from escala.cache.code import LIBRARIES, Code, modules
from escala.core import hardware, packages, proc
from escala.core.engines import ENGINES
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.core.readable import name_first
from escala.data import KINDS
from escala.data.base import DESCRIPTION
from escala.probes import PROBES
from escala.programs.environment import digests
from escala.programs.program import Program
from escala.strategies import STRATEGIES, Strategy
from escala.workloads import WORKLOADS

#: Raise this number when a measurement of a run, or its meaning, changes. Then all runs are
#: measured again.
RECORD = 2
#: The key of a request that contains locations. Locations are no part of the cache key.
WHERE = "start"
#: Attributes of a strategy's declaration that determine no result: they are for people.
FOR_PEOPLE = ("position", "title", "option")


def code(workload: str, strategy: str, probe: str | None = None) -> Code:
    """Return the code and the packages that determine a run.

    Parameters
    ----------
    probe : the name of the probe, None for a timing run.
    """
    declared = WORKLOADS.get(workload)
    paths = {"probe": Path(inspect.getfile(PROBES[probe]))} if probe else {}
    if declared is None or declared.is_program:
        return Code(paths)
    model = model_code(workload, engines.engine_name(strategy))
    for package in (training, workloads):
        paths |= modules(Path(package.__file__).parent)
    return Code(paths | model.paths, model.versions)


def model_code(workload: str, engine: str | None) -> Code:
    """Return the code of a model and of its trainer, with the packages of the trainer."""
    declared = WORKLOADS[workload]
    paths = {"workload": declared.folder}
    if kind := KINDS.get(declared.data_kind):
        paths |= kind.code().paths
    if declared.takes_steps:
        return Code(paths | engines.code(engine), engines.versions(engine, declared.packages))
    return Code(paths, packages.versions((*LIBRARIES, *declared.packages)))


def code_sha256(workload: str, strategy: str, probe: str | None) -> str:
    """Return one digest, in hexadecimal, of the code that determines a run."""
    parts = [RECORD, _entry(strategy), code(workload, strategy, probe).digest()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@cache
def _entry(strategy: str) -> list[str]:
    """Return the code of the classes of a strategy, without words for people."""
    classes, texts = STRATEGIES[strategy].__mro__, []
    for declared in classes[: classes.index(Strategy)]:
        [tree] = ast.parse(inspect.getsource(declared)).body
        # Leave out docstrings, and attributes that decide only how the strategy is shown. `unparse`
        # leaves out comments.
        tree.body = [
            part
            for part in tree.body
            if not isinstance(part, ast.Expr)
            and not (isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) in FOR_PEOPLE)
        ]
        texts.append(ast.unparse(tree))
    return texts


def request_sha256(request: dict) -> str:
    """Return the digest of a request, in hexadecimal."""
    # The digest is of the request as a job reads it: keys of JSON are text.
    written = json.dumps(json.loads(json.dumps(_result_settings(request))), sort_keys=True)
    return hashlib.sha256(written.encode()).hexdigest()


def parameters(request: dict) -> dict:
    """Return the settings that determine a measurement, besides its split and its code."""
    settings = _result_settings(request) | {
        "record": RECORD,
        "entry": _entry(request["strategy"]),
    }
    if (declared := WORKLOADS.get(request["workload"])) and declared.takes_steps:
        engine = ENGINES[engines.engine_name(request["strategy"])]
        if engine.compiles is True or request["knobs"].get(engine.compiles):
            settings["compiler"] = _compiler()
    return settings


_compiler = cache(packages.compiler)


def _result_settings(request: dict) -> dict:
    return {key: value for key, value in request.items() if key != WHERE}


def machine() -> dict:
    """Return the properties by which kinds of machines differ.

    A measurement of one machine is also used for other machines of its kind. Memory is the
    installed memory (`escala.core.hardware.memory_gib`), as in `escala.analysis.comparable`. Where
    processes may not read each other's memory, MPI ranks exchange in another way.
    """
    described = hardware.describe()
    # Machines of one kind may have several names, and virtual machines of several kinds the same.
    del described["cpu"]
    installed = hardware.memory_gib(described.pop("memory_bytes"))
    return described | {"memory_gib": installed, "single_copy": proc.can_read_child()}


def find_changes(request: Mapping[str, Any], data: Path) -> list[str]:
    """Return the names of a program's files, and of its data, that have changed since the request.

    Parameters
    ----------
    request : request of a run. For a run without a program, the result is empty.
    data : folder of its split.
    """
    if WHERE not in request:
        return []
    before, now = request["program"]["files"], _digests_now(request)
    changes = [name for name, digest in before.items() if now.get(name) != digest]
    settings = KINDS[read_json(data / DESCRIPTION)["kind"]].settings
    return changes + (settings.find_changes(data) if hasattr(settings, "find_changes") else [])


def notes_on_changes(request: Mapping[str, Any], data: Path) -> Iterator[str]:
    """Yield notes on the files of a program that changed or appeared during its run.

    Parameters
    ----------
    request, data : as in `find_changes`.
    """
    if names := find_changes(request, data):
        yield (
            f"{name_first(names)} changed since this call began. The run may have used the old or "
            "the new content, and is not stored. Remedy: make the same call again"
        )
    if WHERE in request and (
        new := sorted(_digests_now(request).keys() - request["program"]["files"])
    ):
        yield (
            f"its folder holds new files: {name_first(new)}. They count as files of the "
            "program, so the next call measures it again. Remedy: let it write into {output}, or "
            "name the files that it consists of: files: ['*.py']"
        )


def _digests_now(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the present digests of a program's files, by name; empty if a file is missing."""
    try:
        return digests(Program.from_plan(request[WHERE]["program"]))
    except (InputError, OSError):  # A file cannot be read.
        return {}
