"""Make the arrays of a split from the codes of nucleotides, in blocks; read genomes to predict."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.files import atomic, sha256_file, write_json
from escala.data.base import Query, invalid, specs
from escala.data.genomes import windows
from escala.data.genomes.similarity import read_groups
from escala.data.genomes.split import group_split, split_at_random, split_leaving_out
from escala.data.nucleotides import encode, nucleotides, records
from escala.data.splits import array_entry, open_array, take_blocks, write_blocks

RECORD_COLUMNS = ["class", "label", "accession", "length", "genome", "offset", "letters"]


def encode_classes(
    folder: Path,
    classes: list[str],
    length: int,
    deduplicate: str,
    output: Path,
    letters_kept: int | None = None,
) -> pd.DataFrame:
    """Encode one FASTA file for each class, and drop exact duplicates within the class.

    Memory holds one genome at a time, and for each record two digests and a row of the table. A
    genome that occurs in two classes is refused.

    Parameters
    ----------
    folder : holds `CLASS.fasta` for each of `classes`; the label of a class is its position in
        `classes`.
    length : letters of a row; `encoded` compares only these letters.
    deduplicate : `none`, `genome` (compare whole sequences, upper case) or `encoded`.
    letters_kept : letters to keep from the start of each genome; None keeps all of them.
    output : receives `codes.npy` (uint8 of shape (letters,), the kept genomes concatenated),
        `records.tsv` (for each genome, its start `offset` and its number of `letters` in
        `codes.npy`) and `classes.csv`. The last is also returned: for each class, the numbers of
        records, of genome and encoded duplicates and of kept records, the lengths, and the fraction
        of ambiguous letters.
    """
    rows, class_of, offset = [], {}, 0
    codes_path = output / "codes.npy"
    with atomic(codes_path) as temporary, open_array(temporary, (), np.uint8) as writer:
        for label, name in enumerate(classes):
            path, seen = folder / f"{name}.fasta", set()
            shown = tqdm(nucleotides(records(path), path), desc=name, unit=" records", disable=None)
            for accession, sequence in shown:
                genome = hashlib.sha256(sequence.upper()).digest()
                if class_of.setdefault(genome, name) != name:
                    reason = f"the same genome is in {class_of[genome]}"
                    raise InputError(path, accession, reason, "keep it in one class only")
                codes = encode(sequence)
                encoded = hashlib.sha256(codes[:length].ljust(length, b"\0")).digest()
                identity = {"genome": genome, "encoded": encoded}.get(deduplicate)
                keep = identity is None or identity not in seen
                seen.add(identity)
                kept = np.frombuffer(codes[:letters_kept] if keep else b"", np.uint8)
                writer.append(kept)
                row = (name, label, accession, len(codes), genome.hex(), offset, len(kept))
                rows.append((*row, encoded, codes.count(0), keep))
                offset += len(kept)
    table = pd.DataFrame(rows, columns=[*RECORD_COLUMNS, "encoded", "ambiguous", "kept"])
    groups = table.groupby(["class", "label"], sort=False)
    count, lengths = groups.size(), groups["length"]
    summary = {
        "records": count,
        "duplicates_genome": count - groups["genome"].nunique(),
        "duplicates_encoded": count - groups["encoded"].nunique(),
        "kept": groups["kept"].sum(),
        "length_min": lengths.min(),
        "length_median": lengths.median(),
        "length_max": lengths.max(),
        "ambiguous_fraction": groups["ambiguous"].sum() / lengths.sum(),
    }
    report = pd.DataFrame(summary).reset_index()
    with atomic(output / "records.tsv") as temporary:
        table.loc[table["kept"], RECORD_COLUMNS].to_csv(temporary, sep="\t", index=False)
    with atomic(output / "classes.csv") as temporary:
        report.to_csv(temporary, index=False)
    return report


def read_records(path: Path) -> pd.DataFrame:
    """Read `records.tsv`; names of classes and records, even NA or 1, stay text."""
    as_written = dict.fromkeys(("class", "accession", "genome"), str)
    return pd.read_csv(path, sep="\t", dtype=as_written, keep_default_na=False)


FORMAT = 4
KIND = "genomes"
#: The files of a side: its rows, the labels of the rows, and the genome of each row.
ROWS, LABELS, GENOMES = "{side}.npy", "{side}_labels.npy", "{side}_genomes.npy"
#: The genome number of a row that SMOTEN made.
SYNTHETIC = -1
#: Allowed values of a dataset's `window.method`.
WINDOW_METHODS = ("start", "random", "tiles")
#: Maximum number of windows of a record; of a longer record, windows at even distances are taken.
WINDOWS = 64


@dataclass(frozen=True)
class Genomes:
    """The genomes of a dataset: their concatenated codes, uint8 of shape (letters,), and `records`.

    `records` has a row for each genome; see `encode_classes`.
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
        """Yield the codes of `rows`, an array of `windows.ROW`; see `windows.blocks`."""
        offsets = self.records["offset"].to_numpy(np.int64)
        return windows.blocks(self.codes, offsets, self.letters, rows, length)


