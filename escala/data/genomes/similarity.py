"""Similarity of genomes by common k-mers: sketches, clusters of near-duplicates, nearest genomes.

The similarity of two genomes is a containment. Of two genomes, take the one with fewer canonical
21-mers: the similarity is the fraction of its 21-mers that the other genome holds too. An
incomplete end does not lower the similarity. The similarity is estimated on sketches. A sketch
keeps the 21-mers whose hash is in the lowest 1 / SCALE of the hash's range (FracMinHash: Irber et
al. 2022, doi 10.1101/2022.01.11.475838). All pairs of sketches are compared exactly.
docs/decisions/genomes.md gives the cost and the error of the estimate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.files import atomic
from escala.core.text import read_table
from escala.data.nucleotides import encode, kmers, nucleotides
from escala.data.nucleotides import records as read_fasta

#: Letters of a k-mer. With 4**21 = 4.4e12 k-mers, unrelated genomes share none by chance.
K = 21
#: One in `SCALE` k-mers is kept: about 1500 k-mers of a genome of 30 000 letters.
SCALE = 20
#: Memory for one block of similarities, float32.
BLOCK_BYTES = 32 * 2**20
#: A dense product counts k-mers that occur in at least this fraction of genomes. A sparse product
#: counts the others. The dense matrix has at most DENSE_BYTES.
COMMON, DENSE_BYTES = 1 / 16, 256 * 2**20


@dataclass(frozen=True)
class Sketches:
    """The kept k-mers of every genome of a dataset, in the order of `records.tsv`.

    `hashes`, uint64, has the sketches one after the other, and each sketch in ascending order.
    `ends`, int64, has the end of each genome's sketch in `hashes`.
    """

    hashes: np.ndarray
    ends: np.ndarray

    def save(self, path: Path) -> None:
        """Write both arrays as `.npz`, atomically."""
        with atomic(path) as temporary:
            np.savez(temporary, hashes=self.hashes, ends=self.ends)

    @classmethod
    def load(cls, path: Path) -> Sketches:
        with np.load(path, allow_pickle=False) as arrays:
            return cls(arrays["hashes"], arrays["ends"])

    def matrix(self) -> sparse.csr_matrix:
        """Return a float32 matrix, genomes × k-mers: 1 if the genome holds the k-mer, else 0."""
        columns, distinct = pd.factorize(self.hashes)
        starts = np.concatenate([[0], self.ends])
        ones = np.ones(len(columns), np.float32)
        return sparse.csr_matrix(
            (ones, columns.astype(np.int32), starts), shape=(len(self.ends), len(distinct))
        )


def sketch(codes: np.ndarray, scale: int = SCALE) -> np.ndarray:
    """Return the kept hashes of a genome's k-mers, uint64, without repetition, in ascending order.

    One hash in `scale` is kept. `codes` are uint8 of shape (letters,), 0 to 4. K-mers that hold a 0
    are left out. The hash is the finaliser of SplitMix64 (Steele et al. 2014).
    """
    mixed = kmers(codes, K, strands=True).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes = mixed ^ (mixed >> np.uint64(31))
    return np.unique(hashes[hashes <= np.uint64((2**64 - 1) // scale)])


def sketches(folder: Path, records: pd.DataFrame) -> Sketches:
    """Sketch every genome of `records` from its whole sequence, one genome at a time.

    `folder` holds `CLASS.fasta` of every class. A file without the records that `encode_classes`
    kept, in their order, is refused.
    """
    parts = []
    for name, group in records.groupby("class", sort=False):
        path = folder / f"{name}.fasta"
        wanted = list(zip(group["accession"], group["genome"], strict=True))[::-1]
        sequences = nucleotides(read_fasta(path), path)
        for accession, sequence in tqdm(
            sequences, desc=f"sketch {name}", unit=" records", disable=None
        ):
            genome = hashlib.sha256(sequence.upper()).hexdigest()
            if wanted and (accession, genome) == wanted[-1]:
                wanted.pop()
                parts.append(sketch(np.frombuffer(encode(sequence), np.uint8)))
        if wanted:
            reason = "the record is not there any more, or has changed"
            raise InputError(path, wanted[-1][0], reason, "run the encoding of the dataset again")
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    return Sketches(np.concatenate([np.empty(0, np.uint64), *parts]), ends)


def clusters(matrix: sparse.csr_matrix, labels: np.ndarray, threshold: float) -> np.ndarray:
    """Link genomes of a class whose similarity is at least `threshold`, by single linkage.

    `matrix` is `Sketches.matrix`, and `labels` are the class of each genome. The result, int64, is
    the number of each genome's cluster in its class, from 1. Larger clusters come first. Of
    clusters of equal size, the cluster with the earlier genome comes first.
    """
    numbers = np.zeros(len(labels), np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        linked = _link(matrix[members], threshold)
        _, first, component, sizes = np.unique(
            linked, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.lexsort((first, -sizes))
        rank = np.empty(len(sizes), np.int64)
        rank[order] = np.arange(1, len(sizes) + 1)
        numbers[members] = rank[component]
    return numbers


def _link(matrix: sparse.csr_matrix, threshold: float) -> np.ndarray:
    """Return a number for every row, equal for rows that a chain of similar pairs connects."""
    component = np.arange(matrix.shape[0])
    for first, block in _similarities(matrix, matrix):
        components = component[first : first + len(block)]
        near = (block >= np.float32(threshold)) & (components[:, None] != component)
        row, column = np.nonzero(near)
        ends = components[row], component[column]
        size = len(component), len(component)
        links = sparse.coo_matrix((np.ones(len(row), np.bool_), ends), shape=size)
        component = connected_components(links, directed=False)[1][component]
    return component


def nearest(matrix: sparse.csr_matrix, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return the similarity of each test genome to the most similar training genome of any class.

    The result is float32 of shape (len(test),), 0 without a common k-mer. `train` is not empty.
    """
    similarity = np.zeros(len(test), np.float32)
    for first, block in _similarities(matrix[test], matrix[train]):
        similarity[first : first + len(block)] = block.max(axis=1)
    return similarity


