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

    Parameters
    ----------
    labels : int array of shape (rows,), positions in `classes`.
    oversample : `rows` wanted per class name; classes not named, or larger already, stay as they
        are. Without it every class is enlarged to the largest. `method: none` enlarges none.

    Raises
    ------
    InputError : the method is SMOTEN, and a class to enlarge has no more rows than `neighbours`.
    """
    if oversample["method"] == "none":
        return {}
    counts = np.bincount(labels, minlength=len(classes))
    rows = oversample.get("rows", dict.fromkeys(classes, int(counts.max())))
    strategy = {
        label: rows[name] for label, name in enumerate(classes) if rows.get(name, 0) > counts[label]
    }
    for label in strategy:
        if oversample["method"] == "smoten" and counts[label] <= oversample["neighbours"]:
            raise InputError(
                f"class {classes[label]}",
                int(counts[label]),
                f"rows are too few for SMOTEN with {oversample['neighbours']} neighbours",
                "add records, lower oversample.neighbours, or set oversample.method: none",
            )
    return strategy


def more_rows(
    rows: np.ndarray,
    labels: np.ndarray,
    letters: np.ndarray,
    identities: np.ndarray,
    strategy: dict[int, int],
    oversample: dict,
    length: int,
) -> np.ndarray:
    """Return the rows to add that are pieces of genomes: windows, or copies of existing rows.

    With `features: sequence`, as in the source work, SMOTEN treats the whole genome as one nominal
    feature, and so makes only copies.

    Parameters
    ----------
    rows : array of `escala.data.genomes.prepare.windows.ROW`, with their `labels`.
    letters, identities : of every genome: its number of letters, and a number that equal genomes
        share.
    strategy : as `wanted` returns it.

    Returns
    -------
    Array of `ROW`, class by class; empty if SMOTEN makes new rows position by position.
    """
    added = [rows[:0]]
    if oversample["method"] == "windows":
        for label, count in strategy.items():
            own = rows[labels == label]
            seed = oversample["seed"] + label
            within = oversample.get("within")
            added.append(random_windows(own, letters, length, count - len(own), within, seed))
    elif strategy and (oversample["method"], oversample["features"]) == ("smoten", "sequence"):
        from imblearn.over_sampling import SMOTEN

        names = np.stack([identities[rows["genome"]], rows["begin"], rows["reverse"]], axis=1)
        _, first, identity = np.unique(names, axis=0, return_index=True, return_inverse=True)
        smoten = SMOTEN(
            sampling_strategy=strategy,
            k_neighbors=oversample["neighbours"],
            random_state=oversample["seed"],
        )
        copies, _ = smoten.fit_resample(identity.reshape(-1, 1), labels)
        added.append(rows[first[copies[len(rows) :, 0].astype(np.int64)]])
    return np.concatenate(added)


def synthetic(
    codes: np.ndarray, labels: np.ndarray, strategy: dict[int, int], oversample: dict
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the rows that SMOTEN makes with each position as a nominal feature, in blocks.

    Parameters
    ----------
    codes : uint8 of shape (rows, length); may be mapped from a file.
    strategy : as `wanted` returns it.

    Yields
    ------
    A label, and codes of this class, uint8 of shape (some rows, length).
    """
    if not strategy or (oversample["method"], oversample["features"]) != ("smoten", "positions"):
        return
    settings = {
        "sampling_strategy": strategy,
        "k_neighbors": oversample["neighbours"],
        "random_state": oversample["seed"],
    }
    if oversample["implementation"] == "escala":
        from escala.data.genomes.prepare.smoten import SMOTEN

        yield from SMOTEN(**settings).new_rows(codes, labels)
        return
    from imblearn.over_sampling import SMOTEN

    enlarged, new_labels = SMOTEN(**settings).fit_resample(codes, labels)
    for label in strategy:
        own = np.flatnonzero(new_labels[len(codes) :] == label) + len(codes)
        yield label, enlarged[own].astype(np.uint8)
