"""Read a user's pictures in the form that a trained model takes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from escala.data.base import Query, specs
from escala.data.images.pictures import files_of, read_picture


def queries(path: Path, description: Mapping[str, Any]) -> Iterator[Query]:
    """Yield a query for a PNG or JPEG file, or for each file of a folder.

    Pictures are brought to the size and colours that the model takes. The query's only column,
    `file`, holds the file's name.
    """
    [spec] = specs(description)
    height, width, channels = spec.shape
    paths = list(files_of(path)) if path.is_dir() else [path]
    for file in tqdm(paths, desc=path.name, disable=None):
        picture = read_picture(file, "grey" if channels == 1 else "rgb", (height, width))
        # As in the rows that the model was trained on: float16 is from 0 to 1. uint8 is from 0 to
        # 255, and the model scales it.
        if spec.dtype == "float16":
            picture = (picture / np.float32(255)).astype(np.float16)
        yield Query({"file": file.name}, (picture[None],))
