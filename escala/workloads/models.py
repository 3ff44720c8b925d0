"""Keep a trained model on disk, and tell how many rows a model takes at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from escala.core.files import sha256_file, write_json

FORMAT = 3
#: Files of a model: its description and its trained arrays. Neither can hold code.
DESCRIPTION, WEIGHTS = FILES = ("model.json", "model.npz")
#: A network is called with so many rows at once, or with fewer if their outputs need more bytes.
PREDICTION_ROWS, PREDICTION_BYTES = 256, 2**28


def describe(
    folder: Path,
    workload: str,
    knobs: Mapping[str, Any],
    settings: dict,
    data: dict,
    weights_sha256: str,
    engine: str | None = None,
) -> None:
    """Write `model.json` alongside a model's weights: all that is needed to build the model again.

    `folder` holds `model.npz`. `knobs` are those of the variant that the workload may read, `data`
    is the `dataset.json` of the training split, and `weights_sha256` the digest of the weights in
    `run.json`. `engine` has trained a network.
    """
    content = {
        "format": FORMAT,
        "workload": workload,
        "engine": engine,
        "knobs": dict(knobs),
        "settings": settings,
        "sha256": sha256_file(folder / WEIGHTS),
        "weights_sha256": weights_sha256,
        "data": data,
    }
    write_json(folder / DESCRIPTION, content)


def row_blocks(rows: slice, size: int) -> Iterator[slice]:
    """Yield consecutive parts of rows, of `size` rows each and the rest."""
    for start in range(rows.start, rows.stop, size):
        yield slice(start, min(start + size, rows.stop))


def rows_at_once(form: Sequence[int | None]) -> int:
    """Return how many rows a network predicts at once, so that its outputs fit into memory.

    `form` is the shape of its output for one row. A size that is not known counts as 1.
    """
    numbers = math.prod(size or 1 for size in form)
    return max(1, min(PREDICTION_ROWS, PREDICTION_BYTES // (4 * numbers)))


def given(inputs: Sequence[Any]) -> Any:
    """Return inputs in the form that a Keras model is called with: a single one, or a list."""
    return inputs[0] if len(inputs) == 1 else list(inputs)