def leakage(similarity: np.ndarray, threshold: float) -> float:
    """Return the fraction of test rows that have a near-duplicate among the training genomes.

    `similarity` to the nearest training genome is float32 (test rows,); NaN, unknown, counts as
    near-duplicate. `threshold` is the lowest similarity of a near-duplicate.
    """
    return float((~(similarity < np.float32(threshold))).mean())


def write_similarity(split: Path, sketches: Path, output: Path) -> np.ndarray:
    """Write the similarity of the nearest training genome for every test row of a split, as `.npy`.

    The array is float32 of shape (test rows,). NaN means unknown: SMOTEN made the row, or no k-mer
    of its genome was kept.
    """
    train, test = (
        np.load(split / f"{side}_genomes.npy", allow_pickle=False) for side in ("train", "test")
    )
    genomes, place = np.unique(test, return_inverse=True)
    similarity = np.full(len(genomes), np.nan, np.float32)
    matrix = Sketches.load(sketches).matrix()
    known = genomes >= 0
    # A genome without kept k-mers is unknown, too.
    known[known] = np.diff(matrix.indptr)[genomes[known]] > 0
    similarity[known] = nearest(matrix, np.unique(train[train >= 0]), genomes[known])
    with atomic(output) as temporary:
        np.save(temporary, similarity[place], allow_pickle=False)
    return similarity[place]


def _similarities(
    rows: sparse.csr_matrix, others: sparse.csr_matrix
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield blocks: the number of the first row, and the similarities of rows to `others`.

    Counts are below 2**24 and hence exact in float32. A dense product is faster for common k-mers,
    a sparse product for rare k-mers.
    """
    held = np.bincount(others.indices, minlength=others.shape[1])
    useful = (held > 0) & (np.bincount(rows.indices, minlength=rows.shape[1]) > 0)
    room = DENSE_BYTES // (4 * max(1, others.shape[0]))
    common = np.flatnonzero(useful & (held >= COMMON * others.shape[0]))
    common = np.sort(common[np.argsort(-held[common], kind="stable")[:room]])
    useful[common] = False
    rare = np.flatnonzero(useful)
    dense, sizes = others[:, common].toarray().T, np.diff(others.indptr).astype(np.float32)
    rare_rows, rare_others = rows[:, rare], others[:, rare].T.tocsr()
    common_rows, row_sizes = rows[:, common], np.diff(rows.indptr).astype(np.float32)
    size = max(1, BLOCK_BYTES // (4 * max(1, others.shape[0])))
    for first in tqdm(range(0, rows.shape[0], size), desc="compare", unit=" blocks", disable=None):
        part = slice(first, first + size)
        block = (rare_rows[part] @ rare_others).toarray()
        block += common_rows[part].toarray() @ dense
        block /= np.maximum(np.minimum(row_sizes[part, None], sizes), 1)
        yield first, block


def write_groups(records: pd.DataFrame, numbers: np.ndarray, path: Path) -> pd.DataFrame:
    """Write the cluster of every genome to a group file: a TSV of accession, class and group."""
    table = records[["accession", "class"]].assign(
        group=records["class"] + "." + pd.Series(numbers, records.index).astype(str)
    )
    with atomic(path) as temporary:
        table.to_csv(temporary, sep="\t", index=False)
    return table


def read_groups(path: Path, records: pd.DataFrame) -> np.ndarray:
    """Return the group's name of every record, an object array, from a group file.

    The file is a TSV with the columns accession, class and group; simulated genomes have `lineage`
    in place of `group`. A record without a group or with two groups, and a group with records of
    several classes, are refused.
    """
    remedy = "give a TSV with the columns accession, class and group"
    table = read_table(path)
    if "group" not in table:
        table = table.rename(columns={"lineage": "group"})
    for column in ("accession", "class", "group"):
        if column not in table:
            raise InputError(path, list(table.columns), f"has no column {column}", remedy)
    table = table[table["class"].isin(records["class"].unique())]
    twice = table["accession"][table.duplicated(["accession", "class"])]
    if len(twice):
        raise InputError(path, twice.iloc[0], "is listed twice", "give each record one group")
    classes = table.groupby("group")["class"].nunique()
    mixed = classes.index[classes > 1]
    if len(mixed):
        raise InputError(path, mixed[0], "holds records of several classes", "split the group")
    named = table.set_index(["accession", "class"])["group"]
    groups = named.reindex(pd.MultiIndex.from_frame(records[["accession", "class"]])).to_numpy()
    lacking = pd.isna(groups) | (groups == "")
    if lacking.any():
        record = records["accession"].to_numpy()[lacking][0]
        raise InputError(path, record, "has no group in this file", "add the record with its group")
    return groups
