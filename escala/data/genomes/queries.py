"""A user's FASTA file, cut into rows in the same way as a model's training genomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from escala.data.base import specs
from escala.data.encode import encode
from escala.data.fasta import nucleotides, records
from escala.data.genomes.prepare import windows
from escala.data.queries import Query, invalid

#: Allowed values of a dataset's `window.method`.
WINDOW_METHODS = ("start", "random", "tiles")
#: Maximum number of windows of a record; longer records are sampled evenly.
WINDOWS = 64


def queries(path: Path, description: Mapping[str, Any]) -> Iterator[Query]:
    """Yield the records of a FASTA file, each cut as the model's rows were.

    A model trained on the starts of genomes (`window.method: start`) gets only the beginning of
    each record. Other models get tiles of the whole record. Each record has the columns
    `accession`, `letters`, `shorter_than_rows` and `windows`; its evidence is the codes that the
    rows are cut from.

    Parameters
    ----------
    path : FASTA file, plain or gzipped, in upper or lower case; in either strand if the model was
        trained on both. A model of `start` needs whole genomes or their beginnings.

    Raises
    ------
    InputError : the file is not nucleotide FASTA, or the model's rows were cut in an unknown way.
    """
    _window(description)
    [spec] = specs(description)
    [length] = spec.shape
    found = tqdm(records(path), desc=path.name, unit=" records", disable=None)
    for accession, sequence in nucleotides(found, path):
        columns = {
            "accession": accession,
            "letters": len(sequence),
            "shorter_than_rows": len(sequence) < length,
        }
        yield query(columns, np.frombuffer(encode(sequence), np.uint8), description)


def query(columns: Mapping[str, Any], codes: np.ndarray, description: Mapping[str, Any]) -> Query:
    """Return a sequence cut as the model's rows were; see `queries`.

    Parameters
    ----------
    columns : of the sequence; the number of its `windows` is added.
    codes : of the sequence, uint8 of shape (letters,).
    """
    window = _window(description)
    [spec] = specs(description)
    [length] = spec.shape
    if window["method"] == "start":
        codes = codes[:length]
    pieces = _pieces(codes, length, window)
    return Query({**columns, "windows": len(pieces)}, (pieces,), codes)


def _window(description: Mapping[str, Any]) -> dict:
    """Return the checked window settings of a model: the model may come from an unknown source."""
    window = description.get("window")
    if not isinstance(window, dict) or window.get("method") not in WINDOW_METHODS:
        raise invalid("data.window.method", f"none of {', '.join(WINDOW_METHODS)}")
    if type(window.get("reverse_complement")) is not bool:
        raise invalid("data.window.reverse_complement", "no bool")
    return window


def _pieces(codes: np.ndarray, length: int, window: dict) -> np.ndarray:
    """Return the rows of a sequence for a model trained with a dataset's `window`.

    For `start` they are cut as in training, with the other strand if the model was trained on it.
    For `random` and `tiles` they are adjacent tiles of the whole sequence on the given strand.

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
