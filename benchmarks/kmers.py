"""Measure the counting of k-mers, and the logistic regression on dense and on sparse tables.

Prints, for each length and k: million letters counted a second on one core, the fraction of cells
that are not 0, the seconds of a fit on a dense and on a sparse table, and the choice of
`escala.workloads.kmer_logreg.model.frequencies`. Medians over the repetitions, in brackets the
range.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from benchmarks.common import on_cores, seconds, spread
from escala.workloads.kmer_logreg import model

CLASSES = 5
#: Fraction of letters that differ between two sequences of a class.
MUTATED = 0.1


def sequences(rows: int, length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return codes uint8 (rows, length) and labels: each class has an ancestor of its own."""
    random = np.random.default_rng(seed)
    ancestors = random.integers(1, 5, (CLASSES, length), dtype=np.uint8)
    labels = random.integers(0, CLASSES, rows)
    codes = ancestors[labels]
    changed = random.random(codes.shape, np.float32) < MUTATED
    codes[changed] = random.integers(1, 5, int(changed.sum()), dtype=np.uint8)
    return codes, labels


def _count(codes: np.ndarray, k: int) -> None:
    for table in model.counts(codes, k):
        table.sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 6000])
    parser.add_argument("--k", type=int, nargs="+", default=[6, 8])
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    on_cores(1)
    times = range(arguments.repetitions)
    for length in arguments.lengths:
        codes, labels = sequences(arguments.rows, length, 0)
        for k in arguments.k:
            counting = [seconds(_count, codes, k) for _ in times]
            selected = model.frequencies(codes, k)
            thin = sparse.csr_array(selected)
            full = thin.toarray()

            def fit(table: np.ndarray | sparse.csr_array, labels: np.ndarray = labels) -> None:
                LogisticRegression(max_iter=1000).fit(table, labels)

            with threadpool_limits(1):
                dense, csr = ([seconds(fit, table) for _ in times] for table in (full, thin))
            print(
                f"{arguments.rows} rows of {length} letters, k {k}: counted "
                f"{spread([codes.size / s / 1e6 for s in counting])} million letters/s; density "
                f"{thin.nnz / full.size:.2f}; "
                f"fit dense {spread(dense)} s, {full.nbytes / 1e6:.0f} MB, "
                f"sparse {spread(csr)} s, {(thin.data.nbytes + thin.indices.nbytes) / 1e6:.0f} MB; "
                f"selected: {'sparse' if sparse.issparse(selected) else 'dense'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
