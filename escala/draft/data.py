"""Draft an experiment on a user's data: do more processes, or more threads, pay for it?

The names of the files tell the kind of the data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from escala.core import plugins
from escala.core.engines import DEFAULT
from escala.core.errors import InputError
from escala.core.text import PACKED_ENDINGS
from escala.data.genomes.acquire.files import ENDINGS, class_files, files_by_class
from escala.data.paths import expand_path, is_hidden
from escala.draft.file import PROCESSES, Draft, compare_settings
from escala.experiment.runs import ONE_PROCESS, one_process
from escala.experiment.schema import NAME_RULE, is_name
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from escala.workloads import WORKLOADS, read_declaration

#: The word that stands for simulated genomes, in place of a path.
SIMULATED = "simulated"
_CLASSES = ["COVID", "DENGUE", "EBOLA", "MERS", "SARS"]

#: The strategies of the default engine that have several ranks, in the order of declaration.
_SEVERAL = (
    name
    for name, strategy in STRATEGIES.items()
    if (strategy.engine or "").startswith(f"{DEFAULT}.") and not strategy.layouts.one_rank
)
#: The defaults of a draft: what it compares, and for how long.
DEFAULTS = {
    "strategies": (next(_SEVERAL),),
    "layouts": ("1x2",),
    "epochs": 5,
    "repeats": 7,
}
#: Rows of a step, all ranks together.
_ROWS = 64
#: Learning rates of workloads if their optimiser needs a higher rate than Adam, the schema's
#: default.
_RATES = {"mlp": 0.1, "resnet34": 0.05}
#: The workload that replaces the usual workload if an engine has no model of the usual one.
_OTHERWISE = {"cifar-cnn": "resnet34"}
_NOTES = {
    "repeats": "A 95 % interval of a ratio needs five paired runs. With seven, one run may fail.",
    "datasets": "Each key has its defaults in docs/reference/configuration.md.",
    "batch": "The ranks divide these rows, so any number of ranks makes the same updates.",
    "length": "Longer rows take longer to train.",
    "size": "Larger pictures take longer to train.",
}


@dataclass(frozen=True)
class Dataset:
    """Settings of a dataset that were derived from a user's data.

    Attributes
    ----------
    name : the name of the dataset, made from the name of the data.
    workload : the default workload for the dataset; None if Escala has no workload for such data.
    settings : the settings of the dataset, without `split.seeds`.
    splits_by_repeat : whether each repeat trains and tests on its own split.
    not_read : names of other files and folders in the user's folder.
    """

    name: str
    workload: str | None
    settings: dict[str, Any] = field(hash=False)
    splits_by_repeat: bool = False
    not_read: tuple[str, ...] = ()


def recognise(data: str) -> Dataset:
    """Return the dataset that a path of a user's data stands for.

    Only names are read; of arrays, the targets are read, too.

    Parameters
    ----------
    data : a folder of FASTA files; a CSV file; a folder of pictures, of the files of MNIST or of
        CIFAR-10, or CIFAR-10's archive; a `.npz` file or a folder of `.npy` files; or `SIMULATED`.
        Environment variables and `~` are expanded.

    Raises
    ------
    InputError : the path does not exist, or is no such file or folder.
    """
    if data == SIMULATED:
        source = {"type": SIMULATED, "seed": 1, "records": dict.fromkeys(_CLASSES, 200)}
        genomes = _settings_of_genomes(source, _CLASSES, {"method": "none"})
        return Dataset(SIMULATED, "virus-cnn", genomes)
    path = Path(expand_path(data, "data"))
    if not path.exists():
        raise InputError("data", data, "there is no such file or folder", "name your data")
    for recogniser in (_genomes, _table, _public_pictures, _arrays, _pictures):
        if dataset := recogniser(path, data):
            return dataset
    raise InputError(
        "data",
        data,
        "is not a folder of FASTA files, pictures or .npy files, not a CSV or .npz file, and "
        "neither MNIST nor CIFAR-10",
        f"name one of these, and not a folder around it (FASTA files end in {', '.join(ENDINGS)}, "
        "pictures are PNG or JPEG), or write the experiment by hand: "
        "docs/reference/configuration.md",
    )


def _genomes(path: Path, data: str) -> Dataset | None:
    """Recognise a folder with a FASTA file for each class."""
    by_class = files_by_class(path) if path.is_dir() else {}
    if not by_class:
        return None
    classes = sorted(by_class)
    source = {"type": "files", "folder": data}
    class_files(source, classes)
    for name, files in by_class.items():
        if not is_name(name):
            other = files[0].name.replace(name, name_of(Path(name)), 1)
            remedy = f"rename it, for instance to {other}: {NAME_RULE}"
            reason = f"gives a class the name {name!r}, which an experiment does not allow"
            raise InputError("data", str(files[0]), reason, remedy)
    read = [file for files in by_class.values() for file in files]
    others = [entry for entry in path.iterdir() if entry not in read]
    # Hidden files come last.
    not_read = [entry.name for entry in sorted(others, key=lambda it: (is_hidden(it), it.name))]
    if len(classes) < 2:
        more = f"; not read are {', '.join(not_read)}" if not_read else ""
        reason = f"holds a FASTA file of one class only, {classes[0]}{more}"
        remedy = f"give each class a file of its own, which ends in {', '.join(ENDINGS)}"
        raise InputError("data", data, reason, remedy)
    # Genomes of a species begin at different letters: docs/decisions/genomes.md.
    settings = _settings_of_genomes(source, classes, {"method": "windows", "within": 100})
    return Dataset(
        name_of(path), "virus-cnn", settings, splits_by_repeat=True, not_read=tuple(not_read)
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
    """Recognise a CSV file, compressed or not; refuse one with tabs."""
    packed = "|".join(map(re.escape, PACKED_ENDINGS))
    if not path.is_file() or not (
        ending := re.search(rf"\.(csv|tsv|tab)({packed})?$", path.name, re.IGNORECASE)
    ):
        return None
    if ending[1].lower() != "csv":
        remedy = "write commas between fields, and .csv at the end of its name"
        raise InputError("data", data, "separates its fields by tabs, and CSV is read", remedy)
    settings = {"kind": "tabular", "source": {"type": "csv", "path": data}}
    refused = dict.fromkeys(("missing", "constant_features"), "refuse")
    return Dataset(name_of(path), "mlp", settings | refused | {"split": {"test_fraction": 0.3}})


def _public_pictures(path: Path, data: str) -> Dataset | None:
    """Recognise the files of MNIST, and the binary files of CIFAR-10 or their archive."""
    if path.is_dir() and any(path.glob("train-images[-.]idx3-ubyte*")):
        workload, source = "mnist-mlp", {"type": "idx", "folder": data}
    elif path.name == "cifar-10-binary.tar.gz" or (path / "data_batch_1.bin").is_file():
        workload, source = "cifar-cnn", {"type": "cifar", "path": data}
    else:
        return None
    return Dataset(name_of(path), workload, {"kind": "images", "source": source, "split": {}})


def _pictures(path: Path, data: str) -> Dataset | None:
    """Recognise a folder of folders of PNG and JPEG files."""
    # The modules are imported here, because they import Pillow.
    from escala.data.images.pictures import ENDINGS, count_pictures

    if not path.is_dir() or not any(file.suffix.lower() in ENDINGS for file in path.glob("**/*")):
        return None
    count_pictures(path)
    source = {"type": "folders", "folder": data}
    settings = {"kind": "images", "source": source, "colour": "rgb", "size": [64, 64]}
    return Dataset(name_of(path), "cifar-cnn", settings | {"split": {"test_fraction": 0.2}})


def _arrays(path: Path, data: str) -> Dataset | None:
    """Recognise a `.npz` file, or a folder of `.npy` files."""
    # The module is imported here, because it imports NumPy.
    from escala.data.arrays.headers import settings_of

    settings = settings_of(path, data)
    return settings and Dataset(name_of(path), None, {"kind": "arrays", **settings, "split": {}})


def name_of(path: Path) -> str:
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
) -> Draft:
    """Draft an experiment that compares layouts with one process of the same engine.

    One process is measured on one core. One process with threads is also measured, on as many cores
    as the largest layout of one node has processes.

    Parameters
    ----------
    name : the name of the experiment.
    data : see `recognise`.
    workload : the name of a workload, or a folder with a `workload.yaml`. By default: a workload
        for the data, and every fitted workload for such data.
    strategies, layouts : to compare with one process. A strategy of one rank has the layout `1x1`.
    epochs : the epochs of a workload that is trained by steps.
    repeats : timing runs of each configuration.

    Raises
    ------
    InputError : `recognise` raises it; there is no such workload, or its declaration is wrong; or a
        layout is not written as `NODESxPROCS`.
    """
    dataset = recognise(data)
    seeds = list(range(1, repeats + 1)) if dataset.splits_by_repeat else [4]
    described = dataset.settings | {"split": dataset.settings["split"] | {"seeds": seeds}}
    try:
        parsed = [Layout.parse(layout) for layout in layouts]
    except ValueError as error:
        raise InputError("--layouts", layouts, str(error), "write it as 1x2") from None
    known = [name for name in strategies if name in STRATEGIES]
    alone = list(dict.fromkeys(one_process(name)[0] for name in known)) or [ONE_PROCESS[0]]
    configurations = [{"strategy": name, "layouts": ["1x1"]} for name in alone]
    for strategy in strategies:
        one_rank = strategy in known and STRATEGIES[strategy].layouts.one_rank
        if strategy not in alone:
            wanted = ["1x1"] if one_rank else list(layouts)
            entry = {"strategy": strategy, "layouts": wanted, "variants": [PROCESSES]}
            configurations.append(entry)
    subject = "simulated genomes" if data == SIMULATED else dataset.name
    settings = compare_settings(
        name,
        f"Does parallel training on {subject} pay?",
        repeats,
        alone,
        max((layout.processes for layout in parsed if layout.nodes == 1), default=1),
        datasets={dataset.name: described},
        workloads=_workloads(workload, dataset, epochs, alone),
        configurations=configurations,
    )
    probes = {"timeline": {"enabled": False}}
    unread = [f"Not read in {data}: {', '.join(dataset.not_read)}"] if dataset.not_read else []
    return Draft(settings | probes, _NOTES, unread)


def _workloads(
    workload: str | None, dataset: Dataset, epochs: int, alone: Sequence[str]
) -> dict[str, dict]:
    """Return the workloads of a draft with their settings.

    `alone` are the strategies of one process. A fit runs only with the strategy of the first
    engine.
    """
    if workload is None:
        kind = dataset.settings["kind"]
        if dataset.workload is None:
            reason = f"no workload of Escala reads data of the kind {kind}"
            remedy = (
                "name the folder of yours: --workload FOLDER "
                "(docs/how-to/bring-your-own-workload.md), or your own script: --command TEXT"
            )
            raise InputError("workload", None, reason, remedy)
        engines = {STRATEGIES[name].engine.partition(".")[0] for name in alone}
        usual = dataset.workload
        if not engines <= {*WORKLOADS[usual].engines}:
            usual = _OTHERWISE.get(usual, usual)
        fits = [
            name
            for name, known in WORKLOADS.items()
            if known.is_fitted and known.data_kind == kind and ONE_PROCESS[0] in alone
        ]
        return {usual: _steps(usual, epochs)} | {name: {} for name in fits}
    if workload in WORKLOADS:
        by_steps = WORKLOADS[workload].takes_steps
        return {workload: _steps(workload, epochs) if by_steps else {}}
    file = Path(expand_path(workload, "workload")) / plugins.DECLARATIONS[plugins.WORKLOADS]
    if not file.is_file():
        reason = f"is neither a workload nor a folder with a {file.name}"
        remedy = f"use one of {', '.join(WORKLOADS)}, or name your folder"
        raise InputError("workload", workload, reason, remedy)
    name, path = name_of(file.parent), {"path": workload}
    try:
        by_steps = read_declaration(file).takes_steps
    except (KeyError, TypeError, yaml.YAMLError):
        by_steps = False  # The check of the experiment reports the error.
    return {name: path | (_steps(name, epochs) if by_steps else {})}


def _steps(workload: str, epochs: int) -> dict[str, Any]:
    """Return the settings of a workload that is trained by steps."""
    return {
        "epochs": epochs,
        "batch": {"rows": _ROWS, "per": "global"},
        "learning_rate": {"value": _RATES.get(workload, 0.001), "reference_batch": _ROWS},
        "seed": 0,
    }
