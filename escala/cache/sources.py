"""Find the modules, data files and packages that a step depends on.

Modules are parsed, not imported, in milliseconds and without TensorFlow. A module reaches

- the modules it imports, at any depth of its code, with the packages that hold them;
- the modules it names in a string. The string is the dotted name of a module
  (`"escala.training.rank"`), or a package and a dot (`f"escala.report.figures.{name}"`), which
  stands for all modules in the package. A package named in a string is reached with all files of
  its folder, not only Python;
- a file or folder of `schemas/`, written as `… / "schemas" / "run.schema.yaml"`.

If a module of a folder outside the project (`escala.core.plugins`) is reached, the whole folder is.
Its files have relative paths, so moving the folder changes no digest.

Comments, docstrings, the layout of code and descriptions in schemas change no digest either. The
result of parsing a module is cached until the module changes.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from escala.core import plugins
from escala.core.files import atomic

ROOT = Path(__file__).resolve().parents[2]
#: Top-level packages of the project, and the folder of the data files that its code reads.
PROJECT, DATA = ("escala", "scripts"), "schemas"
#: Folder of the results of parsing modules.
_CACHE = Path(".escala", "sources")
#: Modules that enter no digest, because they only copy results. If a change of them matters,
#: `store.FORMAT` is raised.
UNCOUNTED = frozenset(
    f"escala.cache.{module}" for module in ("digests", "entries", "sources", "store", "upkeep")
)
#: Registries of plug-ins. They enter no digest if the plug-ins are given as `selected`.
REGISTRIES = frozenset(
    {
        "escala.data",
        "escala.engines",
        "escala.strategies.knobs",
        "escala.strategies",
        "escala.probes",
        "escala.workloads",
    }
)


@dataclass(frozen=True)
class Sources:
    """The files and packages that a module reaches.

    Attributes
    ----------
    files : digest of every module and data file, by dotted name or by path from the root.
    packages : top-level names of imported packages that belong neither to the project nor to
        Python.
    """

    files: dict[str, str]
    packages: frozenset[str]

    @property
    def digest(self) -> str:
        """SHA-256 over names and digests of all files, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.files, sort_keys=True).encode()).hexdigest()


def code_digest(module: str, *, selected: Collection[str] = (), root: Path = ROOT) -> str:
    """Return one digest, in hexadecimal, of all code that a module reaches; see `sources`."""
    return sources(module, selected=selected, root=root).digest


def sources(module: str, *, selected: Collection[str] = (), root: Path = ROOT) -> Sources:
    """Return the files and packages that a module reaches, itself included.

    Parameters
    ----------
    module : dotted name, such as `scripts.encode`.
    selected : the plug-in modules that this step uses. They are reached with all files of their
        folders, and `REGISTRIES` are not. If a module names some of them in strings, the other
        modules that it names in strings are not reached. If modules in the folder of a package are
        selected besides the package, the others in it are reached only by imports.
    root : folder of the project.

    Raises
    ------
    ModuleNotFoundError : the project has no such module, or a selected one does not exist.
    SyntaxError : a module cannot be parsed.
    """
    uncounted = UNCOUNTED | (REGISTRIES if selected else frozenset())
    files: dict[str, str] = {}
    packages, seen, plugin_folders = set(), set(), set()
    waiting = [module, *selected]
    for name in waiting:
        # A folder outside the project needs no `__init__.py`.
        if _file(root, name) is None and plugins.folder_of(name) is None:
            raise ModuleNotFoundError(f"no module {name} in {root}", name=name)
    for name in selected:
        _add_package(root, name, waiting, files, selected)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        top = name.partition(".")[0]
        if plugins.folder_of(top) and top not in plugin_folders:
            plugin_folders.add(top)
            _add_package(root, top, waiting, files, selected)
        path = _file(root, name)
        if name in uncounted or path is None:
            continue
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        parsed = _parsed_or_cached(path, path.read_bytes(), package, root)
        files[name] = parsed.digest
        named = {found for text in parsed.strings for found in _named(root, text)}
        followed = named.intersection(selected) or named
        for one in followed:
            _add_package(root, one, waiting, files, selected)
        for imported in (name, *parsed.imports, *followed):
            parts = imported.split(".")
            if parts[0] in PROJECT or plugins.folder_of(parts[0]):
                waiting += [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
            elif parts[0] not in sys.stdlib_module_names:
                packages.add(parts[0])
        for data in parsed.data:
            files |= _data(root, root / data)
    return Sources(files, frozenset(packages))


def package_versions(packages: Collection[str], extra: Collection[str] = ()) -> dict[str, str]:
    """Return the version of Python and of every distribution that holds an imported package.

    Parameters
    ----------
    packages : top-level names of imports. One that is not installed has no version.
    extra : names of further distributions, which matter although they are not imported.
    """
    return dict(_versions(frozenset(packages), frozenset(extra)))


@cache
def _versions(packages: frozenset[str], extra: frozenset[str]) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for names, distribution in _distributions():
        if not names.isdisjoint(packages):
            fields = distribution.metadata
            found.setdefault(fields["Name"], fields["Version"])
    for name in extra:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


@cache
def _distributions() -> list[tuple[frozenset[str], metadata.Distribution]]:
    """Return every installed distribution with the top-level names it holds.

    `importlib.metadata.packages_distributions` gives the same, but takes ten times as long.
    """
    found = []
    for distribution in metadata.distributions():
        declared = distribution.read_text("top_level.txt")
        if declared is None:
            lines = (distribution.read_text("RECORD") or "").splitlines()
            top_levels = {line.split(",")[0].split("/")[0] for line in lines}
            declared = " ".join(first.split(".")[0] for first in top_levels)
        found.append((frozenset(declared.split()), distribution))
    return found


@dataclass(frozen=True)
class _Module:
    digest: str
    imports: list[str]
    strings: list[str]
    data: list[str]


@cache
def _parsed_or_cached(path: Path, source: bytes, package: str, root: Path) -> _Module:
    """Return the result of `_parsed`, cached in a file of the folder `_CACHE`.

    That folder is in the project, or in the working directory if the project cannot be written. The
    cached result is valid while its key is the same: a digest of the source, the package, this
    module and the version of Python.
    """
    inputs = (source, package.encode(), _this_module(), sys.version.encode())
    key = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in inputs)).hexdigest()
    name = f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.{sys.implementation.cache_tag}.json"
    files = [folder / _CACHE / name for folder in (root, Path.cwd())]
    for file in files:
        with suppress(OSError, ValueError, TypeError, KeyError):
            cached = json.loads(file.read_bytes())
            if cached["key"] == key:
                return _Module(**cached["module"])
    parsed = _parsed(source, package)
    for file in files:
        with suppress(OSError), atomic(file, durable=False) as temporary:
            temporary.write_text(
                json.dumps({"key": key, "module": asdict(parsed)}), encoding="utf-8"
            )
            break
    return parsed


