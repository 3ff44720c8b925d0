"""A source to features and captions: `SIDE_features.npy`, and `captions.json`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.files import write_json
from escala.data.base import SIDES
from escala.data.captions import flickr8k, scenes, vgg16
from escala.data.captions.settings import CAPTIONS_FILE, FEATURES_FILE, PATHS

EXTRACTION = "extraction.json"


def acquire(acquisition: Mapping[str, Any], inputs: Sequence[Path], folder: Path) -> None:
    """Simulate scenes, or compute the features of Flickr8k's pictures, once for all splits.

    Parameters
    ----------
    acquisition : the settings of the source, without its paths.
    inputs : the user's files, in the order of `escala.data.captions.settings.PATHS`; none for a
        simulation.
    folder : receives for each side `SIDE_features.npy`, float16 (pictures, features), and
        `captions.json`: for each side a list of pictures, each with its `name` and `captions`. For
        Flickr8k it also receives `extraction.json`: the number of `pictures`, the `seconds` for
        reading them and computing their features, the mean `seconds_per_picture`, and the
        `network_seconds` for building the network.

    Raises
    ------
    InputError : a file is missing, damaged, or not in its format.
    """
    if acquisition["type"] == "simulated":
        described, features = _simulated(acquisition)
    else:
        files = dict(zip(PATHS, inputs, strict=True))
        described, features, seconds = _read(files, acquisition["weights_sha256"])
        write_json(folder / EXTRACTION, seconds)
    for side, array in features.items():
        np.save(folder / FEATURES_FILE.format(side=side), array, allow_pickle=False)
    write_json(folder / CAPTIONS_FILE, described)


def _simulated(
    settings: Mapping[str, Any],
) -> tuple[dict[str, list[dict]], dict[str, np.ndarray]]:
    """Return the described scenes and the features of each side."""
    sides = {
        side: scenes.simulated(
            settings,
            settings["pictures"][side],
            np.random.default_rng([settings["seed"], number]),
        )
        for number, side in enumerate(SIDES)
    }
    return {side: each[0] for side, each in sides.items()}, {
        side: each[1] for side, each in sides.items()
    }


def _read(
    files: Mapping[str, Path], weights_sha256: str
) -> tuple[dict[str, list[dict]], dict[str, np.ndarray], dict[str, float]]:
    """Return the described pictures and the features of each side, and the seconds it took.

    Raises
    ------
    InputError : a file is missing, damaged, or not in its format.
    """
    lists = {side: files[side] for side in SIDES}
    described = flickr8k.sides(files["pictures"], files["tokens"], lists)
    paths = [files["pictures"] / each["name"] for of_side in described.values() for each in of_side]
    begin = time.perf_counter()
    network = vgg16.network(
        files["weights"], weights_sha256, "get the file again, or correct weights_sha256"
    )
    network_seconds = time.perf_counter() - begin
    vgg16.require_pictures(paths)
    begin = time.perf_counter()
    features = np.concatenate(list(vgg16.features(paths, network)))
    seconds = time.perf_counter() - begin
    ends = np.cumsum([len(of_side) for of_side in described.values()])
    return (
        described,
        dict(zip(described, np.split(features, ends[:-1]), strict=True)),
        {
            "pictures": len(paths),
            "seconds": seconds,
            "seconds_per_picture": seconds / len(paths),
            "network_seconds": network_seconds,
        },
    )
