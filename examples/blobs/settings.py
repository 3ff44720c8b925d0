"""The settings of points around two centres."""

from escala.core.errors import InputError
from escala.data.fractions import expected_rows
from escala.data.size import Size


def check(settings):
    if settings["points"] * settings["split"]["test_fraction"] < 1:
        raise InputError("points", settings["points"], "leaves no test rows", "give more points")


def inputs(settings):
    return []


def acquisition(settings):
    return {"points": settings["points"], "spread": settings["spread"]}


def prepared_from(settings, folder):
    return {"source": folder / "source"}


def preparation(settings):
    return {"test_fraction": settings["split"]["test_fraction"]}


def size(settings):
    rows = expected_rows(2 * settings["points"], settings["split"] | {"validation_fraction": 0})
    return Size(rows, ({"name": "point", "shape": (2,), "dtype": "float32"},))