@cache
def _this_module() -> bytes:
    return Path(__file__).read_bytes()


def _parsed(source: bytes, package: str) -> _Module:
    """Return the imports and names in a module's source. Relative imports start from `package`."""
    tree = ast.parse(source)
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, holders) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    imports, strings, data, inner = set(), set(), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            start = ".".join(filter(None, [*above, node.module]))
            imports |= {start, *(f"{start}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.partition(".")[0] in PROJECT and "." in node.value:
                strings.add(node.value)
        elif isinstance(node, ast.BinOp) and node not in inner:
            steps, nodes = _joined(node)
            inner |= nodes
            if steps[:1] == [DATA]:
                data.add("/".join(steps))
    digest = hashlib.sha256(ast.dump(tree).encode()).hexdigest()
    return _Module(digest, *(sorted(names) for names in (imports, strings, data)))


def _joined(node: ast.expr) -> tuple[list[str], set[ast.expr]]:
    """Return the literals at the end of a chain of `/`, in their order, and the chain's nodes."""
    steps, nodes = [], set()
    while (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and isinstance(node.right, ast.Constant)
        and isinstance(node.right.value, str)
    ):
        nodes.add(node)
        steps = [*node.right.value.split("/"), *steps]
        node = node.left
    return steps, nodes


def _file(root: Path, name: str) -> Path | None:
    """Return the file of a module, if there is one."""
    base = _base(root, name)
    found = filter(
        os.path.isfile, (f"{base}.py", f"{base}/__init__.py")
    )  # Ten times as fast as Path.
    return next(map(Path, found), None)


def _base(root: Path, name: str) -> str:
    """Return the path of a package's folder, or of a module's file without its suffix."""
    top, *inner = name.split(".")
    return "/".join((str(plugins.folder_of(top) or root / top), *inner))


def _named(root: Path, text: str) -> Iterator[str]:
    """Yield the modules that a string names: one, or those of a package if it ends with a dot."""
    if text.endswith("."):
        folder = root.joinpath(*text.removesuffix(".").split("."))
        yield from (f"{text}{path.stem}" for path in folder.glob("[!_]*.py"))
        yield from (f"{text}{path.parent.name}" for path in folder.glob("*/__init__.py"))
    elif _file(root, text):
        yield text


def _add_package(
    root: Path,
    name: str,
    waiting: list[str],
    files: dict[str, str],
    selected: Collection[str],
) -> None:
    """Add the modules of a package's folder to `waiting`, and its other files to `files`.

    Hidden files and caches of bytecode are left out; of a selected package whose modules are
    selected too, so are its others. A module that is not a package adds nothing.
    """
    folder = Path(_base(root, name))
    inside = {name}
    if name in selected:
        inside |= {each for each in selected if each.startswith(f"{name}.")}
    for path in sorted(filter(Path.is_file, folder.rglob("*"))):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") or part == "__pycache__" for part in parts):
            continue
        inner = parts[:-1] if path.name == "__init__.py" else (*parts[:-1], path.stem)
        module = ".".join((name, *inner))
        if path.suffix == ".py" and _file(root, module) == path:
            if len(inside) == 1 or module in inside:
                waiting.append(module)
        else:
            # In declarations, a `description` is documentation; in other YAML files it may be data.
            suffix = path.suffix if parts[0] in plugins.DECLARATIONS.values() else ""
            files["/".join((*name.split("."), *parts))] = _data_digest(path.read_bytes(), suffix)


def _data(root: Path, start: Path) -> dict[str, str]:
    """Return the digest of a data file, or of each in a folder, by its path from the root."""
    files = sorted(start.rglob("*")) if start.is_dir() else [start]
    return {
        file.relative_to(root).as_posix(): _data_digest(file.read_bytes(), file.suffix)
        for file in files
        if file.is_file()
    }


@cache
def _data_digest(content: bytes, suffix: str) -> str:
    if suffix == ".yaml":
        # The import of yaml takes longer than everything else here, and few steps read a schema.
        import yaml

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        schema = _without_descriptions(yaml.load(content, loader))
        content = json.dumps(schema, default=str).encode()
    return hashlib.sha256(content).hexdigest()


def _without_descriptions(schema: object) -> object:
    """Remove descriptions from a schema. A property called `description` is not text, and stays."""
    if isinstance(schema, dict):
        return {
            key: _without_descriptions(value)
            for key, value in schema.items()
            if not (key == "description" and isinstance(value, str))
        }
    return [_without_descriptions(item) for item in schema] if isinstance(schema, list) else schema
