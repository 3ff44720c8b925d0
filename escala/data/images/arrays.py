"""Make the arrays of a split, to train and test on, from pictures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.files import read_json
from escala.data.splits import Blocks, Side, stratify, take_blocks, write_split

KIND = "images"
#: Pictures in memory at a time.
ROWS = 1024


def prepare(
    name: str, preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Divide pictures among the sides, and write the arrays.

    Memory holds a block of pictures, and a few numbers for each. `output` receives
    `{side}_image.npy`, uint8 from 0 to 255 or float16 from 0 to 1, (rows, height, width, colours),
    and `{side}_labels.npy`, int64 (rows,).
    """
    source, split = inputs["source"], preparation["split"]
    content = read_json(source / "images.json")
    arrays = {
        side: [
            np.load(source / f"{side}_{part}.npy", mmap_mode="r", allow_pickle=False)
            for part in ("images", "labels")
        ]
        for side in content["sides"]
    }
    given = {f"{side}_fraction": 0 for side in arrays}
    rows = {side: np.arange(len(labels)) for side, (_, labels) in arrays.items()}
    divided = stratify(np.asarray(arrays["train"][1]), split | given, content["classes"], seed)
    rows = divided | {side: selected for side, selected in rows.items() if side != "train"}
    store, source_type = np.dtype(preparation["store"]), preparation["provenance"]
    sides = {}
    for side, selected in rows.items():
        images, labels = arrays.get(side, arrays["train"])
        blocks = take_blocks(images, selected, ROWS)
        if store == np.float16:
            blocks = ((block / np.float32(255)).astype(store) for block in blocks)
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
