"""Check of the fractions by which a dataset is divided.

The workflow calls it at every start, so this module imports no heavy library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from escala.core.errors import InputError


def require_training_rows(
    name: str,
    split: Mapping[str, float],
    error: Callable[[str, object, str, str], InputError],
    rows: str = "row",
) -> None:
    """Refuse fractions that leave no row to train on.

    Parameters
    ----------
    name : of the dataset.
    split : holds `test_fraction` and `validation_fraction`.
    error : makes the error of a key, a value, a reason and a remedy.
    rows : the word for a row of this dataset.

    Raises
    ------
    InputError : as `error` makes it.
    """
    fractions = [split["test_fraction"], split["validation_fraction"]]
    if sum(fractions) >= 1:
        raise error(
            f"datasets.{name}.split",
            fractions,
            f"the test and validation sides leave no {rows} to train on",
            "give fractions whose sum is below 1",
        )
