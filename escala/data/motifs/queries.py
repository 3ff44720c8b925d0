"""A user's FASTA file, encoded as the sequences that a model was trained on."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from escala.data.base import Query, specs
from escala.data.motifs.arrays import one_hot, read_sequences


def queries(path: Path, description: Mapping[str, Any]) -> Iterator[Query]:
    """Yield the records of a FASTA file, of as many letters as the rows that were trained on.

    The column of a record is its `accession`.
    """
    [spec] = specs(description)
    sequences = read_sequences(path, spec.shape[0])
    for accession, codes in tqdm(sequences, desc=path.name, unit=" records", disable=None):
        yield Query({"accession": accession}, (one_hot(codes[None]),))
