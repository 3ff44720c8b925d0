"""Training and test arrays made from codes, in blocks of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from escala.core.files import atomic, sha256_file, write_json
from escala.data.genomes.prepare import balance, windows
from escala.data.genomes.prepare.fasta import read_records
from escala.data.genomes.prepare.similarity import read_groups
from escala.data.genomes.prepare.split import (
    Split,
    group_split,
    split_leaving_out,
    stratified_split,
)
from escala.data.writer import written

FORMAT = 4
KIND = "genomes"
#: The files of a side.
ROWS, LABELS = "{side}.npy", "{side}_labels.npy"
#: Genome number of rows that SMOTEN made.
SYNTHETIC = -1


@dataclass(frozen=True)
class Genomes:
    """The genomes of a dataset: their concatenated codes, and a record of each.

    Parameters
    ----------
    codes : uint8 of shape (letters,), mapped from a file.
    records : a row per genome, see `escala.data.genomes.prepare.fasta.encode_classes`.
    """

    codes: np.ndarray
    records: pd.DataFrame

    @classmethod
    def load(cls, folder: Path) -> Genomes:
        codes = np.load(folder / "codes.npy", mmap_mode="r", allow_pickle=False)
        return cls(codes, read_records(folder / "records.tsv"))

    @property
    def labels(self) -> np.ndarray:
        return self.records["label"].to_numpy(np.int64)

    @property
    def letters(self) -> np.ndarray:
        return self.records["letters"].to_numpy(np.int64)

    @property
    def identities(self) -> np.ndarray:
        """A number for each genome, equal for equal genomes."""
        return pd.factorize(self.records["genome"])[0]

    def blocks(self, rows: np.ndarray, length: int) -> Iterator[np.ndarray]:
        offsets = self.records["offset"].to_numpy(np.int64)
        return windows.blocks(self.codes, offsets, self.letters, rows, length)


def split(records: pd.DataFrame, preparation: dict, seed: int, groups: Path | None) -> Split:
    """Split the genomes of a dataset as `preparation["split"]` says.

    Parameters
    ----------
    groups : file with the group of every record, for a split that keeps groups together.

    Raises
    ------
    InputError : a class is too small, or the groups do not allow this split.
    """
    settings, classes = preparation["split"], preparation["classes"]
    labels = records["label"].to_numpy(np.int64)
    if settings["by"] == "random":
        return stratified_split(labels, classes, settings["test_fraction"], seed)
    names = read_groups(groups, records)
    if "leave_out" in settings:
        return split_leaving_out(labels, names, classes, settings["leave_out"])
    return group_split(labels, names, classes, settings["test_fraction"], seed)


def prepare(
    name: str, preparation: dict, seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Write the arrays of a split and `dataset.json`; see `write_arrays`.

    Parameters
    ----------
    inputs : files as `escala.data.genomes.settings.prepared_from` returns them. For simulated
        genomes, `groups` is the folder that holds `lineages.tsv`.
    """
    groups = inputs.get("groups")
    if groups and groups.is_dir():
        groups = groups / "lineages.tsv"
    return write_arrays(name, preparation, seed, inputs["codes"].parent, output, groups)


def write_arrays(
    name: str,
    preparation: dict,
    seed: int,
    source: Path,
    output: Path,
    groups: Path | None = None,
) -> dict:
    """Split a dataset, cut its genomes into rows, balance them, and write the arrays.

    Memory is bounded by a block of rows, tables with a few numbers per genome and row, and what
    SMOTEN needs; arrays are mapped or written in blocks.

    Parameters
    ----------
    name : of the dataset.
    preparation : its `provenance`, `classes`, `length`, `window`, `deduplicate`, `split` and
        `oversample`, as `escala.data.genomes.settings.preparation` gives them.
    seed : of the split.
    source : folder with `codes.npy`, `records.tsv` and `classes.csv`.
    output : folder that receives `train.npy` and `test.npy` (uint8, rows × length), their labels
        (int64), the genome of each row (`*_genomes.npy`, int32: its row in `records.tsv`, or
        `SYNTHETIC`) and `dataset.json`.
    groups : see `split`.

    Returns
    -------
    The description that `dataset.json` holds.

    Raises
    ------
    InputError : a class is too small for the split or for SMOTEN, or as `split`.
    """
    genomes = Genomes.load(source)
    classes, oversample = preparation["classes"], preparation["oversample"]
    leaky = oversample["method"] != "none" and oversample["order"] == "before-split"
    make = _balanced_first if leaky else _split_first
    with ExitStack() as files:
        paths = {
            file: files.enter_context(atomic(output / file))
            for file in (ROWS.format(side=side) for side in ("train", "test"))
        }
        sides, not_separable, before = make(genomes, preparation, seed, groups, paths)
        for side, (labels, origins) in sides.items():
            for file, array in (
                (LABELS.format(side=side), labels.astype(np.int64)),
                (f"{side}_genomes.npy", origins.astype(np.int32)),
            ):
                paths[file] = files.enter_context(atomic(output / file))
                np.save(paths[file], array, allow_pickle=False)
        digests = {file: sha256_file(path) for file, path in sorted(paths.items())}
    as_written = {"dtype": {"class": str}, "keep_default_na": False}
    report = pd.read_csv(source / "classes.csv", **as_written).set_index("class")
    numbers = {
        "train": before,
        "balanced": _count(sides["train"][0], classes),
        "test": _count(sides["test"][0], classes),
    }
    description = {
        "format": FORMAT,
        "kind": KIND,
        "dataset": name,
        **{key: preparation[key] for key in ("provenance", "classes", "length", "window")},
        "leaky": leaky,
        "split_seed": seed,
        "split": preparation["split"],
        "not_separable": [classes[label] for label in not_separable],
        "deduplicate": preparation["deduplicate"],
        "oversample": oversample,
        "inputs": [_described("codes", (preparation["length"],), np.uint8, ROWS)],
        "targets": _described("labels", (), np.int64, LABELS),
        "rows": {side: len(labels) for side, (labels, _) in sides.items()},
        "counts": {
            c: {
                "records": int(report.loc[c, "records"]),
                "kept": int(report.loc[c, "kept"]),
                **{stage: int(count[label]) for stage, count in numbers.items()},
            }
            for label, c in enumerate(classes)
        },
        "sha256": digests,
    }
    write_json(output / "dataset.json", description)
    return description


