"""Make the arrays of a split from sequences, simulated or read; read sequences to predict."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from escala.core.errors import InputError
from escala.data.base import Query, specs
from escala.data.nucleotides import encode, nucleotides, records, reverse_complement
from escala.data.settings import SIDES
from escala.data.splits import Side, stratify, write_split

KIND = "motifs"
CLASSES = ["background", "motif"]
#: TAL1_known4 of ENCODE, from TRANSFAC M00993: probabilities of A, C, G and T at each position.
TAL1 = np.array(
    [[0.25, 0, 0.25, 0.5], [0, 1, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0.2, 0.4, 0.4],
     [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0], [0.2, 0.4, 0.2, 0.2], [0, 0.4, 0, 0.6]]
)  # fmt: skip
#: Probabilities of A, C, G and T outside the motif, as in the source work (docs/systems/tal1.md).
BACKGROUND = np.array([0.3, 0.2, 0.2, 0.3])
#: Fraction of the sequences that have the motif.
POSITIVE = 0.5
#: An instance is drawn from the matrix · KEPT + ADDED, so that no letter has probability 0.
KEPT, ADDED = 0.999, 0.00025


def prepare(
    name: str, preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Simulate sequences, or read them from two FASTA files, and write the arrays of a split.

    `seed` is the seed of the split, and of a simulation. `output` receives `{side}_sequence.npy`,
    uint8 (rows, length, 4), one-hot, and `{side}_labels.npy`, int64 (rows,). The description also
    has `class_means`, the fraction of sequences with the motif on each side. A simulation adds
    `chance_sites`: of the sequences without an inserted motif, the fraction that holds a site by
    chance.
    """
    if preparation["provenance"] == "simulated":
        length = preparation["length"]
        if len(TAL1) > length:
            reason = f"is less than the {len(TAL1)} letters of the motif"
            raise InputError("length", length, reason, "raise it")
        sides, by_chance, negative = {}, 0, 0
        for number, side in enumerate(SIDES):
            rows = preparation["rows"][side]
            if rows:
                random = np.random.default_rng([seed, number])
                letters, labels = simulate(TAL1, rows, length, random)
                sides[side] = Side({"sequence": one_hot(letters + np.uint8(1))}, labels)
                without = letters[labels == 0]
                by_chance += int(chance_sites(without, TAL1).sum())
                negative += len(without)
        fraction = by_chance / negative if negative else None
        more = {"motif": TAL1.tolist(), "chance_sites": fraction}
    else:
        sides, more = _read(preparation, seed, inputs), {"split": preparation["split"]}
    return write_split(
        output,
        sides,
        kind=KIND,
        name=name,
        seed=seed,
        provenance=preparation["provenance"],
        classes=CLASSES,
        class_means={side: float(rows.targets.mean()) for side, rows in sides.items()},
        **more,
    )


def _read(preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path]) -> dict[str, Side]:
    """Return the sides of two FASTA files; refuse a sequence that is in both, on any strand."""
    codes, labels = [], []
    # The label and the name of each earlier sequence, by the codes.
    before: dict[bytes, tuple[int, str]] = {}
    for label, name in enumerate(("negative", "positive")):
        for record, row in read_sequences(inputs[name], preparation["length"]):
            for strand in (row, reverse_complement(row)):
                label_before, twin = before.get(strand.tobytes(), (label, ""))
                if label_before != label:
                    reason = f"is {twin} in {inputs['negative'].name}, on one strand or the other"
                    remedy = "keep it in one file: with or without the motif"
                    raise InputError(inputs[name], record, reason, remedy)
            before[row.tobytes()] = label, record
            codes.append(row)
            labels.append(label)
    targets, encoded = np.array(labels, np.int64), one_hot(np.stack(codes))
    divided = stratify(targets, preparation["split"], CLASSES, seed)
    return {
        side: Side({"sequence": encoded[rows]}, targets[rows]) for side, rows in divided.items()
    }


def simulate(
    matrix: np.ndarray, rows: int, length: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences of letters and whether each holds the motif.

    The sequences are uint8 (rows, length), 0 to 3 for A, C, G and T. The labels are int64 (rows,),
    1 with the motif. In a sequence with the motif, one instance replaces background letters, at a
    position and on a strand drawn uniformly. `matrix` is float64 (positions, 4), rows of sum 1.
    """
    letters = _draw(BACKGROUND[None], random.random((rows, length)))
    labels = (random.random(rows) < POSITIVE).astype(np.int64)
    positive = np.flatnonzero(labels)
    width = len(matrix)
    instances = _draw(matrix * KEPT + ADDED, random.random((len(positive), width)))
    reverse = random.random(len(positive)) < 0.5
    # The complements of 0 to 3 are 3 to 0.
    instances[reverse] = 3 - instances[reverse, ::-1]
    begin = random.integers(0, length - width + 1, len(positive))
    letters[positive[:, None], begin[:, None] + np.arange(width)] = instances
    return letters, labels


def chance_sites(letters: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return which sequences hold a window, on any strand, that the motif's matrix allows.

    `letters` are uint8 (rows, length), 0 to 3. `matrix`, float64 (positions, 4), allows the letters
    whose probability is above 0. The result is bool (rows,).
    """
    with_site = np.zeros(len(letters), bool)
    for allowed in (matrix > 0, (matrix > 0)[::-1, ::-1]):
        windows = letters.shape[1] - len(matrix) + 1
        fits = np.ones((len(letters), windows), bool)
        for position, allowed_letters in enumerate(allowed):
            fits &= allowed_letters[letters[:, position : position + windows]]
        with_site |= fits.any(axis=1)
    return with_site


def _draw(probabilities: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Return letters, uint8 (rows, positions), drawn with `probabilities` (positions or 1, 4)."""
    limits = probabilities.cumsum(axis=1)[:, :-1]
    return (uniform[..., None] >= limits).sum(axis=-1, dtype=np.uint8)


def read_sequences(path: Path, length: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and codes, uint8 (length,), of each record: 1 to 4 for A, C, G, T, otherwise 0.

    A file that is no nucleotide FASTA, and a sequence of another length, are refused.
    """
    for name, letters in nucleotides(records(path), path):
        if len(letters) != length:
            reason = f"has {len(letters)} letters, and length is {length}"
            remedy = f"give sequences of {length} letters, or set length"
            raise InputError(path, name, reason, remedy)
        yield name, np.frombuffer(encode(letters), np.uint8)


def one_hot(codes: np.ndarray) -> np.ndarray:
    """Return codes 1 to 4, (rows, length), as one-hot uint8 (rows, length, 4); code 0 as zeros."""
    return (codes[..., None] == np.arange(1, 5, dtype=np.uint8)).astype(np.uint8)


def queries(path: Path, description: Mapping[str, Any]) -> Iterator[Query]:
    """Yield the records of a FASTA file; they must have the length of the training rows.

    The only column of a query is the `accession` of the record.
    """
    [spec] = specs(description)
    sequences = read_sequences(path, spec.shape[0])
    for accession, codes in tqdm(sequences, desc=path.name, unit=" records", disable=None):
        yield Query({"accession": accession}, (one_hot(codes[None]),))
