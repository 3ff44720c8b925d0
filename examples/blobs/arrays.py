"""Split points around two centres."""

import numpy as np

from escala.data.splits import Side, write_split


def prepare(name, preparation, seed, inputs, output):
    with np.load(inputs["source"] / "points.npz") as drawn:
        points, labels = drawn["points"], drawn["labels"]
    order = np.random.default_rng(seed).permutation(len(labels))
    test, train = np.split(order, [round(preparation["split"]["test_fraction"] * len(order))])
    return write_split(
        output,
        {
            side: Side({"point": points[rows]}, labels[rows])
            for side, rows in (("train", train), ("test", test))
        },
        kind="blobs",
        name=name,
        seed=seed,
        provenance="simulated",
        classes=["left", "right"],
    )
