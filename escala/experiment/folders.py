"""Add the workloads and the kinds of datasets in folders that an experiment names."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from escala import data, workloads
from escala.core import errors, plugins
from escala.core.engines import ENGINES
from escala.core.errors import InputError, Unavailable
from escala.core.files import read_yaml
from escala.core.yaml12 import read
from escala.data.paths import expand_path
from escala.engines import environments
from escala.experiment.schema import (
    NAME_RULE,
    complete,
    is_allowed,
    is_name,
    program_schema,
    with_common,
    with_python_patterns,
)

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas" / "declarations"
PATH, COMMAND = "path", "command"
GUIDES = {
    plugins.WORKLOADS: "docs/how-to/bring-your-own-workload.md",
    plugins.KINDS: "docs/how-to/extend.md",
}


@dataclass(frozen=True)
class Part:
    """A part of an experiment that plug-ins in folders extend: its kinds or its workloads.

    Attributes
    ----------
    key : the key of the experiment under which the plug-ins are named.
    word : the noun for one plug-in, in messages.
    files : tuples of files. A folder needs its declaration and one file of each tuple.
    known : the registry of the plug-ins.
    add : adds a folder to the registry.
    """

    key: str
    word: str
    files: tuple[tuple[str, ...], ...]
    known: Mapping[str, Any]
    add: Callable[[str, Path], None]

    @property
    def declaration(self) -> str:
        return plugins.DECLARATIONS[self.key]


_ARRAYS = (("__init__.py",), ("arrays.py",))
KINDS = Part(plugins.KINDS, "kind", _ARRAYS, data.KINDS, data.add)
_FIT = f"{workloads.FIT}.py"
_MODELS = ((*(f"{engine.module}.py" for engine in ENGINES.values()), _FIT),)
WORKLOADS = Part(plugins.WORKLOADS, "workload", _MODELS, workloads.WORKLOADS, workloads.add)
#: Programs of the experiments that this process has read. No workload may have the name of a
#: program.
PROGRAMS: dict[str, workloads.Workload] = {}


def adopt(settings: Any, origin: str) -> dict[str, workloads.Workload]:
    """Add the kinds and workloads that an experiment names by a `path`, and return its programs.

    Parameters
    ----------
    settings : the content of the experiment's file, which is not checked yet.
    origin : the file, for messages.

    Raises
    ------
    InputError : a folder is missing or lacks a file, a file in it is wrong, or its name is taken.
    """
    programs = {}
    for part in (KINDS, WORKLOADS):
        entries = settings.get(part.key) if isinstance(settings, Mapping) else None
        for name, entry in entries.items() if isinstance(entries, Mapping) else ():
            if not isinstance(name, str) or not isinstance(entry, Mapping):
                continue
            where = f"{origin}: {part.key}.{name}"
            program = None
            if PATH in entry:
                program = add(part, name, entry[PATH], where)
            elif part is WORKLOADS and COMMAND in entry:
                _require_name(name, where)
                if name in workloads.WORKLOADS:
                    reason = "is the name of another workload already"
                    remedy = "choose another name, or make a call of its own for each experiment"
                    raise InputError(where, name, reason, remedy)
                # The schema checks what is declared afterwards.
                keys = program_schema()["properties"]
                declared = {key: entry[key] for key in entry if key in keys} | {"where": where}
                program = workloads.program(with_interpreter(declared, where), Path.cwd())
            if program:
                programs[name] = program
    PROGRAMS.update(programs)
    return programs


def with_interpreter(declared: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the declaration of a program, with the name of an engine replaced by its interpreter.

    Raises
    ------
    InputError : the environment of the engine could not be made, or an interpreter is named as
        well.
    """
    environment = declared.get("environment")
    engine = environment.get("engine") if isinstance(environment, Mapping) else None
    # The schema refuses a name that is no engine.
    if not isinstance(engine, str) or engine not in ENGINES:
        return declared
    where = f"{where}.environment.engine"
    if "python" in environment:
        raise InputError(where, engine, "has an interpreter, and python names one", "name one")
    try:
        python = environments.provide(engine)
    except Unavailable as error:
        reason, _, remedy = str(error).partition(". Remedy: ")
        raise InputError(where, engine, reason, remedy) from None
    others = {key: value for key, value in environment.items() if key != "engine"}
    return {**declared, "environment": {**others, "python": python}}


def _require_name(name: str, where: str) -> None:
    if not is_name(name):
        raise InputError(where, name, "not allowed as a name", NAME_RULE)


