"""SMOTEN on one-byte codes: as in imbalanced-learn, but faster and in bounded memory.

At each position, a synthetic row takes the most frequent code of a base row and its nearest
neighbours in the class (Chawla, Bowyer, Hall and Kegelmeyer, 2002, section 6.2). The distance
between rows x and y is the value-difference metric with the exponents that imbalanced-learn sets, k
= 1 and r = 2:

    D(x, y) = Σ_f T_f[x_f, y_f]        T_f[a, b] = (Σ_c |p(c | f holds a) - p(c | f holds b)|)²

over positions f and classes c, where the probabilities are fractions of the rows of all classes.
BLAS computes it as a product of the rows' one-hot codes with each base's line of the tables.
docs/decisions/010-smoten.md explains why the result is still exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.linalg.blas import sgemm

from escala.core.errors import InputError

BLOCK_BYTES = 256 * 2**20
#: Number of pairs of a position and a code that one matrix product sums over.
PRODUCT = 512


def new_rows(
    X: np.ndarray,
    y: np.ndarray,
    wanted: Mapping[int, int],
    neighbours: int,
    seed: int,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the new rows in blocks: a label, and uint8 of shape (some rows, positions).

    They are those of `imblearn.over_sampling.SMOTEN` 0.14, unless the last neighbour taken and the
    first one left out are equally far. In this case imbalanced-learn takes whichever its sort puts
    first. Here a base's own row comes first, then the rows after it in the class, and after the
    last row the first.

    Parameters
    ----------
    X : uint8 of shape (rows, positions), any codes; may be mapped from a file.
    y : labels of shape (rows,).
    wanted : rows of each class to enlarge, by label; each class has more rows than `neighbours`.
    neighbours : rows that vote in addition to the base itself.
    seed : from which every class starts anew.
    block_bytes : working memory, in addition to arguments and results, about 100 bytes per row, and
        8 bytes per position and pair of codes. A block has at least one row.

    Raises
    ------
    InputError : the tables of distances would not fit into `block_bytes`.
    """
    X, votes = np.asarray(X), neighbours + 1
    metric = Metric(X, y, block_bytes)
    step = max(1, block_bytes // ((votes + 6) * X.shape[1]))
    for label, rows in wanted.items():
        members = np.flatnonzero(y == label)
        # As imbalanced-learn draws.
        drawn = np.random.RandomState(seed).choice(len(members), size=rows - len(members))
        bases, which = np.unique(drawn, return_inverse=True)
        voters = nearest(X, members, bases, votes, metric, block_bytes)
        for first in range(0, len(drawn), step):
            used, row = np.unique(which[first : first + step], return_inverse=True)
            yield label, modes(X[voters[used].T], metric.alphabet)[row]


class Metric:
    """The value-difference metric of rows with labels.

    `alphabet` are the codes that occur, ascending, and `index` is the place in it of every one-byte
    code. `tables` are float64 (positions, codes, codes), T_f[a, b] of the module's description, bit
    by bit the numbers of imbalanced-learn.
    """

    def __init__(self, X: np.ndarray, y: np.ndarray, block_bytes: int):
        seen = np.zeros(256, np.bool_)
        for block in _slices(len(X), block_bytes // (16 * X.shape[1])):
            seen[X[block]] = True
        self.alphabet = np.flatnonzero(seen).astype(np.uint8)
        self.index = np.cumsum(seen) - 1
        codes, positions = len(self.alphabet), X.shape[1]
        size = 8 * positions * codes**2
        if size > block_bytes:
            reason = f"tables of {codes} codes at {positions} positions take {size} bytes"
            remedy = "allow more bytes, or give data of fewer codes"
            raise InputError("block_bytes", block_bytes, reason, remedy)
        members = [np.flatnonzero(y == label) for label in np.unique(y)]
        counts = [value_counts(X, rows, self.alphabet, block_bytes) for rows in members]
        self.tables = _difference_tables(np.stack(counts, axis=-1), block_bytes)


def value_counts(
    X: np.ndarray, rows: np.ndarray, alphabet: np.ndarray, block_bytes: int
) -> np.ndarray:
    """Return how often each code occurs at each position of `rows`, int64 (positions, codes)."""
    counts = np.zeros((len(alphabet), X.shape[1]), np.int64)
    # Sums of at most 255 ones fit into a byte, which is fast.
    for part in _slices(len(rows), min(255, block_bytes // (4 * X.shape[1]))):
        block = X[rows[part]]
        for count, code in zip(counts, alphabet, strict=True):
            count += (block == code).view(np.uint8).sum(axis=0, dtype=np.uint8)
    return counts.T


def _difference_tables(counts: np.ndarray, block_bytes: int) -> np.ndarray:
    """Return T_f[a, b], float64 (positions, codes, codes), from counts (positions, codes, classes).

    A code that a position never holds has probability 0 in every class, as in imbalanced-learn.
    """
    positions, codes, classes = counts.shape
    tables = np.empty((positions, codes, codes))
    for part in _slices(positions, block_bytes // (32 * codes * codes * classes)):
        fraction = np.ascontiguousarray(counts[part], np.float64)
        fraction /= np.maximum(fraction.sum(axis=2, keepdims=True), 1)
        tables[part] = np.abs(fraction[:, :, None] - fraction[:, None]).sum(axis=3) ** 2
    return tables


def nearest(
    X: np.ndarray,
    members: np.ndarray,
    bases: np.ndarray,
    count: int,
    metric: Metric,
    block_bytes: int,
) -> np.ndarray:
    """Return the nearest rows of some rows within their class, int64 of shape (bases, count).

    `members` are the row numbers of the class, ascending, and `bases` places in `members`. The
    nearest comes first, and a row is a neighbour of itself. Among rows at the same distance
    (float64, terms added in the order of the positions) the base comes first, then the rows after
    it in `members`, and after the last row the first.
    """
    columns = Columns.in_class(metric, value_counts(X, members, metric.alphabet, block_bytes))
    group_of = _alike(X, members, np.unique(columns.position), block_bytes)
    places = np.argsort(group_of, kind="stable")
    ends = np.cumsum(np.bincount(group_of))
    starts = np.concatenate([[0], ends[:-1]])
    heads = members[places[starts]]
    used, which = np.unique(group_of[bases], return_inverse=True)
    asked = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])

    found = np.empty((len(bases), count), np.int64)
    rough = rough_distances(X, heads, heads[used], columns, metric, block_bytes)
    for head, asking, distances in zip(heads[used], asked, rough, strict=True):
        near = within_reach(distances, count, columns.relative_error)
        exact = _exact(X, head, heads[near], metric, block_bytes)
        place = np.concatenate([places[starts[group] : ends[group]] for group in near])
        distance = np.repeat(exact, ends[near] - starts[near])
        for base in asking:
            after = (place - bases[base]) % len(members)
            found[base] = place[np.lexsort((after, distance))[:count]]
    return members[found]


@dataclass(frozen=True)
class Columns:
    """The columns of a class's one-hot codes that contribute to distances within the class.

    `position` and `code`, a place in the alphabet, are int64 of shape (columns,).
    """

    position: np.ndarray
    code: np.ndarray

    @classmethod
    def in_class(cls, metric: Metric, counts: np.ndarray) -> Columns:
        """Return the columns of a class, from its `value_counts`.

        A position contributes if two of its codes in the class have a distance above 0.
        """
        held = counts > 0
        apart = (metric.tables > 0) & held[:, :, None] & held[:, None]
        return cls(*np.nonzero(held & apart.any(axis=(1, 2))[:, None]))

    @property
    def relative_error(self) -> float:
        """Bound on the relative error of a distance from float32 products.

        All terms are at least 0, so a sum is off by at most n u / (1 - n u) of itself after n
        roundings, in whichever order it is taken (Higham, Accuracy and Stability of Numerical
        Algorithms, 2002, section 4.2), u = 2⁻²⁴. A product with the 0 of a one-hot code is exact. A
        term is rounded once in the conversion from float64, at most once for each column of its
        product, and once for each product. Two more roundings allow for those of float64 and of the
        limit that distances are compared with.
        """
        roundings = 1 + PRODUCT + -(-len(self.position) // PRODUCT) + 2
        return roundings * 2**-24 / (1 - roundings * 2**-24)


def modes(voters: np.ndarray, alphabet: np.ndarray) -> np.ndarray:
    """Return the most frequent code along the first axis, the smallest one among equals.

    `voters` are uint8 of shape (votes, rows, positions), and `alphabet` their codes, ascending.
    """
    votes = np.empty(voters.shape[1:], np.min_scalar_type(len(voters)))
    most, winner = np.zeros_like(votes), np.zeros(votes.shape, np.uint8)
    for code in alphabet:
        votes[:] = 0
        for voter in voters:
            votes += voter == code
        np.copyto(winner, code, where=votes > most)
        np.maximum(most, votes, out=most)
    return winner


def _alike(
    X: np.ndarray, members: np.ndarray, positions: np.ndarray, block_bytes: int
) -> np.ndarray:
    """Return a number for each member; members with equal codes at `positions` share it."""
    digests = np.empty(len(members), "S32")
    for part in _slices(len(members), block_bytes // (4 * X.shape[1])):
        for place, codes in enumerate(X[members[part]].take(positions, axis=1), part.start):
            digests[place] = hashlib.sha256(codes).digest()
    return np.unique(digests, return_inverse=True)[1]


def rough_distances(
    X: np.ndarray,
    rows: np.ndarray,
    bases: np.ndarray,
    columns: Columns,
    metric: Metric,
    block_bytes: int,
) -> Iterator[np.ndarray]:
    """Yield, for each of `bases`, the distances of `rows` from it, float32 of shape (rows,)."""
    # Half of the memory is for the sums, a quarter for each of the two factors.
    row_parts = [rows[part] for part in _slices(len(rows), block_bytes // 4 // (8 * PRODUCT))]
    step = min(block_bytes // 2 // (4 * len(rows)), block_bytes // 4 // (20 * PRODUCT))
    for part in _slices(len(bases), step):
        sums = (total.T for total in _sums(X, row_parts, bases[part], columns, metric))
        yield from map(np.concatenate, zip(*sums, strict=True))


def _sums(
    X: np.ndarray, row_parts: list[np.ndarray], bases: np.ndarray, columns: Columns, metric: Metric
) -> list[np.ndarray]:
    """Return the distances of each part of the rows from `bases`, float32 (rows, bases)."""
    sums = [np.zeros((len(rows), len(bases)), np.float32, order="F") for rows in row_parts]
    for product in _slices(len(columns.position), PRODUCT):
        positions, line = np.unique(columns.position[product], return_inverse=True)
        code = columns.code[product]
        table = metric.tables[columns.position[product], :, code].astype(np.float32)
        held = metric.index[X[np.ix_(bases, positions)].T]
        weights = np.take_along_axis(table, held[line], axis=1)
        for rows, total in zip(row_parts, sums, strict=True):
            letters = np.ascontiguousarray(X[np.ix_(rows, positions)].T)
            one_hot = (letters[line] == metric.alphabet[code][:, None]).astype(np.float32)
            # Transposed, the arrays have the layout of BLAS, and `total` is updated in place.
            sgemm(1, one_hot.T, weights.T, 1, total, trans_b=True, overwrite_c=True)
    return sums


def within_reach(distances: np.ndarray, count: int, relative_error: float) -> np.ndarray:
    """Return the places of `distances` that may be among the `count` smallest true distances."""
    last = min(count, len(distances)) - 1
    limit = float(np.partition(distances, last)[last])
    return np.flatnonzero(distances <= limit * (1 + relative_error) / (1 - relative_error))


def _exact(
    X: np.ndarray, base: int, rows: np.ndarray, metric: Metric, block_bytes: int
) -> np.ndarray:
    """Return the distances of `rows` from `base`, float64, terms added in order of position."""
    codes = metric.index[X[base]]
    distances = np.empty(len(rows))
    for part in _slices(len(rows), block_bytes // 4 // (50 * X.shape[1])):
        block = X[rows[part]]
        row, position = np.divmod(np.flatnonzero(block != X[base]), X.shape[1])
        terms = metric.tables[position, codes[position], metric.index[block[row, position]]]
        distances[part] = np.bincount(row, weights=terms, minlength=len(block))
    return distances


def _slices(total: int, step: int) -> list[slice]:
    """Return slices of at most `step`, and at least one, that cover `total` in order."""
    step = max(1, step)
    return [slice(first, min(first + step, total)) for first in range(0, total, step)]
