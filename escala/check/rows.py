"""A few rows for the check of a workload: the first of a dataset, or rows drawn at random."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from escala.core import plugins
from escala.core.errors import InputError
from escala.data import DEFAULT_KIND, reader
from escala.data.splits import Side, write_split
from escala.experiment import folders

#: The name of the dataset of the rows.
DATASET = "example"
ROWS = {"train": 24, "test": 8}
SEED = 0


def copy_rows(dataset: Path, split: Path) -> None:
    """Write the first rows of each side of a split as a new split."""
    arrays = reader(dataset)
    sides = {}
    for side, rows in ROWS.items():
        inputs, targets = arrays.gather(side, slice(0, min(rows, arrays.rows(side))))
        names = [spec.name for spec in arrays.inputs]
        sides[side] = Side(dict(zip(names, inputs, strict=True)), np.asarray(targets))
    limits = {spec.name: spec.below for spec in arrays.inputs if spec.below}
    _write(split, sides, arrays.description.get("classes"), limits)


def draw_rows(folder: Path, split: Path) -> None:
    """Write random rows by the `example` of the declaration.

    A declaration without an example, and numbers that the dtype cannot hold, are refused.
    """
    file = folder / plugins.DECLARATIONS[plugins.WORKLOADS]
    example = folders.declaration(folders.WORKLOADS, folder).get("example")
    if not example:
        remedy = "add `example`, or name a split with --dataset"
        raise InputError(file, None, "has no example of a dataset", remedy)
    classes, targets = example.get("classes"), example["targets"]
    if classes:
        values = [*range(len(classes))]
        targets = {"shape": targets["shape"], "dtype": targets["dtype"], "values": values}
    arrays = {spec.get("name", f"input{n}"): spec for n, spec in enumerate(example["inputs"])}
    numbers = {
        name: _numbers(f"{file}: example: {name}", spec)
        for name, spec in (arrays | {"targets": targets}).items()
    }
    random = np.random.default_rng(SEED)
    sides = {
        side: Side(
            {name: _draw(random, rows, spec, numbers[name]) for name, spec in arrays.items()},
            _draw(random, rows, targets, numbers["targets"]),
        )
        for side, rows in ROWS.items()
    }
    # A workload gets the exclusive upper limit of whole numbers from 0.
    limits = {
        name: int(max(numbers[name])) + 1
        for name, spec in arrays.items()
        if np.dtype(spec["dtype"]).kind != "f" and min(numbers[name]) >= 0
    }
    _write(split, sides, classes, limits)


def _numbers(where: str, spec: Mapping[str, Any]) -> list[float] | range | tuple | None:
    """Return the numbers that an array is drawn from.

    The result is a list of values, a range of whole numbers, or a tuple of the lower and the upper
    limit of floats. It is None if floats are drawn from a normal distribution. Numbers that the
    dtype cannot hold, and empty ranges, are refused.

    Parameters
    ----------
    where : the name of the array in messages.
    spec : the array in the declaration, with its keys `values`, or `from` and `below`.
    """
    dtype, values = np.dtype(spec["dtype"]), spec.get("values")
    first, below = spec.get("from"), spec.get("below")
    if values:
        if first is not None or below is not None:
            reason = "has values, and from or below too"
            raise InputError(where, None, reason, "give either values or limits")
        numbers = bounds = values
    elif dtype.kind == "f" and below is None:
        if first is not None:
            raise InputError(where, first, "from has no below", "add below, an upper limit")
        return None
    else:
        first, below = first or 0, 2 if below is None else below
        if not first < below:
            raise InputError(where, below, f"below is not above from, {first}", "give more")
        numbers = bounds = first, below
        if dtype.kind != "f":
            numbers, bounds = range(int(first), int(below)), (first, below - 1)
    with np.errstate(all="ignore"):
        cast = np.asarray(bounds).astype(dtype)
    fits = np.isfinite(cast) if dtype.kind == "f" else cast == bounds
    if not fits.all():
        remedy = "give numbers that it holds, or another dtype"
        raise InputError(where, bounds[fits.argmin()], f"is no number of {dtype}", remedy)
    return numbers


def _draw(
    random: np.random.Generator,
    rows: int,
    spec: Mapping[str, Any],
    numbers: list[float] | range | tuple | None,
) -> np.ndarray:
    """Return an array of rows with random numbers. `numbers` is a result of `_numbers`."""
    shape, dtype = (rows, *spec["shape"]), spec["dtype"]
    if numbers is None:
        drawn = random.normal(size=shape)
    elif isinstance(numbers, tuple):
        drawn = random.uniform(*numbers, size=shape)
    elif isinstance(numbers, range):
        drawn = random.integers(numbers.start, numbers.stop, size=shape)
    else:
        drawn = random.choice(numbers, size=shape)
    return drawn.astype(dtype)


def _write(
    split: Path, sides: dict[str, Side], classes: list[str] | None, below: dict[str, int]
) -> None:
    # Arrays of the default kind need no reader of their own.
    about = {"kind": DEFAULT_KIND, "name": DATASET, "seed": SEED, "provenance": "simulated"}
    write_split(split, sides, classes=classes, below=below, **about)
