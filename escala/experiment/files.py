"""The files of experiments, by the names of the experiments."""

from __future__ import annotations

from pathlib import Path

from escala.core.errors import InputError
from escala.experiment.matrix import Experiment
from escala.experiment.plain import read

ROOT = Path(__file__).resolve().parents[2]


def load(path: str | Path) -> Experiment:
    """Read and check the experiment in a YAML file.

    Raises
    ------
    InputError : as `read`, or the file does not hold a valid experiment.
    """
    return Experiment(read(path), path)


def named(name: str, root: Path = ROOT) -> Experiment:
    """Return the experiment that `results/<name>/` belongs to.

    That is the file `<name>.yaml` in `experiments/` or in a folder of it, or `config.yaml` if it is
    the one of that name.

    Raises
    ------
    InputError : there is no such experiment, its file names another, or two files have its name.
    """
    files = files_by_name(root)
    if path := files.get(name):
        experiment = load(path)
        if experiment.name != name:
            raise experiment.error(
                "experiment",
                experiment.name,
                f"differs from the file's name {path.name}",
                f"write experiment: {name}",
            )
        return experiment
    default = load(root / "config.yaml")
    if default.name == name:
        return default
    known = sorted({default.name, *files})
    raise InputError(
        f"results/{name}",
        name,
        "no such experiment",
        f"use one of {', '.join(known)}, or write experiments/{name}.yaml",
    )


def check_name(name: str, path: str | Path, root: Path = ROOT) -> None:
    """Refuse an experiment whose results would belong to another file of the project.

    Parameters
    ----------
    name : of the experiment.
    path : its file.

    Raises
    ------
    InputError : another file, in `experiments/` or `config.yaml`, has this name.
    """
    owners = [files_by_name(root).get(name), *_default_of_name(name, root / "config.yaml")]
    for owner in filter(None, owners):
        if not owner.samefile(path):
            raise InputError(
                f"{path}: experiment",
                name,
                f"is the name of {owner}, to which results/{name} belongs",
                "choose another name",
            )


def _default_of_name(name: str, path: Path) -> list[Path]:
    """Return the default experiment's file if the experiment has that name."""
    settings = read(path) if path.is_file() else None
    return [path] if isinstance(settings, dict) and settings.get("experiment") == name else []


def files_by_name(root: Path = ROOT) -> dict[str, Path]:
    """Return the files of `experiments/` and of its folders, by the names of their experiments.

    Raises
    ------
    InputError : two files have one name, and results would belong to both.
    """
    files: dict[str, Path] = {}
    for path in sorted((root / "experiments").rglob("*.yaml")):
        if other := files.get(path.stem):
            raise InputError(
                path, path.stem, f"is also the name of {other}", "give each experiment its own name"
            )
        files[path.stem] = path
    return files
