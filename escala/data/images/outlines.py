"""Simulate outlines of nine classes as filled pictures, each in a pose and a form of its own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageDraw

from escala.data.images.settings import OUTLINES

#: Harmonics that give a class its form, and a single outline its own.
HARMONICS = 7
#: Points of an outline, and seed of the forms of the classes: they are the same in every data set.
POINTS, FORMS = 160, 2021
#: How far the harmonics of classes lie apart, and those of single outlines of one class at
#: difficulty 1, as fractions of the radius.
BETWEEN, WITHIN = 0.10, 0.14
#: Pictures that are yielded at a time.
ROWS = 512
#: Higher harmonics are smaller, so that outlines are smooth.
_ORDERS = np.sqrt(np.arange(1, HARMONICS + 1))
_ANGLES = np.linspace(0, 2 * np.pi, POINTS, endpoint=False)


def outlines(
    per_class: int, size: tuple[int, int], difficulty: float, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield pictures and classes, some at a time; classes take turns.

    Pictures are uint8 (pictures, height, width, 1), 0 outside and 255 inside. With difficulty 0, up
    to 1, outlines of a class differ in their pose only.
    """
    random = np.random.default_rng(seed)
    labels = np.tile(np.arange(OUTLINES), per_class)
    for begin in range(0, len(labels), ROWS):
        classes = labels[begin : begin + ROWS]
        radii = radii_of(classes, difficulty, random)
        pictures = [_draw(each, size, random) for each in radii]
        yield np.stack(pictures)[..., None], classes


def radii_of(labels: np.ndarray, difficulty: float, random: np.random.Generator) -> np.ndarray:
    """Return the radii of outlines of these classes, float64 (outlines, POINTS), about 1."""
    single = random.normal(0, WITHIN * difficulty, (len(labels), 2, HARMONICS)) / _ORDERS
    forms = np.random.default_rng(FORMS).normal(0, BETWEEN, (OUTLINES, 2, HARMONICS)) / _ORDERS
    harmonics = forms[labels] + single
    orders = np.arange(2, HARMONICS + 2)[:, None] * _ANGLES
    radii = 1 + harmonics[:, 0] @ np.cos(orders) + harmonics[:, 1] @ np.sin(orders)
    return np.maximum(radii, 0.2)


def _draw(radii: np.ndarray, size: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """Return one filled outline, twice as long as high, turned, scaled and moved at random."""
    height, width = size
    x, y = 2 * radii * np.cos(_ANGLES), radii * np.sin(_ANGLES)
    turn, mirror = random.uniform(-0.4, 0.4), random.choice([-1, 1])
    scale = random.uniform(0.11, 0.17) * min(height * 1.33, width)
    turned = (
        x * mirror * np.cos(turn) - y * np.sin(turn),
        x * mirror * np.sin(turn) + y * np.cos(turn),
    )
    centre = random.uniform(0.44, 0.56, 2) * (width, height)
    points = np.stack(turned, axis=1) * scale + centre
    picture = Image.new("L", (width, height))
    ImageDraw.Draw(picture).polygon([tuple(point) for point in points], fill=255)
    return np.asarray(picture)
