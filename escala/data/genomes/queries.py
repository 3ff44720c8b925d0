"""A user's FASTA file, cut into rows in the same way as a model's training genomes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from escala.data.base import Query, invalid, specs
from escala.data.genomes import windows
from escala.data.nucleotides import encode, nucleotides, records

#: Allowed values of a dataset's `window.method`.
WINDOW_METHODS = ("start", "random", "tiles")
#: Maximum number of windows of a record; longer records are sampled evenly.
WINDOWS = 64


def queries(path: Path, description: Mapping[str, Any]) -> Iterator[Query]:
    """Yield the records of a nucleotide FASTA file, each cut as the model's rows were.

    A model trained on the starts of genomes (`window.method: start`) gets only the beginning of
    each record, so it needs whole genomes or their beginnings. Other models get tiles of the whole
    record. Each record has the columns `accession`, `letters`, `shorter_than_rows` and `windows`;
    its evidence is the codes that the rows are cut from.
    """
    _window(description)
    [spec] = specs(description)
    [length] = spec.shape
    parsed = tqdm(records(path), desc=path.name, unit=" records", disable=None)
    for accession, sequence in nucleotides(parsed, path):
        columns = {
            "accession": accession,
            "letters": len(sequence),
            "shorter_than_rows": len(sequence) < length,
        }
        yield query(columns, np.frombuffer(encode(sequence), np.uint8), description)


def query(columns: Mapping[str, Any], codes: np.ndarray, description: Mapping[str, Any]) -> Query:
    """Return a sequence, uint8 codes of shape (letters,), cut as the model's rows were.

    For `start` it is cut as in training, with the other strand if the model was trained on it. For
    `random` and `tiles` there are adjacent tiles of the whole sequence on the given strand, at most
    `WINDOWS`. The number of its `windows` is added to the columns.
    """
    window = _window(description)
    [spec] = specs(description)
    [length] = spec.shape
    if window["method"] == "start":
        codes = codes[:length]
    else:
        window = {"method": "tiles", "stride": length, "reverse_complement": False}
    letters, first = np.array([len(codes)]), np.array([0])
    cut = windows.windows(first, letters, length, window, seed=0)
    if len(cut) > WINDOWS:
        cut = cut[np.linspace(0, len(cut) - 1, WINDOWS).astype(int)]
    pieces = np.concatenate(list(windows.blocks(codes, first, letters, cut, length)))
    return Query({**columns, "windows": len(pieces)}, (pieces,), codes)


def _window(description: Mapping[str, Any]) -> dict:
    """Return the checked window settings of a model: the model may come from an unknown source."""
    window = description.get("window")
    if not isinstance(window, dict) or window.get("method") not in WINDOW_METHODS:
        raise invalid("data.window.method", f"none of {', '.join(WINDOW_METHODS)}")
    if type(window.get("reverse_complement")) is not bool:
        raise invalid("data.window.reverse_complement", "no bool")
    return window
