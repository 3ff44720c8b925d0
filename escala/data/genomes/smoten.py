"""SMOTEN on one-byte codes: as in imbalanced-learn, but faster and in bounded memory.

At each position, a synthetic row takes the most frequent code of a base row and its nearest
neighbours in the class (Chawla, Bowyer, Hall and Kegelmeyer, 2002, section 6.2). The distance of
rows x and y, the value-difference metric with k = 1 and r = 2, sums over positions f and classes c:

    D(x, y) = Σ_f T_f[x_f, y_f]        T_f[a, b] = (Σ_c |p(c | f holds a) - p(c | f holds b)|)²

The probabilities are fractions of the rows of all classes. BLAS sums lines of the tables over the
rows' one-hot codes in float32. Rows whose distances differ by no more than the error of float32 are
compared in float64, term by term. docs/decisions/genomes.md explains this.
"""

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np

from escala.core.errors import InputError

BLOCK_BYTES = 256 * 2**20
#: Positions that one matrix product sums over.
WIDTH = 128


def new_rows(
    X: np.ndarray,
    y: np.ndarray,
    wanted: Mapping[int, int],
    neighbours: int,
    seed: int,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the new rows in blocks: a label, and uint8 of shape (some rows, positions).

    The rows equal the new rows of `imblearn.over_sampling.SMOTEN` 0.14, with one exception. If the
    last neighbour taken and the first neighbour left out are at equal distance, neighbours are
    taken in this order: the base row itself, then the rows after the base row in the class, then
    the rows from the first one.

    `X` is uint8 (rows, positions) and may be mapped from a file, and `y` are labels. `wanted` has
    the number of rows, present and new, of each class to enlarge. Such a class must have more
    present rows than `neighbours`. Random numbers of each class start from `seed`. `block_bytes` is
    the working memory, without the tables and 100 bytes a row. Tables larger than `block_bytes` are
    refused.
    """
    X, votes = np.asarray(X), neighbours + 1
    metric = Metric(X, y, block_bytes)
    step = max(1, block_bytes // ((2 * votes + 8) * X.shape[1]))
    for label, rows in wanted.items():
        members = np.flatnonzero(y == label)
        # Drawn as in imbalanced-learn.
        drawn = np.random.RandomState(seed).choice(len(members), size=rows - len(members))
        bases, base_of_row = np.unique(drawn, return_inverse=True)
        voters = metric.nearest(members, bases, votes)
        for first in range(0, len(drawn), step):
            # All new rows of one base row are equal, so a block makes one of them.
            some, place = np.unique(base_of_row[first : first + step], return_inverse=True)
            yield label, _modes(X[voters[some].T], metric.alphabet)[place]


class Metric:
    """The value-difference metric of rows with labels.

    `alphabet` are the codes that occur, ascending. `index` is the place in `alphabet` of every
    one-byte code. `tables` are T_f[a, b], float64 (positions, codes, codes), and equal
    imbalanced-learn's bit by bit.
    """

    def __init__(self, X: np.ndarray, y: np.ndarray, block_bytes: int):
        self._X, self._bytes = X, block_bytes
        present = np.zeros(256, np.bool_)
        for part in _slices(len(X), block_bytes // (16 * X.shape[1])):
            present[X[part]] = True
        self.alphabet, self.index = np.flatnonzero(present).astype(np.uint8), np.cumsum(present) - 1
        codes, positions = len(self.alphabet), X.shape[1]
        size = 8 * positions * codes**2
        if size > block_bytes:
            reason = f"tables of {codes} codes at {positions} positions take {size} bytes"
            remedy = "allow more bytes, or give data of fewer codes"
            raise InputError("block_bytes", block_bytes, reason, remedy)
        members = [np.flatnonzero(y == label) for label in np.unique(y)]
        counts = np.stack([self._counts(rows) for rows in members], axis=-1)
        self.tables = np.empty((positions, codes, codes))
        for part in _slices(positions, block_bytes // (32 * codes * codes * len(members))):
            fraction = np.ascontiguousarray(counts[part], np.float64)
            # A code that a position never holds has probability 0 in every class.
            fraction /= np.maximum(fraction.sum(axis=2, keepdims=True), 1)
            self.tables[part] = np.abs(fraction[:, :, None] - fraction[:, None]).sum(axis=3) ** 2

    def _counts(self, rows: np.ndarray) -> np.ndarray:
        """Return how often codes occur at each position of `rows`, int64 (positions, codes)."""
        counts = np.zeros((len(self.alphabet), self._X.shape[1]), np.int64)
        # A sum of at most 255 ones fits into a byte, and sums of bytes are fast.
        for part in _slices(len(rows), min(255, self._bytes // (4 * self._X.shape[1]))):
            block = self._X[rows[part]]
            for count, code in zip(counts, self.alphabet, strict=True):
                count += (block == code).view(np.uint8).sum(axis=0, dtype=np.uint8)
        return counts.T

    def nearest(self, members: np.ndarray, bases: np.ndarray, count: int) -> np.ndarray:
        """Return the row numbers of the nearest rows in the class, int64 (bases, count).

        `members` are the row numbers of the class, ascending, and `bases` are places in `members`.
        A row is a neighbour of itself. `new_rows` gives the order of rows at equal distance.
        """
        held = self._counts(members) > 0
        differ = (self.tables > 0) & held[:, :, None] & held[:, None]
        positions = np.flatnonzero(differ.any(axis=(1, 2)))
        # Rows with equal codes at these positions are a group, and are compared once.
        digests = np.empty(len(members), "S32")
        for part in _slices(len(members), self._bytes // (4 * self._X.shape[1])):
            for place, codes in enumerate(self._X[members[part]].take(positions, 1), part.start):
                digests[place] = hashlib.sha256(codes).digest()
        _, firsts, group_of = np.unique(digests, return_index=True, return_inverse=True)
        # For each group: a row that stands for the group, and the places of all its rows in the
        # class.
        heads, order = members[firsts], np.argsort(group_of, kind="stable")
        places = np.split(order, np.cumsum(np.bincount(group_of))[:-1])
        base_groups, group_of_base = np.unique(group_of[bases], return_inverse=True)
        # The number n of roundings of terms of one sign (Higham 2002, section 4.2): one to float32,
        # `WIDTH` in the sum of a matrix product, one when each product is added, and two for
        # float64 and the limit.
        n = 3 + WIDTH + -(-len(positions) // WIDTH)
        error = n * 2**-24 / (1 - n * 2**-24)
        neighbours = np.empty((len(bases), count), np.int64)
        for number, distances in enumerate(self._rough(heads, heads[base_groups], positions)):
            last = min(count, len(heads)) - 1
            limit = float(np.partition(distances, last)[last])
            near = np.flatnonzero(distances <= limit * (1 + error) / (1 - error))
            exact = self._exact(heads[base_groups[number]], heads[near])
            place = np.concatenate([places[group] for group in near])
            distance = np.repeat(exact, [len(places[group]) for group in near])
            for base in np.flatnonzero(group_of_base == number):
                after = (place - bases[base]) % len(members)
                neighbours[base] = place[np.lexsort((after, distance))[:count]]
        return members[neighbours]

    def _rough(
        self, rows: np.ndarray, bases: np.ndarray, positions: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Yield, for each base, the distances of `rows` from this base, float32 (rows,)."""
        quarter, columns = self._bytes // 4, WIDTH * len(self.alphabet)
        for some in _slices(len(bases), quarter // max(4 * len(rows), 20 * columns)):
            sums = np.zeros((len(bases[some]), len(rows)), np.float32)
            for at in (positions[part] for part in _slices(len(positions), WIDTH)):
                codes = self.index[self._X[np.ix_(bases[some], at)]]
                weights = self.tables[at, codes].astype(np.float32).reshape(len(codes), -1)
                for part in _slices(len(rows), quarter // (8 * columns)):
                    one_hot = self._X[np.ix_(rows[part], at)][..., None] == self.alphabet
                    one_hot = one_hot.reshape(len(one_hot), -1).astype(np.float32)
                    sums[:, part] += weights @ one_hot.T
            yield from sums

    def _exact(self, base: int, rows: np.ndarray) -> np.ndarray:
        """Return the distances of `rows` from `base`, float64, terms added in order of position."""
        codes, distances = self.index[self._X[base]], np.empty(len(rows))
        for part in _slices(len(rows), self._bytes // (200 * self._X.shape[1])):
            block = self._X[rows[part]]
            row, position = np.divmod(np.flatnonzero(block != self._X[base]), block.shape[1])
            terms = self.tables[position, codes[position], self.index[block[row, position]]]
            distances[part] = np.bincount(row, weights=terms, minlength=len(block))
        return distances


def _modes(voters: np.ndarray, alphabet: np.ndarray) -> np.ndarray:
    """Return the most frequent code along the first axis; of equally frequent codes, the smallest.

    `voters` are uint8 of shape (votes, rows, positions), and `alphabet` are the codes, ascending.
    """
    winner = np.zeros(voters.shape[1:], np.uint8)
    most = np.zeros(winner.shape, np.min_scalar_type(len(voters)))
    for code in alphabet:
        votes = (voters == code).sum(axis=0, dtype=most.dtype)
        np.copyto(winner, code, where=votes > most)
        np.maximum(most, votes, out=most)
    return winner


def _slices(total: int, step: int) -> list[slice]:
    """Return slices of at most `step`, and at least one, that cover `total` in order."""
    step = max(1, step)
    return [slice(first, min(first + step, total)) for first in range(0, total, step)]
