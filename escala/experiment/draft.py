"""Draft an experiment on a user's data: its settings, and its file with a comment on each key.

`escala.experiment.Experiment` checks a draft like every other experiment.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from escala.core import plugins
from escala.core.errors import InputError
from escala.core.files import read_yaml
from escala.data.genomes.acquire.paths import class_files, files_by_class
from escala.data.paths import expanded_path, is_hidden
from escala.experiment.references import ONE_PROCESS
from escala.experiment.schema import SCHEMA, composed
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from escala.workloads import WORKLOADS, declared

#: The word that stands for simulated genomes, in place of a path.
SIMULATED = "simulated"
#: Names of the variants: a core for each process, and one process with threads on all cores.
_PROCESSES, _THREADS = "tuned", "threads"
#: What a draft compares, and for how long, unless it is told otherwise.
DEFAULTS = {"strategies": ("horovod-mpi",), "layouts": ("1x2",), "epochs": 5, "repeats": 7}
#: Rows of a step, all ranks together.
_ROWS = 64
#: The rate of optimisers for which that of Adam, the schema's default, is too low.
_RATES = {"mlp": 0.1, "resnet34": 0.05}
_WIDTH = 100
#: Sentences on this draft, below those of the schema.
_NOTES = {
    "datasets": "Each key has its defaults in docs/reference/configuration.md.",
    "repeats": "A 95 % interval of a ratio needs six pairs. With seven, one may fail.",
    "batch": "The ranks divide these rows, so any number of ranks makes the same updates.",
    "variants": f"`{_THREADS}` is the alternative to more processes: one process with threads.",
    "length": "Longer rows take longer to train.",
    "size": "Larger pictures take longer to train.",
}


@dataclass(frozen=True)
class Dataset:
    """Settings of a dataset that were derived from a user's data.

    Attributes
    ----------
    name : of the dataset, from that of the data.
    workload : the workload to train on it by default.
    settings : of the dataset, without `split.seeds`.
    own_splits : whether each repeat trains and tests on a split of its own.
    not_read : names of what else is in the user's folder.
    """

    name: str
    workload: str
    settings: dict[str, Any] = field(hash=False)
    own_splits: bool = False
    not_read: tuple[str, ...] = ()


def recognised(data: str) -> Dataset:
    """Return the dataset that a path of a user's data stands for.

    Nothing but names of files is read.

    Parameters
    ----------
    data : a folder of FASTA files; a CSV file; a folder of pictures, of the files of MNIST or of
        CIFAR-10, or CIFAR-10's archive; or `SIMULATED`. Environment variables and `~` are expanded.

    Raises
    ------
    InputError : nothing is there, or it is none of these.
    """
    if data == SIMULATED:
        return _simulated()
    path = Path(expanded_path(data, "data"))
    if not path.exists():
        raise InputError("data", data, "there is no such file or folder", "name your data")
    for recognise in _RECOGNISERS:
        if found := recognise(path, data):
            return found
    raise InputError(
        "data",
        data,
        "is no folder of FASTA files or pictures, no CSV file, and neither MNIST nor CIFAR-10",
        "name one of these, or write the experiment by hand: docs/reference/configuration.md",
    )


def _simulated() -> Dataset:
    classes = ["COVID", "DENGUE", "EBOLA", "MERS", "SARS"]
    records = dict.fromkeys(classes, 200)
    source = {"type": SIMULATED, "seed": 1, "records": records}
    return Dataset(
        SIMULATED, "virus-cnn", _settings_of_genomes(source, classes, {"method": "none"})
    )


def _genomes(path: Path, data: str) -> Dataset | None:
    """Recognise a folder with a FASTA file for each class."""
    found = files_by_class(path) if path.is_dir() else {}
    if not found:
        return None
    classes = sorted(found)
    source = {"type": "files", "folder": data}
    class_files(source, classes)
    return Dataset(
        _name(path),
        "virus-cnn",
        # Genomes of a species begin at different letters: docs/decisions/009-windows.md.
        _settings_of_genomes(source, classes, {"method": "windows", "within": 100}),
        own_splits=True,
        not_read=_others(path, [file for files in found.values() for file in files]),
    )


def _others(folder: Path, read: Collection[Path]) -> tuple[str, ...]:
    """Return the names of what is not read in a folder; hidden files come last."""
    others = (each for each in folder.iterdir() if each not in read)
    return tuple(
        each.name for each in sorted(others, key=lambda each: (is_hidden(each), each.name))
    )


def _settings_of_genomes(source: dict, classes: list[str], oversample: dict) -> dict:
    return {
        "kind": "genomes",
        "source": source,
        "classes": classes,
        "length": 1000,
        "split": {"test_fraction": 0.3},
        "oversample": oversample,
    }


def _table(path: Path, data: str) -> Dataset | None:
    """Recognise a CSV file."""
    if not (path.is_file() and path.name.lower().endswith((".csv", ".csv.gz"))):
        return None
    return Dataset(
        _name(path),
        "mlp",
        {
            "kind": "tabular",
            "source": {"type": "csv", "path": data},
            "missing": "refuse",
            "constant_features": "refuse",
            "split": {"test_fraction": 0.3},
        },
    )


def _digits(path: Path, data: str) -> Dataset | None:
    """Recognise a folder with files of MNIST; refuse those of EMNIST, which have other names.

    Raises
    ------
    InputError : as `escala.data.images.idx.require_named`.
    """
    if not (path.is_dir() and any(path.glob("*-images[-.]idx3-ubyte*"))):
        return None
    from escala.data.images.idx import require_named

    require_named(path)
    settings = {"kind": "images", "source": {"type": "idx", "folder": data}, "split": {}}
    return Dataset(_name(path), "mnist-mlp", settings)


def _cifar(path: Path, data: str) -> Dataset | None:
    """Recognise the binary files of CIFAR-10, or their archive.

    Raises
    ------
    InputError : it is another form of CIFAR.
    """
    from escala.data.images.cifar import not_binary, other_form

    names = [each.name for each in path.iterdir()] if path.is_dir() else []
    if form := other_form([path.name, *names]):
        raise not_binary(path, form)
    if path.name != "cifar-10-binary.tar.gz" and not (path / "data_batch_1.bin").is_file():
        return None
    settings = {"kind": "images", "source": {"type": "cifar", "path": data}, "split": {}}
    return Dataset(_name(path), "cifar-cnn", settings)


def _pictures(path: Path, data: str) -> Dataset | None:
    """Recognise a folder of folders of PNG and JPEG files."""
    # Imported here, because they import Pillow.
    from escala.data.images.pictures import ENDINGS
    from escala.data.images.source import listed

    if not path.is_dir() or not any(each.suffix.lower() in ENDINGS for each in path.glob("**/*")):
        return None
    listed(path)
    return Dataset(
        _name(path),
        "cifar-cnn",
        {
            "kind": "images",
            "source": {"type": "folders", "folder": data},
            "colour": "rgb",
            "size": [64, 64],
            "split": {"test_fraction": 0.2},
        },
    )


_RECOGNISERS: tuple[Callable[[Path, str], Dataset | None], ...] = (
    _genomes,
    _table,
    _digits,
    _cifar,
    _pictures,
)


def _name(path: Path) -> str:
    """Return the name of a path as one that an experiment allows."""
    stem = path.resolve().name.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:64] or "data"


def draft(
    name: str,
    data: str,
    *,
    workload: str | None = None,
    strategies: Sequence[str] = DEFAULTS["strategies"],
    layouts: Sequence[str] = DEFAULTS["layouts"],
    epochs: int = DEFAULTS["epochs"],
    repeats: int = DEFAULTS["repeats"],
) -> dict[str, Any]:
    """Return the settings of an experiment that compares layouts with one process.

    One process is measured on one core and, with threads, on as many cores as the largest layout of
    one node has processes.

    Parameters
    ----------
    name : of the experiment.
    data : as `recognised` takes it.
    workload : its name, or a folder with a `workload.yaml`; by default one for the data, and every
        workload for such data that is fitted.
    strategies, layouts : to compare with one process. A strategy of one rank has the layout `1x1`.
    epochs : of a workload that is trained by steps.
    repeats : timing runs of each configuration.

    Raises
    ------
    InputError : as `recognised`; there is no such workload, or its declaration is wrong.
    ValueError : a layout is not of the form `NODESxPROCS`.
    """
    dataset = recognised(data)
    seeds = list(range(1, repeats + 1)) if dataset.own_splits else [4]
    settings = dataset.settings | {"split": dataset.settings["split"] | {"seeds": seeds}}
    parsed = [Layout.parse(layout) for layout in layouts]
    cores = max((each.processes for each in parsed if each.nodes == 1), default=1)
    variants = {_PROCESSES: {"cores_per_process": 1}}
    if cores > 1:
        variants[_THREADS] = {"cores_per_process": cores}
    strategy, layout = ONE_PROCESS
    one_process = {"strategy": strategy, "layout": layout}
    return {
        "experiment": name,
        "title": f"Does parallel training on {dataset.name} pay?",
        "repeats": repeats,
        "time_limit_minutes": 60,
        "datasets": {dataset.name: settings},
        "workloads": _workloads(workload, dataset, epochs),
        "variants": variants,
        "configurations": [
            {"strategy": strategy, "layouts": [layout]},
            *(_configuration(each, layouts) for each in strategies if each != strategy),
        ],
        "references": [one_process | {"variant": variant} for variant in variants],
        "timeline": {"enabled": False},
        "clocks": {"enabled": True},
    }


def _configuration(strategy: str, layouts: Sequence[str]) -> dict[str, Any]:
    known = STRATEGIES.get(strategy)
    only = [ONE_PROCESS[1]] if known and known.only_one_rank else list(layouts)
    return {"strategy": strategy, "layouts": only, "variants": [_PROCESSES]}


def _workloads(workload: str | None, dataset: Dataset, epochs: int) -> dict[str, dict]:
    """Return the workloads of a draft with their settings."""
    if workload is None:
        kind = dataset.settings["kind"]
        fits = [
            name
            for name, each in WORKLOADS.items()
            if each.kind == "fit" and each.data_kind == kind
        ]
        return {dataset.workload: _steps(dataset.workload, epochs)} | {name: {} for name in fits}
    if workload in WORKLOADS:
        by_steps = WORKLOADS[workload].kind == "steps"
        return {workload: _steps(workload, epochs) if by_steps else {}}
    file = Path(expanded_path(workload, "workload")) / plugins.DECLARATIONS[plugins.WORKLOADS]
    if not file.is_file():
        raise InputError(
            "workload",
            workload,
            f"is no workload and no folder with a {file.name}",
            f"use one of {', '.join(WORKLOADS)}, or name your folder",
        )
    name, own = _name(file.parent), {"path": workload}
    try:
        by_steps = declared(file).kind == "steps"
    except (KeyError, TypeError, yaml.YAMLError):
        by_steps = False  # The check of the experiment names what is wrong.
    return {name: own | (_steps(name, epochs) if by_steps else {})}


def _steps(workload: str, epochs: int) -> dict[str, Any]:
    """Return the settings of a workload that is trained by steps."""
    rate = {"value": _RATES.get(workload, 0.001), "reference_batch": _ROWS}
    return {
        "epochs": epochs,
        "batch": {"rows": _ROWS, "per": "global"},
        "learning_rate": rate,
        "seed": 0,
    }


def text(settings: Mapping[str, Any]) -> str:
    """Return the file of an experiment, with the first sentence of the schema above each key.

    Parameters
    ----------
    settings : of an experiment. Its workloads must be known, so `Experiment` comes before.
    """
    schema = composed(read_yaml(SCHEMA))
    return "\n".join(_lines(settings, schema)) + "\n"


def _lines(settings: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    yield "# An experiment of Escala, written by `escala new`. Change any value."
    yield "# docs/reference/configuration.md describes every key, also those that are not here."
    for key, value in settings.items():
        # Short keys at the top stand together, with their comments; sections stand apart.
        yield from ("",) if isinstance(value, (dict, list)) else ()
        yield from _comment(key, schema["properties"].get(key, {}), 0)
        if key in ("datasets", "workloads"):
            yield f"{key}:"
            for name, inner in value.items():
                yield f"  {_flow(name)}:{'' if inner else ' {}'}"
                described = schema["$defs"][_definition(key, name, inner)]["properties"]
                for part, content in inner.items():
                    yield from _comment(part, described.get(part, {}), 4)
                    yield f"    {part}: {_flow(content)}"
        elif key == "variants":
            yield f"{key}:"
            yield from (f"  {name}: {_flow(inner)}" for name, inner in value.items())
        elif isinstance(value, list):
            yield f"{key}:"
            yield from (f"  - {_flow(item)}" for item in value)
        else:
            yield f"{key}: {_flow(value)}"


def _definition(key: str, name: str, settings: Mapping[str, Any]) -> str:
    """Return the name of the definition of a dataset or a workload in the composed schema."""
    return f"dataset_{settings['kind']}" if key == "datasets" else f"workload_{name}"


def _comment(key: str, schema: Mapping[str, Any], indent: int) -> Iterator[str]:
    """Yield the lines of the comment above a key."""
    first, *_ = re.split(r"(?<=\.)\s+(?=[A-Z`])", schema.get("description", ""))
    sentences = " ".join(filter(None, [first, _NOTES.get(key)]))
    prefix = " " * indent + "# "
    yield from textwrap.wrap(
        sentences,
        _WIDTH,
        initial_indent=prefix,
        subsequent_indent=prefix,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    dumped = yaml.safe_dump(
        value, default_flow_style=True, width=math.inf, allow_unicode=True, sort_keys=False
    )
    return dumped.removesuffix("...\n").strip()
