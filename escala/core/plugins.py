"""Folders outside the project that serve as workloads and as kinds of datasets.

An experiment names each folder by its path. The process that reads the experiment adds the folders
to its registries. An environment variable adds them to the registries of the processes that it
starts. Each folder is imported as a package. The name of the package depends on the name in the
experiment only.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

VARIABLE = "ESCALA_FOLDERS"
#: The keys of an experiment under which folders are named.
WORKLOADS, KINDS = "workloads", "kinds"
#: The file that declares what a folder holds.
DECLARATIONS = {WORKLOADS: "workload.yaml", KINDS: "kind.yaml"}


def package(part: str, name: str) -> str:
    """Return the name of the package that a folder is imported as.

    Parameters
    ----------
    part : `WORKLOADS` or `KINDS`.
    name : the folder's name in experiments.
    """
    return f"escala_{part}_{name}"


def add(part: str, name: str, folder: Path) -> None:
    """Let this process, and the processes that it starts, import a folder (an absolute path)."""
    known = _read_variable()
    known.setdefault(part, {})[name] = str(folder)
    os.environ[VARIABLE] = json.dumps(known)


def _read_variable() -> dict[str, dict[str, str]]:
    return json.loads(os.environ.get(VARIABLE, "{}"))


def folders(part: str) -> dict[str, Path]:
    """Return the folders that serve as workloads, or as kinds of datasets, by name."""
    return {name: Path(folder) for name, folder in _read_variable().get(part, {}).items()}


class _Finder(MetaPathFinder):
    """A finder of the packages of folders; Python itself finds the modules inside a package."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        by_package = {
            package(part, known): folder
            for part in DECLARATIONS
            for known, folder in folders(part).items()
        }
        if name not in by_package:
            return None
        folder = by_package[name]
        code, inside = folder / "__init__.py", [str(folder)]
        if code.is_file():
            return spec_from_file_location(name, code, submodule_search_locations=inside)
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = inside
        return spec


sys.meta_path.append(_Finder())
