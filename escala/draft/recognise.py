"""Recognise what a user's data are by the names of files: the settings of their dataset."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from escala.core.errors import InputError
from escala.core.text import PACKED_ENDINGS
from escala.data.genomes.acquire.files import ENDINGS, class_files, files_by_class
from escala.data.paths import expanded_path, is_hidden
from escala.experiment.schema import is_name
from escala.experiment.schema_errors import NAME_RULE

#: The word that stands for simulated genomes, in place of a path.
SIMULATED = "simulated"
_CLASSES = ["COVID", "DENGUE", "EBOLA", "MERS", "SARS"]


@dataclass(frozen=True)
class Dataset:
    """Settings of a dataset that were derived from a user's data.

    Attributes
    ----------
    name : of the dataset, from that of the data.
    workload : the workload to train on it by default, None if Escala has none for such data.
    settings : of the dataset, without `split.seeds`.
    own_splits : whether each repeat trains and tests on its own split.
    not_read : names of what else is in the user's folder.
    """

    name: str
    workload: str | None
    settings: dict[str, Any] = field(hash=False)
    own_splits: bool = False
    not_read: tuple[str, ...] = ()


def recognised(data: str) -> Dataset:
    """Return the dataset that a path of a user's data stands for.

    Nothing but names is read, and of arrays the targets.

    Parameters
    ----------
    data : a folder of FASTA files; a CSV file; a folder of pictures, of the files of MNIST or of
        CIFAR-10, or CIFAR-10's archive; a `.npz` file or a folder of `.npy` files; or `SIMULATED`.
        Environment variables and `~` are expanded.

    Raises
    ------
    InputError : nothing is there, or it is none of these.
    """
    if data == SIMULATED:
        source = {"type": SIMULATED, "seed": 1, "records": dict.fromkeys(_CLASSES, 200)}
        genomes = _settings_of_genomes(source, _CLASSES, {"method": "none"})
        return Dataset(SIMULATED, "virus-cnn", genomes)
    path = Path(expanded_path(data, "data"))
    if not path.exists():
        raise InputError("data", data, "there is no such file or folder", "name your data")
    for recognise in _RECOGNISERS:
        if found := recognise(path, data):
            return found
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
    found = files_by_class(path) if path.is_dir() else {}
    if not found:
        return None
    classes = sorted(found)
    source = {"type": "files", "folder": data}
    class_files(source, classes)
    for name, files in found.items():
        if not is_name(name):
            other = files[0].name.replace(name, named(Path(name)), 1)
            remedy = f"rename it, for instance to {other}: {NAME_RULE}"
            reason = f"gives a class the name {name!r}, which an experiment does not allow"
            raise InputError("data", str(files[0]), reason, remedy)
    read = [file for files in found.values() for file in files]
    others = [each for each in path.iterdir() if each not in read]
    # Hidden files come last.
    not_read = [each.name for each in sorted(others, key=lambda it: (is_hidden(it), it.name))]
    if len(classes) < 2:
        more = f"; not read are {', '.join(not_read)}" if not_read else ""
        reason = f"holds a FASTA file of one class only, {classes[0]}{more}"
        remedy = f"give each class a file of its own, which ends in {', '.join(ENDINGS)}"
        raise InputError("data", data, reason, remedy)
    # Genomes of a species begin at different letters: docs/decisions/009-windows.md.
    settings = _settings_of_genomes(source, classes, {"method": "windows", "within": 100})
    return Dataset(named(path), "virus-cnn", settings, own_splits=True, not_read=tuple(not_read))


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
    """Recognise a CSV file, plain or packed; refuse one with tabs."""
    packed = "|".join(map(re.escape, PACKED_ENDINGS))
    if not path.is_file() or not (
        found := re.search(rf"\.(csv|tsv|tab)({packed})?$", path.name, re.IGNORECASE)
    ):
        return None
    if found[1].lower() != "csv":
        remedy = "write commas between fields, and .csv at the end of its name"
        raise InputError("data", data, "separates its fields by tabs, and CSV is read", remedy)
    settings = {"kind": "tabular", "source": {"type": "csv", "path": data}}
    refused = dict.fromkeys(("missing", "constant_features"), "refuse")
    return Dataset(named(path), "mlp", settings | refused | {"split": {"test_fraction": 0.3}})


def _digits(path: Path, data: str) -> Dataset | None:
    """Recognise a folder with files of MNIST."""
    if not (path.is_dir() and any(path.glob("train-images[-.]idx3-ubyte*"))):
        return None
    settings = {"kind": "images", "source": {"type": "idx", "folder": data}, "split": {}}
    return Dataset(named(path), "mnist-mlp", settings)


def _cifar(path: Path, data: str) -> Dataset | None:
    """Recognise the binary files of CIFAR-10, or their archive."""
    if path.name != "cifar-10-binary.tar.gz" and not (path / "data_batch_1.bin").is_file():
        return None
    settings = {"kind": "images", "source": {"type": "cifar", "path": data}, "split": {}}
    return Dataset(named(path), "cifar-cnn", settings)


def _pictures(path: Path, data: str) -> Dataset | None:
    """Recognise a folder of folders of PNG and JPEG files."""
    # Imported here, because they import Pillow.
    from escala.data.images.pictures import ENDINGS, count_pictures

    if not path.is_dir() or not any(each.suffix.lower() in ENDINGS for each in path.glob("**/*")):
        return None
    count_pictures(path)
    source = {"type": "folders", "folder": data}
    settings = {"kind": "images", "source": source, "colour": "rgb", "size": [64, 64]}
    return Dataset(named(path), "cifar-cnn", settings | {"split": {"test_fraction": 0.2}})


def _arrays(path: Path, data: str) -> Dataset | None:
    """Recognise a `.npz` file, or a folder of `.npy` files."""
    # Imported here, because it imports NumPy.
    from escala.data.arrays.headers import settings_of

    found = settings_of(path, data)
    return found and Dataset(named(path), None, {"kind": "arrays", **found, "split": {}})


_RECOGNISERS: tuple[Callable[[Path, str], Dataset | None], ...] = (
    _genomes,
    _table,
    _digits,
    _cifar,
    _arrays,
    _pictures,
)


def named(path: Path) -> str:
    """Return the name of a path as one that an experiment allows."""
    stem = path.resolve().name.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:64] or "data"