def add(part: Part, name: str, path: Any, where: str) -> workloads.Workload | None:
    """Check one folder and add it to the registry, or return its program.

    Parameters
    ----------
    path : the path as the user wrote it. Environment variables and `~` are expanded. A relative
        path starts in the working directory.
    where : the key that names the folder, for messages.

    Raises
    ------
    InputError : see `adopt`.
    """
    _require_name(name, where)
    where = f"{where}.{PATH}"
    if not isinstance(path, str) or not path:
        raise InputError(where, path, "is not a path", f"give the folder of the {part.word}")
    folder = Path(expand_path(path, where)).resolve()
    if not folder.is_dir():
        remedy = f"give the folder that holds {part.declaration}"
        raise InputError(where, path, f"there is no folder {folder}", remedy)
    file = folder / part.declaration
    content = read(file) if part is WORKLOADS and file.is_file() else None
    is_program = isinstance(content, Mapping) and COMMAND in content
    for files in ((part.declaration,), *(() if is_program else part.files)):
        if not any((folder / file).is_file() for file in files):
            remedy = f"add it, as {GUIDES[part.key]} shows"
            raise InputError(where, path, f"holds no {' or '.join(files)}", remedy)
    known = part.known if is_program or part is KINDS else {**PROGRAMS, **part.known}
    if name in known and known[name].folder.resolve() != folder:
        reason = f"is the name of the {part.word} in {known[name].folder} already"
        raise InputError(where, name, reason, "choose another name")
    if is_program:
        complete(content, with_python_patterns(program_schema()), str(file))
        return workloads.program(with_interpreter(content, str(file)), folder)
    check_declaration(part, folder)
    _add_code(part, name, folder)
    return None


def declaration(part: Part, folder: Path) -> dict:
    """Return what a folder declares, with the defaults of the declaration filled in.

    Raises
    ------
    InputError : a key is missing or unknown, or a value is not allowed.
    """
    file = folder / part.declaration
    return complete(read(file), _schema(file.stem), str(file))


@cache
def _schema(name: str) -> dict:
    return with_python_patterns(read_yaml(SCHEMAS / f"{name}.schema.yaml"))


def check_declaration(part: Part, folder: Path) -> None:
    """Refuse a declaration if the schema of an experiment cannot take its settings or knobs.

    Raises
    ------
    InputError : with the place in the file; or `declaration` raises it.
    """
    file, declared = folder / part.declaration, declaration(part, folder)
    if part is WORKLOADS:
        present = [name for name in _MODELS[0] if file.with_name(name).is_file()]
        networks = [name for name in present if name != _FIT]
        if networks and _FIT in present:
            remedy = "keep one: a fit, or a model that takes steps"
            raise InputError(file.with_name(_FIT), None, f"stands beside {networks[0]}", remedy)
        trained_by = "steps" if networks else "fit"
        if declared.get("trained_by", trained_by) not in (None, trained_by):
            where, reason = f"{file}: trained_by", "follows from the names of the modules, here "
            remedy = (
                f"remove the key, or rename {present[0]}: {_FIT} is a fit, the others take steps"
            )
            raise InputError(where, declared["trained_by"], reason + present[0], remedy)
    settings = declared["settings"]
    schemas = {"settings": settings, "knobs": {"properties": declared.get("knobs", {})}}
    meta = Draft202012Validator(_schema("setting"))
    for key, schema in schemas.items():
        if error := best_match(meta.iter_errors(schema)):
            where = ".".join(map(str, [f"{file}: {key}", *error.absolute_path]))
            reason = error.schema.get("description", f"is not JSON Schema: {error.message}")
            remedy = "write it as the declarations of the project do"
            raise InputError(where, error.instance, reason, remedy)
    optional = settings["properties"].keys() - {*settings.get("required", [])}
    for name in sorted(optional) if part is WORKLOADS else ():
        if "default" not in settings["properties"][name]:
            where, remedy = f"settings.properties.{name}", "add a default, or add it to required"
            raise InputError(f"{file}: {where}", name, "is not required and has no default", remedy)
    if part is KINDS:
        schemas["settings"] = with_common(settings)
    for where, schema in schemas.items():
        for place, setting in _defaults(schema, where):
            if not is_allowed(setting["default"], setting):
                reason = "is not what the schema alongside it allows"
                where = f"{file}: {place}.default"
                raise InputError(where, setting["default"], reason, "give a value that it allows")


def _defaults(schema: Mapping[str, Any] | bool, where: str) -> Iterator[tuple[str, dict]]:
    """Yield the place and the schema of every key with a default, at any depth."""
    if isinstance(schema, bool):
        return
    for name, setting in schema.get("properties", {}).items():
        if not isinstance(setting, bool) and "default" in setting:
            yield f"{where}.{name}", setting
        yield from _defaults(setting, f"{where}.{name}")
    for alternative in schema.get("oneOf", []):
        yield from _defaults(alternative, where)


def _add_code(part: Part, name: str, folder: Path) -> None:
    """Add a folder. Refuse code that cannot be parsed, and a kind whose package is incomplete.

    Raises
    ------
    InputError : with the file and the line.
    """
    for file in sorted(folder.rglob("*.py")):
        if any(parent.startswith(".") for parent in file.relative_to(folder).parts):
            continue
        try:
            ast.parse(file.read_bytes())
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            where = f"{file}, line {line}" if line else file
            reason = f"is not Python: {getattr(error, 'msg', error)}"
            raise InputError(where, file.name, reason, "correct it") from None
    part.add(name, folder)
    if part is not KINDS:
        return
    file = folder / "__init__.py"
    try:
        module = data.KINDS[name].settings
    except Exception as error:
        where = errors.place_in(error, folder) or file
        reason = f"cannot be imported: {errors.text_of(error)}"
        raise InputError(where, file.name, reason, "correct it") from error
    if not callable(getattr(module, "check", None)):
        remedy = f"add it, as {GUIDES[KINDS.key]} shows"
        raise InputError(file, "check", "is not a function in it", remedy)
