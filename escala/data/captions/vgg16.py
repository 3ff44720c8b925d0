"""Compute features of pictures: the outputs of the layer fc2 of VGG16 in Keras.

K. Simonyan, A. Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition",
ICLR 2015.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from escala.core.engines import DEFAULT
from escala.core.errors import InputError
from escala.core.files import sha256_file, write_json
from escala.data.captions import EXTRACTION, FEATURES, NAMES
from escala.data.images.pictures import read_picture
from escala.engines import elsewhere

#: The layer whose outputs are the features, and the module that computes it.
LAYER, MODULE = "fc2", f"escala.engines.{DEFAULT}.layers"
#: Height and width of the pictures that VGG16 takes.
SIZE = (224, 224)
#: Pictures whose features are computed at once.
BATCH = 32
#: Seconds between two lines of progress.
PROGRESS = 5

#: A function from pictures, uint8 (pictures, 224, 224, 3), to features, float32 (pictures,
#: features).
Network = Callable[[np.ndarray], np.ndarray]


def extract(pictures: Mapping[str, Path], weights: Path, weights_sha256: str, folder: Path) -> None:
    """Compute the features of `pictures`, the files by name, in a step of its own.

    The step takes long and depends only on the pictures and on VGG16. So neither a corrected
    caption nor another division into sides repeats the step. `folder` receives `features.npy`,
    float16 (pictures, features); `names.json`, the names of the pictures in this order; and
    `extraction.json`: the number of `pictures`, the `seconds` for reading them and computing their
    features, the mean `seconds_per_picture`, and the `network_seconds` for building VGG16.
    """
    paths = list(pictures.values())
    begin = time.perf_counter()
    compute = network(weights, weights_sha256, "get the file again, or correct weights_sha256")
    network_seconds = time.perf_counter() - begin
    require_pictures(paths)
    begin = time.perf_counter()
    computed = np.concatenate(list(features(paths, compute)))
    seconds = time.perf_counter() - begin
    np.save(folder / FEATURES, computed, allow_pickle=False)
    write_json(folder / NAMES, list(pictures))
    times = {"seconds": seconds, "seconds_per_picture": seconds / len(paths)}
    times |= {"network_seconds": network_seconds}
    write_json(folder / EXTRACTION, {"pictures": len(paths)} | times)


def network(weights: Path, sha256: str, remedy: str) -> Network:
    """Return VGG16 up to its layer fc2, with the weights from a file.

    A file without weights of VGG16 is refused. A file with another digest than `sha256` is also
    refused; `remedy` is the remedy in this message.
    """
    published = "vgg16_weights_tf_dim_ordering_tf_kernels.h5"
    if not weights.is_file():
        raise InputError(weights, weights.name, "no such file", f"get {published}")
    digest = sha256_file(weights)
    if digest != sha256:
        reason = f"is not {sha256}, the digest of the weights"
        raise InputError(weights, f"SHA-256 {digest}", reason, remedy)
    try:
        described = {"weights": str(weights.absolute()), "layer": LAYER}
        compute = elsewhere.make_caller(MODULE, DEFAULT, described, {})
    except (OSError, ValueError, KeyError) as error:
        reason = f"does not hold the weights of VGG16: {error}"
        raise InputError(weights, weights.name, reason, f"name {published}") from error
    return lambda pictures: compute(0, (pictures,))


def features(paths: Sequence[Path], compute: Network) -> Iterator[np.ndarray]:
    """Yield the features of pictures, float16 (some pictures, features), with a progress bar."""
    with tqdm(total=len(paths), desc=LAYER, unit=" pictures", mininterval=PROGRESS) as progress:
        for begin in range(0, len(paths), BATCH):
            some = paths[begin : begin + BATCH]
            pictures = np.stack([read_picture(path, "rgb", SIZE) for path in some])
            yield compute(pictures).astype(np.float16)
            progress.update(len(some))


def require_pictures(paths: Sequence[Path]) -> None:
    """Read every picture once, so that a damaged picture is refused before long computations."""
    for path in tqdm(paths, desc="check", unit=" pictures", mininterval=PROGRESS):
        read_picture(path, "rgb", SIZE)
