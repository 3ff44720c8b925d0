"""Enlargement of small classes, by windows of their own genomes or by SMOTEN.

The libraries of SMOTEN take a second to import and are imported on demand.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from escala.core.errors import InputError
from escala.data.genomes.prepare.windows import random_windows


def wanted(labels: np.ndarray, classes: list[str], oversample: dict) -> dict[int, int]:
    """Return the wanted number of rows of each class to enlarge, by label.

    `oversample` gives the `rows` wanted per class name; classes not named, or larger already, stay
    as they are. Without it every class is enlarged to the largest. SMOTEN needs more rows of a
    class than `neighbours`.
    """
    if oversample["method"] == "none":
        return {}
    counts = np.bincount(labels, minlength=len(classes))
    rows = oversample.get("rows", dict.fromkeys(classes, int(counts.max())))
    enlarged = {
        label: rows[name] for label, name in enumerate(classes) if rows.get(name, 0) > counts[label]
    }
    for label in enlarged:
        if oversample["method"] == "smoten" and counts[label] <= oversample["neighbours"]:
            reason = f"rows are too few for SMOTEN with {oversample['neighbours']} neighbours"
            remedy = "add records, lower oversample.neighbours, or set oversample.method: none"
            raise InputError(f"class {classes[label]}", int(counts[label]), reason, remedy)
    return enlarged


def more_rows(
    rows: np.ndarray,
    labels: np.ndarray,
    letters: np.ndarray,
    identities: np.ndarray,
    enlarged: dict[int, int],
    oversample: dict,
    length: int,
) -> np.ndarray:
    """Return the rows to add that are pieces of genomes: windows, or copies of existing rows.

    With `features: sequence`, as in the source work, SMOTEN treats the whole genome as one nominal
    feature, and so makes only copies. There are none if it makes new rows position by position.

    Rows, with their `labels`, are arrays of `escala.data.genomes.prepare.windows.ROW`. `letters`
    and `identities` are of every genome: how many, and a number that equal genomes have in common.
    `enlarged` is as `wanted` returns it.
    """
    added = [rows[:0]]
    if oversample["method"] == "windows":
        for label, count in enlarged.items():
            given = rows[labels == label]
            within, seed = oversample.get("within"), oversample["seed"] + label
            added.append(random_windows(given, letters, length, count - len(given), within, seed))
    elif enlarged and (oversample["method"], oversample["features"]) == ("smoten", "sequence"):
        from imblearn.over_sampling import SMOTEN

        names = np.stack([identities[rows["genome"]], rows["begin"], rows["reverse"]], axis=1)
        _, first, identity = np.unique(names, axis=0, return_index=True, return_inverse=True)
        smoten = SMOTEN(
            sampling_strategy=enlarged,
            k_neighbors=oversample["neighbours"],
            random_state=oversample["seed"],
        )
        copies, _ = smoten.fit_resample(identity.reshape(-1, 1), labels)
        added.append(rows[first[copies[len(rows) :, 0].astype(np.int64)]])
    return np.concatenate(added)


def synthetic(
    codes: np.ndarray, labels: np.ndarray, enlarged: dict[int, int], oversample: dict
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the rows that SMOTEN makes with each position as a nominal feature, in blocks.

    They are a label, and codes of this class, uint8 of shape (some rows, length).
    """
    if enlarged and (oversample["method"], oversample["features"]) == ("smoten", "positions"):
        from escala.data.genomes.prepare.smoten import new_rows

        yield from new_rows(codes, labels, enlarged, oversample["neighbours"], oversample["seed"])
