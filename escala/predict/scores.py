"""Score predictions whose classes are known."""

from __future__ import annotations

import pandas as pd
from sklearn.metrics import classification_report


def report(table: pd.DataFrame) -> str:
    """Return precision, recall and F1 of each class, by scikit-learn's definitions, as text.

    Parameters
    ----------
    table : predictions, with the columns `class` and `predicted`. Each class is in turn the
        positive one, also with two classes.
    """
    return classification_report(table["class"], table["predicted"], digits=4, zero_division=0)
