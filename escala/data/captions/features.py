"""Compute the features of pictures, a step of its own.

It takes long and depends only on the pictures and the network. So a corrected caption does not
repeat it, and neither do other sides of the same pictures.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from escala.core.files import write_json
from escala.data.captions import vgg16
from escala.data.captions.files import EXTRACTION, FEATURES, NAMES


def extract(pictures: Mapping[str, Path], weights: Path, weights_sha256: str, folder: Path) -> None:
    """Compute the features of pictures, whose files are given by name.

    Parameters
    ----------
    weights : the file of the weights of VGG16.
    weights_sha256 : its digest.
    folder : receives `features.npy`, float16 (pictures, features); `names.json`, the name of the
        picture of each row; and `extraction.json`: the number of `pictures`, the `seconds` for
        reading them and computing their features, the mean `seconds_per_picture`, and the
        `network_seconds` for building the network.
    """
    paths = list(pictures.values())
    remedy = "get the file again, or correct weights_sha256"
    begin = time.perf_counter()
    network = vgg16.network(weights, weights_sha256, remedy)
    network_seconds = time.perf_counter() - begin
    vgg16.require_pictures(paths)
    begin = time.perf_counter()
    computed = np.concatenate(list(vgg16.features(paths, network)))
    seconds = time.perf_counter() - begin
    np.save(folder / FEATURES, computed, allow_pickle=False)
    write_json(folder / NAMES, list(pictures))
    times = {"seconds": seconds, "seconds_per_picture": seconds / len(paths)}
    times |= {"network_seconds": network_seconds}
    write_json(folder / EXTRACTION, {"pictures": len(paths)} | times)