def _described(name: str, shape: tuple[int, ...], dtype: type, file: str) -> dict:
    """Return the entry of an array in `dataset.json`."""
    return {"name": name, "shape": list(shape), "dtype": np.dtype(dtype).name, "file": file}


Sides = dict[str, tuple[np.ndarray, np.ndarray]]


def _split_first(
    genomes: Genomes, preparation: dict, seed: int, groups: Path | None, paths: dict[str, Path]
) -> tuple[Sides, tuple[int, ...], np.ndarray]:
    """Split first, then balance the training side: no training row derives from a test genome.

    Returns
    -------
    Labels and genomes of the rows of each side, the labels of classes that the split cannot
    separate, and the training rows of each class before balancing.
    """
    classes, length = preparation["classes"], preparation["length"]
    parts = split(genomes.records, preparation, seed, groups)
    train, test = (
        windows.windows(side, genomes.letters, length, preparation["window"], seed)
        for side in (parts.train, parts.test)
    )
    before = _count(genomes.labels[train["genome"]], classes)
    sides = {
        "train": _write_balanced(genomes, train, preparation, paths["train.npy"]),
        "test": (genomes.labels[test["genome"]], test["genome"]),
    }
    with written(paths["test.npy"], (length,), np.uint8) as writer:
        for block in genomes.blocks(test, length):
            writer.append(block)
    return sides, parts.single_group_classes, before


def _balanced_first(
    genomes: Genomes, preparation: dict, seed: int, groups: Path | None, paths: dict[str, Path]
) -> tuple[Sides, tuple[int, ...], np.ndarray]:
    """Balance first, then split, as the source work did: copies of a genome reach both sides.

    Returns
    -------
    As `_split_first`.
    """
    classes, length = preparation["classes"], preparation["length"]
    everything = windows.windows(
        np.arange(len(genomes.records)), genomes.letters, length, preparation["window"], seed
    )
    whole = paths["train.npy"].with_name("all.npy")
    labels, origins = _write_balanced(genomes, everything, preparation, whole)
    parts = stratified_split(labels, classes, preparation["split"]["test_fraction"], seed)
    rows = np.load(whole, mmap_mode="r", allow_pickle=False)
    for file, side in (("train.npy", parts.train), ("test.npy", parts.test)):
        with written(paths[file], (length,), np.uint8) as writer:
            size = max(1, windows.BLOCK_BYTES // length)
            for first in range(0, len(side), size):
                writer.append(rows[side[first : first + size]])
    whole.unlink()
    sides = {
        "train": (labels[parts.train], origins[parts.train]),
        "test": (labels[parts.test], origins[parts.test]),
    }
    return sides, parts.single_group_classes, _count(labels[parts.train], classes)


def _write_balanced(
    genomes: Genomes, rows: np.ndarray, preparation: dict, path: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Write rows and the rows that enlarge their classes; return the label and genome of each."""
    length, oversample = preparation["length"], preparation["oversample"]
    labels = genomes.labels[rows["genome"]]
    strategy = balance.wanted(labels, preparation["classes"], oversample)
    added = balance.more_rows(
        rows, labels, genomes.letters, genomes.identities, strategy, oversample, length
    )
    rows = np.concatenate([rows, added])
    all_labels, origins = [genomes.labels[rows["genome"]]], [rows["genome"]]
    with written(path, (length,), np.uint8) as writer:
        for block in genomes.blocks(rows, length):
            writer.append(block)
        writer.flush()
        given = np.load(path, mmap_mode="r", allow_pickle=False)[: len(labels)]
        for label, block in balance.synthetic(given, labels, strategy, oversample):
            writer.append(block)
            all_labels.append(np.full(len(block), label))
            origins.append(np.full(len(block), SYNTHETIC))
    return np.concatenate(all_labels), np.concatenate(origins)


def _count(labels: np.ndarray, classes: list[str]) -> np.ndarray:
    return np.bincount(labels, minlength=len(classes))
