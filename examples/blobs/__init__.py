"""The settings of points around two centres."""

from escala.core.errors import InputError
from escala.data.settings import Size


def check(settings):
    if settings["points"] * settings["split"]["test_fraction"] < 1:
        raise InputError("points", settings["points"], "leaves no test rows", "give more points")


def size(settings):
    return Size(2 * settings["points"] * (1 - settings["split"]["test_fraction"]), 2)
