"""Classes enlarged by windows of their own genomes that begin some letters later."""

from __future__ import annotations

import numpy as np

from escala.prepare.balance import rows_wanted


def add_windows(
    codes: np.ndarray,
    labels: np.ndarray,
    classes: list[str],
    *,
    length: int,
    rows: dict[str, int] | None,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Enlarge classes with windows that begin at random; the starts of the genomes come first.

    Genomes of one virus begin at different letters, as sequencing gave them, so a model that
    weighs positions must see each of them shifted.

    Parameters
    ----------
    codes : uint8 of shape (genomes, length + margin); windows begin within the margin.
    labels : int array of shape (genomes,), positions in `classes`.
    length : of the windows.
    rows : as in `escala.prepare.balance.balance`.

    Returns
    -------
    Codes, uint8 of shape (rows, length), and labels. Windows are drawn from the genomes of a class
    in turn, so that each genome gives the same number, give or take one.
    """
    random = np.random.default_rng(seed)
    margin = codes.shape[1] - length
    added, added_labels = [], []
    for label, wanted in rows_wanted(labels, classes, rows).items():
        members = random.permutation(np.flatnonzero(labels == label))
        missing = wanted - len(members)
        begins = random.integers(0, margin + 1, missing)
        for genome, begin in zip(np.resize(members, missing), begins, strict=True):
            added.append(codes[genome, begin : begin + length])
            added_labels.append(label)
    if not added:
        return codes[:, :length], labels
    return (
        np.concatenate([codes[:, :length], np.stack(added)]),
        np.concatenate([labels, np.array(added_labels, labels.dtype)]),
    )
