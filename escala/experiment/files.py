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
