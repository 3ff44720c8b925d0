"""Familiarity of a sequence: the share of its k-mers that occur in the training rows.

A classifier gives class probabilities for any sequence, even for one unlike its training rows. A
sequence with a low share is flagged as unlike the training rows. The threshold is a chosen quantile
of the shares of the held-out test rows. Test rows below it are false alarms, and their rate is
measured on the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.files import atomic
from escala.data.genomes.prepare.kmers import canonical_kmers

#: Letters of a k-mer. A set of the 4**12 = 16.8 million k-mers takes 2 MiB as bits. A random
#: sequence shares few k-mers with some hundred thousand letters of genomes.
K = 12
#: Rows that are held in memory at a time.
ROWS = 1024


@dataclass(frozen=True)
class Familiarity:
    """The k-mers of the training rows, and the share of them in each held-out row.

    Parameters
    ----------
    seen : uint8 of shape (4**K / 8,), one bit per k-mer, by its canonical number.
    held_out : float32, the share of each held-out row, in ascending order.
    """

    seen: np.ndarray
    held_out: np.ndarray

    @classmethod
    def learn(cls, trained: Iterable[np.ndarray], held_out: Iterable[np.ndarray]) -> Familiarity:
        """Collect the k-mers of training rows, and measure the share of each held-out row.

        Parameters
        ----------
        trained, held_out : blocks of codes, uint8 of shape (some rows, length), 0 to 4.
        """
        known = np.zeros(4**K, np.bool_)
        for block in trained:
            for row in block:
                known[canonical_kmers(row, K)] = True
        seen = np.packbits(known)
        empty = cls(seen, np.empty(0, np.float32))
        shares = [empty.share(row) for block in held_out for row in block]
        measured = np.array([share for share in shares if not np.isnan(share)], np.float32)
        return cls(seen, np.sort(measured))

    def share(self, codes: np.ndarray) -> float:
        """Return the share of a sequence's k-mers that occur in the training rows.

        `codes` are uint8 of shape (n,). Without K consecutive unambiguous letters the share is NaN.
        """
        kmers = canonical_kmers(codes, K)
        if not len(kmers):
            return float("nan")
        bits = self.seen[kmers >> 3] >> (7 - (kmers & 7)).astype(np.uint8) & 1
        return float(bits.mean())

    def threshold(self, false_alarms: float) -> float:
        """Return the share below which at most `false_alarms` of the held-out rows lie.

        Raises
        ------
        InputError : `false_alarms` is not from 0 to below 1.
        """
        if not 0 <= false_alarms < 1:
            raise InputError(
                "false_alarms", false_alarms, "is not from 0 to below 1", "set for example 0.05"
            )
        if not len(self.held_out):
            return float("nan")
        return float(self.held_out[int(false_alarms * len(self.held_out))])

    def false_alarm_rate(self, threshold: float) -> float:
        """Return the measured share of held-out rows below a threshold."""
        if not len(self.held_out):
            return float("nan")
        return float(np.mean(self.held_out < threshold))

    def save(self, path: Path) -> None:
        """Write both arrays as `.npz`, atomically."""
        with atomic(path) as temporary:
            np.savez(temporary, seen=self.seen, held_out=self.held_out)

    @classmethod
    def load(cls, path: Path) -> Familiarity:
        with np.load(path, allow_pickle=False) as arrays:
            return cls(arrays["seen"], arrays["held_out"])


def learn(split: Path, output: Path) -> Familiarity:
    """Write the k-mers of a split's training rows and the shares of its test rows.

    Parameters
    ----------
    split : folder with `train.npy`, `train_genomes.npy` and `test.npy`.
    output : `.npz` to write.

    Raises
    ------
    InputError : no test row has a k-mer, so that false alarms cannot be measured.
    """
    train, test = (
        np.load(split / f"{side}.npy", mmap_mode="r", allow_pickle=False)
        for side in ("train", "test")
    )
    # Rows that SMOTEN made are sequences of no genome.
    real = np.load(split / "train_genomes.npy", allow_pickle=False) >= 0
    familiarity = Familiarity.learn(
        _blocks(train, np.flatnonzero(real), "trained on"),
        _blocks(test, np.arange(len(test)), "held out"),
    )
    if not len(familiarity.held_out):
        raise InputError(
            split,
            "test.npy",
            f"holds no row with {K} consecutive letters A, C, G or T: false alarms cannot be "
            "measured",
            "choose a split that has such test rows",
        )
    familiarity.save(output)
    return familiarity


def _blocks(array: np.ndarray, rows: np.ndarray, what: str) -> Iterator[np.ndarray]:
    """Yield the given rows of an array in blocks, with a progress bar."""
    for first in tqdm(range(0, len(rows), ROWS), desc=what, unit=" blocks", disable=None):
        yield array[rows[first : first + ROWS]]
