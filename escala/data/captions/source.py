"""Make `captions.json` from a source, and for a simulation also `SIDE_features.npy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.files import write_json
from escala.data.base import SIDES
from escala.data.captions import flickr8k, scenes
from escala.data.captions.settings import CAPTIONS_FILE, FEATURES_FILE, PATHS


def acquire(acquisition: Mapping[str, Any], inputs: Sequence[Path], folder: Path) -> None:
    """Simulate scenes, or read the lists and captions of Flickr8k, once for all splits.

    `inputs` are the user's files, in the order of `escala.data.captions.settings.PATHS`. `folder`
    receives `captions.json`: for each side a list of pictures, each with its `name` and `captions`.
    For a simulation it also receives, for each side, `SIDE_features.npy`, float16 (pictures,
    features).
    """
    if acquisition["type"] == "simulated":
        described = {}
        for number, side in enumerate(SIDES):
            random = np.random.default_rng([acquisition["seed"], number])
            pictures = acquisition["pictures"][side]
            described[side], features = scenes.simulated(acquisition, pictures, random)
            np.save(folder / FEATURES_FILE.format(side=side), features, allow_pickle=False)
    else:
        files = dict(zip(PATHS, inputs, strict=True))
        described = flickr8k.sides(files["tokens"], {side: files[side] for side in SIDES})
    write_json(folder / CAPTIONS_FILE, described)
