"""Make the arrays of a split from pictures; read pictures to predict."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from escala.core.files import read_json
from escala.data.base import Query, specs
from escala.data.images.pictures import files_of, read_picture
from escala.data.splits import Blocks, Side, stratify, take_blocks, write_split

KIND = "images"
#: Pictures in memory at a time.
ROWS = 1024


def prepare(
    name: str, preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Divide pictures among the sides, and write the arrays.

    Memory holds a block of pictures, and a few numbers for every picture. `output` receives
    `{side}_image.npy`, uint8 from 0 to 255 or float16 from 0 to 1, (rows, height, width, colours),
    and `{side}_labels.npy`, int64 (rows,).
    """
    source, split = inputs["source"], preparation["split"]
    content = read_json(source / "images.json")
    # Pictures and labels by side.
    arrays = {
        side: [
            np.load(source / f"{side}_{part}.npy", mmap_mode="r", allow_pickle=False)
            for part in ("images", "labels")
        ]
        for side in content["sides"]
    }
    # Sides that the source provides stay as they are; the other sides get rows of `train`.
    fractions = split | {f"{side}_fraction": 0 for side in arrays}
    rows = stratify(np.asarray(arrays["train"][1]), fractions, content["classes"], seed)
    rows |= {
        side: np.arange(len(labels)) for side, (_, labels) in arrays.items() if side != "train"
    }
    store, source_type = np.dtype(preparation["store"]), preparation["provenance"]
    sides = {}
    for side, selected in rows.items():
        images, labels = arrays.get(side, arrays["train"])
        blocks = (_scale(block, store) for block in take_blocks(images, selected, ROWS))
        stored = Blocks((len(selected), *images.shape[1:]), store, blocks)
        sides[side] = Side({"image": stored}, np.asarray(labels)[selected])
    return write_split(
        output,
        sides,
        kind=KIND,
        name=name,
        seed=seed,
        provenance="simulated" if source_type == "outlines" else source_type,
        classes=content["classes"],
        split=split,
    )


def queries(path: Path, description: Mapping[str, Any]) -> Iterator[Query]:
    """Yield a query for a PNG or JPEG file, or for each file of a folder.

    Pictures are converted to the size and colours that the model takes. The query's only column,
    `file`, is the file's name.
    """
    [spec] = specs(description)
    height, width, channels = spec.shape
    paths = list(files_of(path)) if path.is_dir() else [path]
    for file in tqdm(paths, desc=path.name, disable=None):
        picture = read_picture(file, "grey" if channels == 1 else "rgb", (height, width))
        yield Query({"file": file.name}, (_scale(picture[None], np.dtype(spec.dtype)),))


def _scale(pictures: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return uint8 pictures, scaled to 0 to 1 if `dtype` is float16; else the model scales them."""
    return (pictures / np.float32(255)).astype(dtype) if dtype == np.float16 else pictures
