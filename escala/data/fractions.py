"""Check of the fractions by which a dataset is divided, and the rows that they give each side.

The workflow calls this at every start, so this module imports no heavy library.
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


def expected_rows(rows: int, split: Mapping[str, float]) -> dict[str, float]:
    """Return the expected rows of each side, without sides whose fraction is 0.

    Parameters
    ----------
    rows : to divide.
    split : as for `require_training_rows`.
    """
    fractions = {side: split[f"{side}_fraction"] for side in ("validation", "test")}
    shares = {"train": 1 - sum(fractions.values())} | fractions
    return {side: rows * share for side, share in shares.items() if share}
