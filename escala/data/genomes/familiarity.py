"""Familiarity of a sequence: the fraction of its k-mers that occur in the training rows.

A classifier gives class probabilities for any sequence, even for a sequence unlike its training
rows. A sequence with a low fraction is flagged as unlike the training rows. The threshold is a
quantile of the fractions of the held-out test rows. Test rows below the threshold are false alarms,
and the false-alarm rate is measured on the same test rows.

A second, lower threshold divides the flagged sequences. To find this threshold, the k-mers of each
class are left out once. The test rows of the class then stand for sequences of an unknown class. A
flagged sequence is *near* if its fraction is above the second threshold, and *far* otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.files import atomic, read_json
from escala.data.base import DESCRIPTION
from escala.data.nucleotides import kmers

#: Letters of a k-mer. With one bit for each of 4**12 = 16.8 million k-mers, a set takes 2 MiB. A
#: random sequence has few k-mers in common with some hundred thousand letters of genomes.
K = 12
#: Rows that are held in memory at a time.
ROWS = 1024
#: A class is left out: this fraction of its test rows counts as far.
FAR = 0.99

#: The rows of each class by its label. Rows are codes, uint8 from 0 to 4.
ClassRows = Mapping[int, Iterable[np.ndarray]]


@dataclass(frozen=True)
class Familiarity:
    """The k-mers of the training rows, and the fraction of them in each held-out row.

    Attributes
    ----------
    seen : uint8 of shape (4**K / 8,), one bit per k-mer, by its number.
    held_out : float32, the fraction of each held-out row, in ascending order.
    unrelated : the second threshold. For each class, the quantile `FAR` of the fractions of its
        held-out rows is computed without its training rows. `unrelated` is the largest quantile, or
        NaN without held-out rows.
    strands : whether a k-mer and its reverse complement count as one. This is false if the rows are
        of one strand, so that the other strand is unfamiliar.
    """

    seen: np.ndarray
    held_out: np.ndarray
    unrelated: float = math.nan
    strands: bool = True

    @classmethod
    def learn(cls, trained: ClassRows, held_out: ClassRows, strands: bool = True) -> Familiarity:
        """Collect the k-mers of training rows, and measure the fraction of each held-out row."""

        def make(seen: np.ndarray) -> Familiarity:
            return cls(np.packbits(seen), np.empty(0, np.float32), strands=strands)

        # The number of classes that hold each k-mer, and the k-mers of each class as bits.
        classes, bits = np.zeros(4**K, np.uint16), {}
        for label, rows in trained.items():
            known = np.zeros(4**K, np.bool_)
            for row in rows:
                known[kmers(row, K, strands)] = True
            classes += known
            bits[label] = np.packbits(known)
        everything, fractions, far = make(classes > 0), [], []
        for label, rows in held_out.items():
            # A k-mer is in another class if more classes hold it than this class alone.
            inside = np.unpackbits(bits[label]) if label in bits else np.uint8(0)
            others, without_class = make(classes > inside), []
            for row in rows:
                fraction = everything.fraction(row)
                if not np.isnan(fraction):
                    fractions.append(fraction)
                    without_class.append(others.fraction(row))
            if without_class:
                far.append(np.quantile(without_class, FAR))
        measured = np.sort(np.array(fractions, np.float32))
        return cls(everything.seen, measured, float(max(far, default=np.nan)), strands)

    def fraction(self, codes: np.ndarray) -> float:
        """Return the fraction of a sequence's k-mers that occur in the training rows.

        `codes` are uint8 of shape (n,). The result is NaN without K consecutive unambiguous
        letters.
        """
        numbers = kmers(codes, K, self.strands)
        if not len(numbers):
            return math.nan
        bits = self.seen[numbers >> 3] >> (7 - (numbers & 7)).astype(np.uint8) & 1
        return float(bits.mean())

    def threshold(self, false_alarms: float) -> float:
        """Return the fraction below which at most `false_alarms` of the held-out rows lie."""
        if not 0 <= false_alarms < 1:
            reason = "is not from 0 to below 1"
            raise InputError("false_alarms", false_alarms, reason, "set for example 0.05")
        return float(self.held_out[int(false_alarms * len(self.held_out))])

    def false_alarm_rate(self, threshold: float) -> float:
        """Return the measured fraction of held-out rows below a threshold."""
        return float(np.mean(self.held_out < threshold))

    def likeness(self, fraction: float, threshold: float) -> str:
        """Return `familiar`, `near` or `far` for a fraction; NaN is `far`."""
        if fraction >= threshold:
            return "familiar"
        return "near" if fraction > self.unrelated else "far"

    def save(self, path: Path) -> None:
        """Write the attributes as `.npz`, atomically."""
        with atomic(path) as temporary:
            np.savez(temporary, **asdict(self))

    @classmethod
    def load(cls, path: Path) -> Familiarity:
        with np.load(path, allow_pickle=False) as arrays:
            unrelated, strands = float(arrays["unrelated"]), bool(arrays["strands"])
            return cls(arrays["seen"], arrays["held_out"], unrelated, strands)


def learn(split: Path, output: Path) -> Familiarity:
    """Write the k-mers of a split's training rows and the fractions of its test rows, as `.npz`."""
    (train, train_labels), (test, test_labels) = (
        [
            np.load(split / f"{side}{what}.npy", mmap_mode="r", allow_pickle=False)
            for what in ("", "_labels")
        ]
        for side in ("train", "test")
    )
    # A row that SMOTEN made is no sequence of a genome.
    real = np.load(split / "train_genomes.npy", allow_pickle=False) >= 0
    familiarity = Familiarity.learn(
        _by_class(train, np.where(real, train_labels, -1), "trained on"),
        _by_class(test, test_labels, "held out"),
        strands=read_json(split / DESCRIPTION)["window"]["reverse_complement"],
    )
    if not len(familiarity.held_out):
        reason = f"holds no row with {K} consecutive letters A, C, G or T: false alarms cannot be "
        remedy = "choose a split with such a test row"
        raise InputError(split, "test.npy", f"{reason}measured", remedy)
    familiarity.save(output)
    return familiarity


def _by_class(array: np.ndarray, labels: np.ndarray, what: str) -> ClassRows:
    """Return the rows of each class, with progress bars; the label -1 means no class."""
    present = np.unique(labels[labels >= 0]).tolist()
    return {label: _rows(array, np.flatnonzero(labels == label), what) for label in present}


def _rows(array: np.ndarray, rows: np.ndarray, what: str) -> Iterator[np.ndarray]:
    for first in tqdm(range(0, len(rows), ROWS), desc=what, unit=" blocks", disable=None):
        yield from array[rows[first : first + ROWS]]
