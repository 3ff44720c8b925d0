"""Split genomes into a training and a test side, stratified by class."""

from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import train_test_split

from escala.core.errors import InputError

#: Tolerance of a class's number of test rows, as a fraction of the wanted number. Without
#: tolerance, only the set of groups that fits best could be drawn, and every seed would give the
#: same split.
SLACK = 0.1


@dataclass(frozen=True)
class Split:
    """Two sides of a dataset, as row numbers in ascending order.

    `single_group_classes` are the labels of classes with one group or none. All rows of these
    classes are in `train`.
    """

    train: np.ndarray
    test: np.ndarray
    single_group_classes: tuple[int, ...] = ()


def split_at_random(
    labels: np.ndarray, classes: list[str], test_fraction: float, seed: int
) -> Split:
    """Split rows at random, each class in the same proportion; refuse a class with too few rows."""
    counts = np.bincount(labels, minlength=len(classes))
    try:
        sides = train_test_split(
            np.arange(len(labels)), test_size=test_fraction, random_state=seed, stratify=labels
        )
        # For each class, the number of rows on the side that has fewer rows of the class.
        on_sides = [np.bincount(labels[side], minlength=len(classes)) for side in sides]
        fewest_rows = np.min(on_sides, axis=0)
    except ValueError:
        # scikit-learn made no sides: a class has one row, or a side would have fewer rows than
        # there are classes. The message below then names the smallest class.
        fewest_rows = np.where(counts == counts.min(), 0, counts)
    if not fewest_rows.all():
        scarce = int(np.argmin(fewest_rows))
        reason = f"too few rows for test_fraction {test_fraction:g}: "
        reason += "each class needs at least one on each side"
        remedy = "add records, change test_fraction, or drop the class"
        raise InputError(f"class {classes[scarce]}", int(counts[scarce]), reason, remedy)
    return Split(*map(np.sort, sides))


def group_split(
    labels: np.ndarray, groups: np.ndarray, classes: list[str], test_fraction: float, seed: int
) -> Split:
    """Split rows so that each group is entirely on one side. The rows of a group have one class.

    In each class, groups are drawn at random for the test side. The wanted number of test rows is
    `test_fraction` of the rows of the class. The number of rows in the drawn groups may differ from
    the wanted number by `SLACK` times that number. If no set of groups fits, a set with the nearest
    number of rows is drawn. Each side gets at least one group. A class with a single group goes to
    the training side. If every class has a single group, the split is refused.
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
        reason = "every class has a single group: none can be split"
        remedy = "raise similarity, give a finer group file, or set split.by: random"
        raise InputError("split.by", ", ".join(classes), reason, remedy)
    return _split_by_groups(groups, test_groups, single_group_classes)


def _draw_groups(
    names: np.ndarray, sizes: np.ndarray, wanted: float, random: np.random.Generator
) -> list[str]:
    """Return some groups, never all, with about the wanted number of rows in total.

    An allowed sum differs from the wanted number by at most `SLACK` times this number, or is the
    nearest possible sum. The groups are tried in random order. A group is taken if it can still be
    a part of an allowed sum: the rows taken before, the rows of this group, and the rows of some
    later groups.

    An integer stands for a set of sums: bit n is 1 if n is in the set. Memory: up to
    groups × rows / 8 bytes.
    """
    order, rows = random.permutation(len(names)), int(sizes.sum())
    # sums_of_last[k]: the total rows of every set of the last k groups.
    sums_of_last = [1]
    for index in order[::-1]:
        sums_of_last.append(sums_of_last[-1] | sums_of_last[-1] << int(sizes[index]))
    not_all = sums_of_last[-1] & ~(1 | 1 << rows)
    data = np.frombuffer(not_all.to_bytes(rows // 8 + 1, "little"), np.uint8)
    bits = np.unpackbits(data, bitorder="little")
    possible = np.flatnonzero(bits)
    distances = np.abs(possible - wanted)
    bits[possible[distances > max(SLACK * wanted, distances.min())]] = 0
    allowed = int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")
    test_groups = []
    for index, sums_of_rest in zip(order, sums_of_last[-2::-1], strict=True):
        allowed_after_taking = allowed >> int(sizes[index])
        if allowed_after_taking & sums_of_rest:
            test_groups.append(names[index])
            allowed = allowed_after_taking
    return test_groups


def split_leaving_out(
    labels: np.ndarray, groups: np.ndarray, classes: list[str], left_out: list[str]
) -> Split:
    """Put the named groups on the test side, and all other groups on the training side.

    A class without a named group has no test rows. A group that does not exist is refused, and so
    are names of all groups of a class.
    """
    unknown = sorted(set(left_out) - set(groups))
    if unknown:
        remedy = "name groups of the group file"
        raise InputError("split.leave_out", unknown[0], "no such group", remedy)
    single_group_classes = []
    for label, name in enumerate(classes):
        class_groups = set(groups[labels == label])
        if class_groups and class_groups <= set(left_out):
            reason = f"are all groups of class {name}, which would have no training rows"
            remedy = "remove some of them from leave_out"
            raise InputError("split.leave_out", sorted(class_groups), reason, remedy)
        if len(class_groups) < 2:
            single_group_classes.append(label)
    return _split_by_groups(groups, left_out, single_group_classes)


def _split_by_groups(
    groups: np.ndarray, test_groups: list[str], single_group_classes: list[int]
) -> Split:
    """Return the split whose test side is the rows of `test_groups`."""
    in_test = np.isin(groups.astype(str), np.asarray(test_groups, str))
    return Split(np.flatnonzero(~in_test), np.flatnonzero(in_test), tuple(single_group_classes))
