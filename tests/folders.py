"""Copies of what `examples/` holds, in a folder of a test, and a workload for its kind of data."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.conftest import ROOT

#: The page that brings a workload, and shows two of its files.
GUIDE = ROOT / "docs" / "how-to" / "bring-your-own-workload.md"


def copied(folder: Path, *names: str) -> None:
    """Copy files and folders of `examples/`."""
    for name in names:
        example = ROOT / "examples" / name
        if example.is_dir():
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(example, folder / name, ignore=unwanted)
        else:
            shutil.copy(example, folder / name)


def changed(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{old} in {file}"
    file.write_text(text.replace(old, new))


WORKLOAD = {
    "workload.yaml": """
description: One dense layer.
data_kind: blobs
settings: {type: object, additionalProperties: false, properties: {}}
""",
    "__init__.py": "",
    "model.py": """
import keras


def build(specs, outputs, settings, knobs):
    [point] = specs
    given = keras.Input(point.shape, dtype=point.dtype)
    return keras.Model(given, keras.layers.Dense(*outputs, activation="softmax")(given))


def optimizer(settings, learning_rate, knobs):
    return keras.optimizers.SGD(learning_rate)


def row_losses(targets, outputs, settings):
    return keras.losses.sparse_categorical_crossentropy(targets, outputs)
""",
}
#: A reader of the kind's own, which tells in the log of a rank that it was used.
READER = """
from escala.data import base


class Arrays(base.Arrays):
    def __init__(self, folder):
        super().__init__(folder)
        print("read by the kind's own reader")
"""


def add_kind(project: Path) -> None:
    """Add the kind `blobs` to a copy of the project."""
    copied(project / "escala" / "data", "blobs")


def add_workload(project: Path) -> None:
    """Add the workload `dense`, which reads that kind, to a copy of the project."""
    folder = project / "escala" / "workloads" / "dense"
    folder.mkdir()
    for name, text in WORKLOAD.items():
        (folder / name).write_text(text)


def add_reader(project: Path) -> None:
    (project / "escala" / "data" / "blobs" / "reader.py").write_text(READER)
