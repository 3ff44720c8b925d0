"""A user's FASTA file, cut into rows as the genomes that a model was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from escala.core.errors import InputError
from escala.data.base import specs
from escala.data.genomes.acquire.files import records
from escala.data.genomes.prepare import windows
from escala.data.genomes.prepare.encode import encode
from escala.data.genomes.prepare.fasta import nucleotides
from escala.data.queries import Query

#: How rows can have been cut, as `window.method` of a dataset allows.
WINDOW_METHODS = ("start", "random", "tiles")
#: Most windows a record is cut into; longer records are sampled evenly.
WINDOWS = 64


def queries(path: Path, description: Mapping[str, Any]) -> Iterator[Query]:
    """Yield the records of a FASTA file, each cut as the model's rows were.

    A model of rows that begin where genomes do (`window.method: start`) is given the beginning of
    each record and no other part of it; others are given tiles of the whole record. The columns of
    a record are `accession`, `letters` and `windows`, its evidence the codes that were cut.

    Parameters
    ----------
    path : plain or gzipped, letters in either case; either strand, if the model knows both. For a
        model of `start`, whole genomes, or their beginnings.

    Raises
    ------
    InputError : the file is no nucleotide FASTA, or the model's rows were cut in an unknown way.
    """
    window = _window(description)
    [spec] = specs(description)
    [length] = spec.shape
    found = tqdm(records(path), desc=path.name, unit=" records", disable=None)
    for accession, sequence in nucleotides(found, path):
        codes = np.frombuffer(encode(sequence), np.uint8)
        if window["method"] == "start":
            codes = codes[:length]
        pieces = _pieces(codes, length, window)
        columns = {"accession": accession, "letters": len(sequence), "windows": len(pieces)}
        yield Query(columns, (pieces,), codes)


def _window(description: Mapping[str, Any]) -> dict:
    """Return how the model's rows were cut: a model may come from anywhere."""
    window = description.get("window")
    if not isinstance(window, dict) or window.get("method") not in WINDOW_METHODS:
        raise _refused("data.window.method", f"none of {', '.join(WINDOW_METHODS)}")
    if type(window.get("reverse_complement")) is not bool:
        raise _refused("data.window.reverse_complement", "no bool")
    return window


def _refused(key: str, wrong: str) -> InputError:
    return InputError(
        "model.json",
        key,
        f"is missing, or {wrong}",
        "have the model sent again, or train it again",
    )


def _pieces(codes: np.ndarray, length: int, window: dict) -> np.ndarray:
    """Return the rows that a model of a dataset's `window` is given of a sequence.

    Of `start` they are its rows, the other strand included if it was trained on. Random windows and
    tiles begin anywhere, so tiles that meet show all of the sequence, on the strand it is given on.

    Returns
    -------
    uint8 of shape (pieces, length), at most `WINDOWS` of them.
    """
    letters = np.array([len(codes)])
    if window["method"] != "start":
        window = {"method": "tiles", "stride": length, "reverse_complement": False}
    cut = windows.windows(np.array([0]), letters, length, window, seed=0)
    if len(cut) > WINDOWS:
        cut = cut[np.linspace(0, len(cut) - 1, WINDOWS).astype(int)]
    return np.concatenate(list(windows.blocks(codes, np.array([0]), letters, cut, length)))
