"""An experiment: its file, read and checked whole, and expanded into its runs.

This module finds the files of experiments and reads them.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from escala.core.errors import InputError
from escala.core.yaml12 import read
from escala.experiment.matrix import Experiment
from escala.experiment.runs import Run, Rung

__all__ = ["Experiment", "Run", "Rung", "check_name", "load", "load_by_name", "read"]

ROOT = Path(__file__).resolve().parents[2]
#: A line that only files of experiments have; other YAML files of the user lack it.
_DECLARED = re.compile(rb"^(\{ *)?[\"']?experiment[\"']? *:", re.MULTILINE)


def load(path: str | Path) -> Experiment:
    """Read and check the experiment in a YAML file.

    Raises
    ------
    InputError : the file cannot be read, is not YAML, or does not hold a valid experiment.
    """
    return Experiment(read(path), path)


def load_by_name(name: str, root: Path = ROOT) -> Experiment:
    """Return the experiment that `results/<name>/` belongs to.

    The file of the experiment is `<name>.yaml` in `experiments/` or in a folder inside it, or a
    file in `root` itself.

    Parameters
    ----------
    root : the folder with `experiments/`, and with other files such as `config.yaml`.

    Raises
    ------
    InputError : there is no such experiment, its file states another name, or two files state its
        name.
    """
    known = find_files(root)
    if name not in known:
        write = f"write experiments/{name}.yaml"
        remedy = f"use one of {', '.join(sorted(known))}, or {write}" if known else write
        raise InputError(f"results/{name}", name, "no such experiment", remedy)
    experiment = load(known[name])
    if experiment.name != name:
        reason = f"differs from the file's name {known[name].name}"
        raise experiment.error("experiment", experiment.name, reason, f"write experiment: {name}")
    return experiment


def find_files(root: Path) -> dict[str, Path]:
    """Return the files of `experiments/` and of `root` itself by the names of their experiments.

    Files of `root` that cannot be read are left out. If several files state one name, the result is
    `config.yaml`, else `NAME.yaml` or `escala-NAME.yaml` (of `escala try`), else the first file.
    """
    by_name = {}
    for path in sorted(filter(is_experiment, root.glob("*.yaml"))):
        with suppress(InputError):
            settings = read(path)
            if isinstance(settings, dict) and isinstance(name := settings.get("experiment"), str):
                is_first = path.name in ("config.yaml", f"{name}.yaml", f"escala-{name}.yaml")
                if name not in by_name or (is_first and by_name[name].name != "config.yaml"):
                    by_name[name] = path
    return by_name | files_by_name(root)


def check_name(name: str, path: str | Path, root: Path = ROOT) -> None:
    """Refuse an experiment whose results would belong to another file of the project.

    Parameters
    ----------
    name : the name of the experiment.
    path : its file.

    Raises
    ------
    InputError : another file, in `experiments/` or `config.yaml`, has this name.
    """
    for owner in owners(name, root):
        if not owner.samefile(path):
            reason = f"is the name of {owner}, to which results/{name} belongs"
            raise InputError(f"{path}: experiment", name, reason, "choose another name")


def owners(name: str, root: Path = ROOT) -> list[Path]:
    """Return the files in `experiments/`, and `config.yaml`, whose experiment has this name."""
    default = root / "config.yaml"
    settings = read(default) if is_experiment(default) else None
    is_default = isinstance(settings, dict) and settings.get("experiment") == name
    file = files_by_name(root).get(name)
    return [*([file] if file else []), *([default] if is_default else [])]


def files_by_name(root: Path = ROOT) -> dict[str, Path]:
    """Return the files of `experiments/` and of its folders, by the names of their experiments.

    YAML files without an experiment are left out.

    Raises
    ------
    InputError : two experiments have the same name, and results would belong to both.
    """
    files: dict[str, Path] = {}
    for path in sorted(filter(is_experiment, (root / "experiments").rglob("*.yaml"))):
        if other := files.get(path.stem):
            reason = f"is also the name of {other}"
            raise InputError(path, path.stem, reason, "give each experiment its own name")
        files[path.stem] = path
    return files


def is_experiment(path: Path) -> bool:
    """Return whether a file holds an experiment, which may still be wrong."""
    return path.is_file() and bool(_DECLARED.search(path.read_bytes()))
