"""Which genomes are trained on and which are tested, stratified by class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import train_test_split

from escala.core.errors import InputError

#: How far the test side of a class may be from the rows wanted, as a share of them, so that seeds
#: have several sets of groups to draw from even if a single one is nearest.
SLACK = 0.1


@dataclass(frozen=True)
class Split:
    """Two sides of a dataset, as row numbers in ascending order.

    Parameters
    ----------
    train, test : int arrays.
    not_separable : labels of the classes that are of one group alone, and all in `train`.
    """

    train: np.ndarray
    test: np.ndarray
    not_separable: tuple[int, ...] = ()


def stratified_split(
    labels: np.ndarray, classes: list[str], test_fraction: float, seed: int
) -> Split:
    """Split rows at random, each class in the same proportion.

    Parameters
    ----------
    labels : int array of shape (rows,), positions in `classes`.

    Raises
    ------
    InputError : a class has too few records to stand on both sides.
    """
    counts = np.bincount(labels, minlength=len(classes))
    try:
        sides = train_test_split(
            np.arange(len(labels)), test_size=test_fraction, random_state=seed, stratify=labels
        )
        fewest = np.min([np.bincount(labels[s], minlength=len(classes)) for s in sides], axis=0)
    except ValueError:
        # scikit-learn refuses a class of one row, and a side with fewer rows than classes.
        fewest = np.where(counts == counts.min(), 0, counts)
    if not fewest.all():
        lacking = int(np.argmin(fewest))
        raise InputError(
            f"class {classes[lacking]}",
            int(counts[lacking]),
            f"records are too few for a split with test_fraction {test_fraction:g}: "
            "each class needs at least one row on either side",
            "add records, change test_fraction, or drop the class",
        )
    return Split(*map(np.sort, sides))


def group_split(
    labels: np.ndarray, groups: np.ndarray, classes: list[str], test_fraction: float, seed: int
) -> Split:
    """Split rows so that each group is on one side as a whole.

    Of each class, groups are drawn at random so that the test side gets `test_fraction` of its rows
    give or take `SLACK` of that, or as near to it as groups allow; at least one group stands on
    either side. A class of one group goes to the training side.

    Parameters
    ----------
    labels : int array of shape (rows,), positions in `classes`.
    groups : names of groups, of shape (rows,); a group holds rows of one class.

    Raises
    ------
    InputError : every class is of one group.
    """
    random = np.random.default_rng(seed)
    chosen, whole = [], []
    for label in range(len(classes)):
        own = labels == label
        names, sizes = np.unique(groups[own], return_counts=True)
        if len(names) < 2:
            whole.append(label)
            continue
        chosen += _drawn(names, sizes, test_fraction * own.sum(), random)
    return _of_groups(labels, groups, classes, chosen, tuple(whole))


def _drawn(
    names: np.ndarray, sizes: np.ndarray, wanted: float, random: np.random.Generator
) -> list[str]:
    """Return groups, some but not all, whose rows add up to what is wanted, or nearly.

    Bit n of an integer says whether n rows can be had. Groups are taken in random order wherever
    what is left can still add up to a number that is near enough.
    """
    order, rows = random.permutation(len(names)), int(sizes.sum())
    left = [1]
    for index in order[::-1]:
        left.append(left[-1] | left[-1] << int(sizes[index]))
    possible = [count for count in range(1, rows) if left[-1] >> count & 1]
    reach = max(SLACK * wanted, min(abs(count - wanted) for count in possible))
    allowed = sum(1 << count for count in possible if abs(count - wanted) <= reach)
    chosen = []
    for index, rest in zip(order, left[-2::-1], strict=True):
        without = allowed >> int(sizes[index])
        if without & rest:
            chosen.append(names[index])
            allowed = without
    return chosen


def split_leaving_out(
    labels: np.ndarray, groups: np.ndarray, classes: list[str], left_out: list[str]
) -> Split:
    """Train on all groups but those named, which are tested.

    Parameters
    ----------
    labels, groups : as `group_split`.
    left_out : names of groups.

    Returns
    -------
    A split in which classes of one group are not separable; other classes of which no group is
    named have no test rows either.

    Raises
    ------
    InputError : there is no such group, or it is all that there is of its class.
    """
    unknown = sorted(set(left_out) - set(groups))
    if unknown:
        raise InputError(
            "split.leave_out", unknown[0], "no such group", "name groups of the group file"
        )
    whole = []
    for label, name in enumerate(classes):
        own = set(groups[labels == label])
        if own and own <= set(left_out):
            raise InputError(
                "split.leave_out",
                sorted(own),
                f"is all there is of class {name}: nothing would be left to train on",
                "leave some of its groups in",
            )
        if len(own) == 1:
            whole.append(label)
    return _of_groups(labels, groups, classes, left_out, tuple(whole))


def _of_groups(
    labels: np.ndarray, groups: np.ndarray, classes: list[str], chosen: list, whole: tuple[int, ...]
) -> Split:
    if len(whole) == len(classes):
        raise InputError(
            "split.by",
            ", ".join(classes),
            "every class is of one group: none can be split",
            "raise similarity, give a finer group file, or set split.by: random",
        )
    tested = np.isin(groups.astype(str), np.asarray(chosen, str))
    return Split(np.flatnonzero(~tested), np.flatnonzero(tested), whole)
