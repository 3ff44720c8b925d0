"""The kind `tabular`: tables of numbers with a class."""

from escala.data.settings import Settings, Size, require_training_rows, training_rows

#: Rows and features of the samples of scikit-learn.
SAMPLES = {"breast_cancer": (569, 30), "digits": (1797, 64)}


def check(settings: Settings) -> None:
    """Refuse fractions that leave no row to train on."""
    require_training_rows(settings["split"])


def size(settings: Settings) -> Size:
    """Return the size of a sample with its constant features; a user's table must be read first."""
    if settings["source"].get("name") not in SAMPLES:
        return Size()
    rows, features = SAMPLES[settings["source"]["name"]]
    return Size(training_rows(rows, settings["split"]), features)
