"""Pictures to the arrays that a model trains on and is tested with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from escala.core.files import read_json
from escala.data.splits import Side, stratified, write_split
from escala.data.writer import written

KIND = "images"
#: Pictures in memory at a time.
ROWS = 1024


def prepare(
    name: str, preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Divide pictures among the sides, and write the arrays.

    Memory holds a block of pictures, and a few numbers for each.

    Parameters
    ----------
    name : of the dataset.
    preparation : as `escala.data.images.settings.preparation` gives it.
    seed : of the split.
    inputs : `source`, the folder that `escala.data.images.source.acquire` filled.
    output : folder that receives `{side}_image.npy`, uint8 from 0 to 255 or float16 from 0 to 1,
        (rows, height, width, colours); `{side}_labels.npy`, int64 (rows,); and `dataset.json`.

    Returns
    -------
    The description that `dataset.json` holds.

    Raises
    ------
    InputError : a class has too few pictures for every side.
    """
    source = inputs["source"]
    described = read_json(source / "images.json")
    found = {
        side: [
            np.load(source / f"{side}_{part}.npy", mmap_mode="r", allow_pickle=False)
            for part in ("images", "labels")
        ]
        for side in described["sides"]
    }
    fractions = {
        f"{side}_fraction": 0 if side in found else preparation["split"][f"{side}_fraction"]
        for side in ("test", "validation")
    }
    train = np.asarray(found["train"][1])
    rows = stratified(train, fractions, described["classes"], seed)
    rows = {side: (found["train"], of) for side, of in rows.items()} | {
        side: (arrays, np.arange(len(arrays[1])))
        for side, arrays in found.items()
        if side != "train"
    }
    with TemporaryDirectory(dir=output, prefix=".") as folder:
        sides = {}
        for side, ((images, labels), of) in rows.items():
            path = Path(folder) / f"{side}.npy"
            with written(path, images.shape[1:], preparation["store"]) as writer:
                for block in _stored(images, of, preparation["store"]):
                    writer.append(block)
            stored = np.load(path, mmap_mode="r", allow_pickle=False)
            sides[side] = Side({"image": stored}, np.asarray(labels)[of])
        return write_split(
            output,
            sides,
            kind=KIND,
            name=name,
            seed=seed,
            provenance=preparation["provenance"],
            classes=described["classes"],
            split=preparation["split"],
        )


def _stored(images: np.ndarray, rows: np.ndarray, store: str) -> Iterator[np.ndarray]:
    for begin in range(0, len(rows), ROWS):
        block = images[rows[begin : begin + ROWS]]
        yield block if store == "uint8" else (block / np.float32(255)).astype(np.float16)
