"""Split genomes into a training and a test side, stratified by class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import train_test_split

from escala.core.errors import InputError

#: Tolerance of a class's number of test rows, as a share of the wanted number. Without it, only the
#: set of groups that fits best could be drawn, and every seed would give the same split.
SLACK = 0.1


@dataclass(frozen=True)
class Split:
    """Two sides of a dataset, as row numbers in ascending order.

    Parameters
    ----------
    train, test : int arrays.
    single_group_classes : labels of the classes with one group or none; all their rows are in
        `train`.
    """

    train: np.ndarray
    test: np.ndarray
    single_group_classes: tuple[int, ...] = ()


def stratified_split(
    labels: np.ndarray, classes: list[str], test_fraction: float, seed: int
) -> Split:
    """Split rows at random, each class in the same proportion.

    Parameters
    ----------
    labels : int array of shape (rows,), positions in `classes`.

    Raises
    ------
    InputError : `test_fraction` is not between 0 and 1, or a class has too few rows for both sides.
    """
    if not 0 < test_fraction < 1:
        raise InputError(
            "split.test_fraction", test_fraction, "is not between 0 and 1", "give 0.3, for example"
        )
    counts = np.bincount(labels, minlength=len(classes))
    try:
        sides = train_test_split(
            np.arange(len(labels)), test_size=test_fraction, random_state=seed, stratify=labels
        )
        # For each class, its rows on the side that has fewer of them.
        fewest_rows = np.min(
            [np.bincount(labels[s], minlength=len(classes)) for s in sides], axis=0
        )
    except ValueError:
        # scikit-learn made no sides: a class has one row, or a side would have fewer rows than
        # there are classes. The smallest class is then named in the message below.
        fewest_rows = np.where(counts == counts.min(), 0, counts)
    if not fewest_rows.all():
        scarce_class = int(np.argmin(fewest_rows))
        raise InputError(
            f"class {classes[scarce_class]}",
            int(counts[scarce_class]),
            f"too few rows for test_fraction {test_fraction:g}: "
            "each class needs at least one on each side",
            "add records, change test_fraction, or drop the class",
        )
    return Split(*map(np.sort, sides))


def group_split(
    labels: np.ndarray, groups: np.ndarray, classes: list[str], test_fraction: float, seed: int
) -> Split:
    """Split rows so that each group is entirely on one side.

    In each class, groups are drawn at random for the test side. The wanted number of test rows is
    `test_fraction` of the rows of the class. The number of rows in the drawn groups may differ from
    it by `SLACK` times the wanted number. If no set of groups has such a number of rows, a set with
    the nearest number is drawn. Each side gets at least one group. A class with a single group goes
    to the training side.

    Parameters
    ----------
    labels : int array of shape (rows,), positions in `classes`.
    groups : names of groups, of shape (rows,); a group holds rows of one class.

    Raises
    ------
    InputError : every class has a single group.
    """
    random = np.random.default_rng(seed)
    test_groups, single_group_classes = [], []
    for label in range(len(classes)):
        in_class = labels == label
        names, sizes = np.unique(groups[in_class], return_counts=True)
        if len(names) < 2:
            single_group_classes.append(label)
        else:
            test_groups += _draw_groups(names, sizes, test_fraction * in_class.sum(), random)
    if len(single_group_classes) == len(classes):
        raise InputError(
            "split.by",
            ", ".join(classes),
            "every class has a single group: none can be split",
            "raise similarity, give a finer group file, or set split.by: random",
        )
    return _split_by_groups(groups, test_groups, single_group_classes)


def _draw_groups(
    names: np.ndarray, sizes: np.ndarray, wanted: float, random: np.random.Generator
) -> list[str]:
    """Return some groups, never all, whose rows add up to about the wanted number.

    An allowed sum differs from the wanted number by at most `SLACK` of it, or is the nearest
    possible sum. The groups are tried in random order. A group is taken if an allowed sum can still
    be reached with it. The sum is then: the rows taken before, the rows of this group, and the rows
    of some of the later groups.

    An integer stands for a set of sums: bit n is 1 if n is in the set. Memory: up to
    groups × rows / 8 bytes.
    """
    order, rows = random.permutation(len(names)), int(sizes.sum())
    # sums_of_last[k]: the numbers of rows that some of the last k groups add up to.
    sums_of_last = [1]
    for index in order[::-1]:
        sums_of_last.append(sums_of_last[-1] | sums_of_last[-1] << int(sizes[index]))
    possible = _members(sums_of_last[-1] & ~(1 | 1 << rows), rows)
    distances = np.abs(possible - wanted)
    allowed = _set_of(possible[distances <= max(SLACK * wanted, distances.min())])
    test_groups = []
    for index, sums_of_rest in zip(order, sums_of_last[-2::-1], strict=True):
        allowed_after_taking = allowed >> int(sizes[index])
        if allowed_after_taking & sums_of_rest:
            test_groups.append(names[index])
            allowed = allowed_after_taking
    return test_groups


def _members(sums: int, largest: int) -> np.ndarray:
    """Return the numbers up to `largest` in a set of sums, in ascending order."""
    data = sums.to_bytes(largest // 8 + 1, "little")
    return np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little"))


def _set_of(numbers: np.ndarray) -> int:
    """Return the integer that stands for a set of sums; `numbers` must not be empty."""
    bits = np.zeros(numbers.max() + 1, bool)
    bits[numbers] = True
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


def split_leaving_out(
    labels: np.ndarray, groups: np.ndarray, classes: list[str], left_out: list[str]
) -> Split:
    """Put the named groups in the test side, all others in training.

    A class with no named group has no test rows.

    Parameters
    ----------
    labels, groups : as `group_split`.
    left_out : names of groups.

    Raises
    ------
    InputError : no group is named, a group does not exist, or the named groups are all groups of a
        class.
    """
    if not left_out:
        raise InputError("split.leave_out", left_out, "names no group", "name at least one group")
    unknown = sorted(set(left_out) - set(groups))
    if unknown:
        raise InputError(
            "split.leave_out", unknown[0], "no such group", "name groups of the group file"
        )
    single_group_classes = []
    for label, name in enumerate(classes):
        class_groups = set(groups[labels == label])
        if class_groups and class_groups <= set(left_out):
            raise InputError(
                "split.leave_out",
                sorted(class_groups),
                f"are all groups of class {name}, which would have no training rows",
                "remove some of them from leave_out",
            )
        if len(class_groups) < 2:
            single_group_classes.append(label)
    return _split_by_groups(groups, left_out, single_group_classes)


def _split_by_groups(
    groups: np.ndarray, test_groups: list[str], single_group_classes: list[int]
) -> Split:
    """Return the split whose test side is the rows of `test_groups`."""
    in_test = np.isin(groups.astype(str), np.asarray(test_groups, str))
    return Split(np.flatnonzero(~in_test), np.flatnonzero(in_test), tuple(single_group_classes))
