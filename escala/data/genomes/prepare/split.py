"""Splits of genomes into a training and a test side, stratified by class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import train_test_split

from escala.core.errors import InputError

#: Tolerated deviation of a class's test rows from the wanted number, as a share of it. It lets
#: seeds draw from several sets of groups even if a single set is nearest.
SLACK = 0.1


@dataclass(frozen=True)
class Split:
    """Two sides of a dataset, as row numbers in ascending order.

    Parameters
    ----------
    train, test : int arrays.
    not_separable : labels of the classes with a single group, which is in `train`.
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
    InputError : a class has too few records for both sides.
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
            "each class needs at least one row on each side",
            "add records, change test_fraction, or drop the class",
        )
    return Split(*map(np.sort, sides))


def group_split(
    labels: np.ndarray, groups: np.ndarray, classes: list[str], test_fraction: float, seed: int
) -> Split:
    """Split rows so that each group is entirely on one side.

    In each class, groups are drawn at random until the test side has `test_fraction` of its rows,
    within a share `SLACK` of that number or as near as the groups allow. Each side gets at least
    one group. A class with a single group goes to the training side.

    Parameters
    ----------
    labels : int array of shape (rows,), positions in `classes`.
    groups : names of groups, of shape (rows,); a group holds rows of one class.

    Raises
    ------
    InputError : every class has a single group.
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
    """Return some groups, never all, whose rows add up to about the wanted number.

    Bit n of an integer tells whether some groups add up to n rows. Groups are tried in random
    order. A group is taken if the remaining ones can still complete an allowed sum.
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
    """Split rows so that the test side is the named groups.

    Parameters
    ----------
    labels, groups : as `group_split`.
    left_out : names of groups.

    Returns
    -------
    The split. A class with a single group is not separable. A class without a named group has no
    test rows either.

    Raises
    ------
    InputError : a group does not exist, or the named groups are all groups of a class.
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
                f"is the whole class {name}: no rows would be left to train on",
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
            "every class has a single group: none can be split",
            "raise similarity, give a finer group file, or set split.by: random",
        )
    tested = np.isin(groups.astype(str), np.asarray(chosen, str))
    return Split(np.flatnonzero(~tested), np.flatnonzero(tested), whole)
