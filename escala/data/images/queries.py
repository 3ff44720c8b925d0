"""A user's pictures, as those that a model was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from escala.data.base import specs
from escala.data.images.pictures import files_of, read_picture
from escala.data.queries import Query


def queries(path: Path, description: Mapping[str, Any]) -> Iterator[Query]:
    """Yield a PNG or JPEG file, or those of a folder, in the model's size and colours.

    The column of a picture is `file`, its name.

    Raises
    ------
    InputError : a file is no picture, or the folder holds none.
    """
    [spec] = specs(description)
    height, width, colours = spec.shape
    paths = list(files_of(path)) if path.is_dir() else [path]
    for file in tqdm(paths, desc=path.name, disable=None):
        picture = read_picture(file, "grey" if colours == 1 else "rgb", (height, width))
        if spec.dtype == "float16":
            picture = (picture / np.float32(255)).astype(np.float16)
        yield Query({"file": file.name}, (picture[None],))
