"""Fragments of a split's test genomes, of several lengths, as records to predict."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from escala.data.base import Query, specs
from escala.data.genomes.arrays import Genomes, query
from escala.data.nucleotides import reverse_complement

#: Lengths of fragments, in letters. The prediction for a user's record is judged by the fragments
#: of the longest of these lengths that is not longer than the record.
LENGTHS = (50, 75, 100, 150, 200, 300, 400, 500, 700, 1000, 1500, 2000, 3000, 5000, 7000,
           10_000, 15_000, 20_000, 30_000)  # fmt: skip
#: For each length: the most fragments over all classes, about the most letters that the model
#: reads, and the fewest fragments of a class, which takes precedence.
MAX_FRAGMENTS, LETTER_BUDGET, MIN_PER_CLASS = 1000, 3_000_000, 20
SEED = 0


def inputs(split: Path) -> dict[str, Path]:
    """Return the files that `fragments` reads, by name."""
    genomes = {name: split.parent / name for name in ("codes.npy", "records.tsv")}
    return genomes | {"test_genomes.npy": split / "test_genomes.npy"}


def fragments(
    split: Path, description: Mapping[str, Any]
) -> Iterator[tuple[int, list[tuple[Query, int]]]]:
    """Yield the fragments of each length with the labels of their classes, shorter lengths first.

    Fragments begin anywhere in the kept letters of the test genomes. All letters are kept, unless
    rows are the starts of genomes (`window.method: start`). Every class has the same number of
    fragments. Fragments are cut from both strands if the model's rows are from both. The query
    of a fragment has no columns, such as an accession. A length is yielded only if each class has a
    test genome of this length or longer.
    """
    genomes, random = Genomes.load(split.parent), np.random.default_rng(SEED)
    tested = np.unique(np.load(split / "test_genomes.npy", allow_pickle=False))
    tested = tested[tested >= 0]  # Below 0: the row is of no genome.
    labels = np.unique(genomes.labels[tested])
    offsets = genomes.records["offset"].to_numpy(np.int64)
    [spec] = specs(description)
    for length in sorted({*LENGTHS, *spec.shape}):
        long = tested[genomes.letters[tested] >= length]
        if not len(labels) or set(genomes.labels[long]) != set(labels):
            return
        letters_read = max(length, *spec.shape)
        most = min(MAX_FRAGMENTS, LETTER_BUDGET // letters_read)
        count = max(MIN_PER_CLASS, most // len(labels))
        drawn = []
        for label in labels.tolist():
            for genome in random.choice(long[genomes.labels[long] == label], count):
                first = offsets[genome] + random.integers(genomes.letters[genome] - length + 1)
                codes = np.array(genomes.codes[first : first + length])
                if description["window"]["reverse_complement"] and random.integers(2):
                    codes = reverse_complement(codes)
                drawn.append((query({}, codes, description), label))
        yield length, drawn
