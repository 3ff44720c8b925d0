"""Make the arrays of a split, to train and test on, from sequences with and without a motif."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.errors import InputError
from escala.data.base import SIDES
from escala.data.encode import reverse_complement
from escala.data.motifs.sequences import one_hot, read_sequences
from escala.data.motifs.simulate import TAL1, chance_sites, sequences
from escala.data.splits import Side, stratified, write_split

KIND = "motifs"
CLASSES = ["background", "motif"]


def prepare(
    name: str, preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Simulate sequences, or read them from two FASTA files, and write the arrays of a split.

    `seed` is that of the split, and of a simulation. `output` receives `{side}_sequence.npy`, uint8
    (rows, length, 4), one-hot, and `{side}_labels.npy`, int64 (rows,). The description also has
    `class_means`, the fraction of sequences with the motif on each side; and of a simulation
    `chance_sites`, the fraction of the sequences without it that hold a site by chance.
    """
    if preparation["provenance"] == "simulated":
        sides, more = _simulated(preparation, seed)
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


def _simulated(preparation: Mapping[str, Any], seed: int) -> tuple[dict[str, Side], dict]:
    length = preparation["length"]
    if len(TAL1) > length:
        reason = f"is less than the {len(TAL1)} letters of the motif"
        raise InputError("length", length, reason, "raise it")
    sides, by_chance, negative = {}, 0, 0
    for number, side in enumerate(SIDES):
        rows = preparation["rows"][side]
        if rows:
            random = np.random.default_rng([seed, number])
            letters, labels = sequences(TAL1, rows, length, random)
            sides[side] = Side({"sequence": one_hot(letters + np.uint8(1))}, labels)
            without = letters[labels == 0]
            by_chance += int(chance_sites(without, TAL1).sum())
            negative += len(without)
    fraction = by_chance / negative if negative else None
    return sides, {"motif": TAL1.tolist(), "chance_sites": fraction}


def _read(preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path]) -> dict[str, Side]:
    codes, labels = [], []
    known: dict[bytes, tuple[int, str]] = {}
    for label, name in enumerate(("negative", "positive")):
        for record, row in read_sequences(inputs[name], preparation["length"]):
            for strand in (row, reverse_complement(row)):
                other, found = known.get(strand.tobytes(), (label, ""))
                if other != label:
                    reason = f"is {found} in {inputs['negative'].name}, on one strand or the other"
                    remedy = "keep it in one of the files: with or without the motif"
                    raise InputError(inputs[name], record, reason, remedy)
            known[row.tobytes()] = label, record
            codes.append(row)
            labels.append(label)
    targets, encoded = np.array(labels, np.int64), one_hot(np.stack(codes))
    rows = stratified(targets, preparation["split"], CLASSES, seed)
    return {side: Side({"sequence": encoded[of]}, targets[of]) for side, of in rows.items()}