class WrittenSplit(NamedTuple):
    """The labels and genomes of the written rows, by side.

    `not_separable` are the labels of the classes that the split cannot separate. `unbalanced` is
    the number of training rows of each class before balancing.
    """

    sides: dict[str, tuple[np.ndarray, np.ndarray]]
    not_separable: tuple[int, ...]
    unbalanced: np.ndarray


def prepare(
    name: str, preparation: dict, seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Split a dataset, cut its genomes into rows, balance the classes, and write the arrays.

    Memory is bounded by a block of rows, tables with a few numbers per genome and row, and what
    SMOTEN needs. `preparation` is the result of `escala.data.genomes.preparation`.

    `output` receives, for each side, the rows (`train.npy`, `test.npy`, uint8, rows × length), the
    labels (int64), and the genomes (`*_genomes.npy`, int32). The number of a genome is its row in
    `records.tsv`, or `SYNTHETIC`.
    """
    source, groups = inputs["codes"].parent, inputs.get("groups")
    if groups and groups.is_dir():
        groups = groups / "lineages.tsv"  # A simulated source writes this file.
    genomes, oversample = Genomes.load(source), preparation["oversample"]
    leaky = oversample["method"] != "none" and oversample["order"] == "before-split"
    with ExitStack() as files:
        paths = {
            file: files.enter_context(atomic(output / file))
            for side in ("train", "test")
            for file in (form.format(side=side) for form in (ROWS, LABELS, GENOMES))
        }
        if leaky:
            made = _balance_first(genomes, preparation, seed, paths)
        else:
            made = _split_first(genomes, preparation, seed, groups, paths)
        for side, (labels, origins) in made.sides.items():
            for file, array in ((LABELS, labels.astype(np.int64)),
                                (GENOMES, origins.astype(np.int32))):  # fmt: skip
                np.save(paths[file.format(side=side)], array, allow_pickle=False)
        digests = {file: sha256_file(path) for file, path in sorted(paths.items())}
    classes, length = preparation["classes"], preparation["length"]
    description = {
        "format": FORMAT,
        "kind": KIND,
        "dataset": name,
        **{key: preparation[key] for key in ("provenance", "classes", "length", "window")},
        "leaky": leaky,
        "split_seed": seed,
        "split": preparation["split"],
        "not_separable": [classes[label] for label in made.not_separable],
        "deduplicate": preparation["deduplicate"],
        "oversample": oversample,
        "inputs": [array_entry("codes", (length,), np.uint8, ROWS)],
        "targets": array_entry("labels", (), np.int64, LABELS),
        "rows": {side: len(labels) for side, (labels, _) in made.sides.items()},
        "counts": _counts(source / "classes.csv", made, classes),
        "sha256": digests,
    }
    write_json(output / "dataset.json", description)
    return description


def _counts(report: Path, made: WrittenSplit, classes: list[str]) -> dict[str, dict[str, int]]:
    """Return, for each class, the number of records, of kept records, and of rows at each stage."""
    table = pd.read_csv(report, dtype={"class": str}, keep_default_na=False).set_index("class")
    stages = {
        "train": made.unbalanced,
        "balanced": _count(made.sides["train"][0], classes),
        "test": _count(made.sides["test"][0], classes),
    }
    return {
        name: {key: int(table.loc[name, key]) for key in ("records", "kept")}
        | {stage: int(count[label]) for stage, count in stages.items()}
        for label, name in enumerate(classes)
    }


def _split_first(
    genomes: Genomes, preparation: dict, seed: int, groups: Path | None, paths: dict[str, Path]
) -> WrittenSplit:
    """Split first, then balance the training side: no training row derives from a test genome."""
    length, window = preparation["length"], preparation["window"]
    settings, classes, labels = preparation["split"], preparation["classes"], genomes.labels
    names = None if settings["by"] == "random" else read_groups(groups, genomes.records)
    if names is None:
        parts = split_at_random(labels, classes, settings["test_fraction"], seed)
    elif "leave_out" in settings:
        parts = split_leaving_out(labels, names, classes, settings["leave_out"])
    else:
        parts = group_split(labels, names, classes, settings["test_fraction"], seed)
    train, test = (
        windows.windows(side, genomes.letters, length, window, seed)
        for side in (parts.train, parts.test)
    )
    unbalanced = _count(labels[train["genome"]], classes)
    sides = {
        "train": _write_balanced(genomes, train, preparation, paths["train.npy"]),
        "test": (labels[test["genome"]], test["genome"]),
    }
    write_blocks(paths["test.npy"], (length,), np.uint8, genomes.blocks(test, length))
    return WrittenSplit(sides, parts.single_group_classes, unbalanced)


def _balance_first(
    genomes: Genomes, preparation: dict, seed: int, paths: dict[str, Path]
) -> WrittenSplit:
    """Balance first, then split, as the source work did: copies of a genome reach both sides."""
    classes, length = preparation["classes"], preparation["length"]
    everything = windows.windows(
        np.arange(len(genomes.records)), genomes.letters, length, preparation["window"], seed
    )
    whole = paths["train.npy"].with_name("all.npy")
    labels, origins = _write_balanced(genomes, everything, preparation, whole)
    parts = split_at_random(labels, classes, preparation["split"]["test_fraction"], seed)
    rows = np.load(whole, mmap_mode="r", allow_pickle=False)
    size, sides = max(1, windows.BLOCK_BYTES // length), {}
    for side, part in (("train", parts.train), ("test", parts.test)):
        blocks = take_blocks(rows, part, size)
        write_blocks(paths[f"{side}.npy"], (length,), np.uint8, blocks)
        sides[side] = labels[part], origins[part]
    whole.unlink()
    return WrittenSplit(sides, parts.single_group_classes, _count(sides["train"][0], classes))


def _write_balanced(
    genomes: Genomes, rows: np.ndarray, preparation: dict, path: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Write rows, then the rows that enlarge classes; return the label and genome of every row."""
    length, oversample = preparation["length"], preparation["oversample"]
    labels = genomes.labels[rows["genome"]]
    enlarged = windows.class_sizes(labels, preparation["classes"], oversample)
    added = windows.more_rows(
        rows, labels, genomes.letters, genomes.identities, enlarged, oversample, length
    )
    rows = np.concatenate([rows, added])
    all_labels, origins = [genomes.labels[rows["genome"]]], [rows["genome"]]
    with open_array(path, (length,), np.uint8) as writer:
        for block in genomes.blocks(rows, length):
            writer.append(block)
        writer.flush()
        originals = np.load(path, mmap_mode="r", allow_pickle=False)[: len(labels)]
        for label, block in windows.synthetic(originals, labels, enlarged, oversample):
            writer.append(block)
            all_labels.append(np.full(len(block), label))
            origins.append(np.full(len(block), SYNTHETIC))
    return np.concatenate(all_labels), np.concatenate(origins)


def _count(labels: np.ndarray, classes: list[str]) -> np.ndarray:
    return np.bincount(labels, minlength=len(classes))


def queries(path: Path, description: Mapping[str, Any]) -> Iterator[Query]:
    """Yield the records of a nucleotide FASTA file, cut as the model's training rows were cut.

    A model trained on the starts of genomes (`window.method: start`) gets only the start of each
    record, so the file must hold whole genomes or starts of genomes. Other models get tiles of the
    whole record. Each query has the columns `accession`, `letters`, `shorter_than_rows` and
    `windows`. Its evidence is the codes from which the rows are cut.
    """
    _window(description)  # Refuse a wrong model before the file is read.
    [spec] = specs(description)
    [length] = spec.shape
    parsed = tqdm(records(path), desc=path.name, unit=" records", disable=None)
    for accession, sequence in nucleotides(parsed, path):
        columns = {
            "accession": accession,
            "letters": len(sequence),
            "shorter_than_rows": len(sequence) < length,
        }
        yield query(columns, np.frombuffer(encode(sequence), np.uint8), description)


def query(columns: Mapping[str, Any], codes: np.ndarray, description: Mapping[str, Any]) -> Query:
    """Return the query of a sequence, cut as the model's training rows were cut.

    `codes` are uint8 of shape (letters,). With the method `start`, the rows are as in training: one
    row, and the other strand if the model was trained on both. With `random` and `tiles`, the rows
    are at most `WINDOWS` adjacent tiles of the whole sequence, on its own strand. The columns get
    the number of `windows`.
    """
    window = _window(description)
    [spec] = specs(description)
    [length] = spec.shape
    if window["method"] == "start":
        codes = codes[:length]
    else:
        window = {"method": "tiles", "stride": length, "reverse_complement": False}
    letters, first = np.array([len(codes)]), np.array([0])
    cut = windows.windows(first, letters, length, window, seed=0)
    if len(cut) > WINDOWS:
        cut = cut[np.linspace(0, len(cut) - 1, WINDOWS).astype(int)]
    pieces = np.concatenate(list(windows.blocks(codes, first, letters, cut, length)))
    return Query({**columns, "windows": len(pieces)}, (pieces,), codes)


def _window(description: Mapping[str, Any]) -> dict:
    """Return a model's window settings, checked: the model may come from an unknown source."""
    window = description.get("window")
    if not isinstance(window, dict) or window.get("method") not in WINDOW_METHODS:
        raise invalid("data.window.method", f"none of {', '.join(WINDOW_METHODS)}")
    if type(window.get("reverse_complement")) is not bool:
        raise invalid("data.window.reverse_complement", "no bool")
    return window
