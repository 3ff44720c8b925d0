"""Familiarity of a sequence: the share of its k-mers that occur in the training rows.

A classifier gives class probabilities for any sequence, even for one unlike its training rows. A
sequence with a low share is flagged as unlike the training rows. The threshold is a chosen quantile
of the shares of the held-out test rows. Test rows below it are false alarms, and their rate is
measured on the same rows.

A second, lower threshold divides the flagged sequences. To find it, the k-mers of each class are
left out once: its test rows then stand for sequences of a class that was not trained on. A sequence
is *far* if its share is not above what such rows reach, and *near* otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.files import atomic, read_json
from escala.data.base import DESCRIPTION
from escala.data.genomes.prepare.kmers import kmers

#: Letters of a k-mer. A set of the 4**12 = 16.8 million k-mers takes 2 MiB as bits. A random
#: sequence shares few k-mers with some hundred thousand letters of genomes.
K = 12
#: Rows that are held in memory at a time.
ROWS = 1024
#: Share of the test rows of a class that was left out which count as far.
FAR = 0.99

#: By the label of a class, blocks of its rows.
Sides = Mapping[int, Iterable[np.ndarray]]
_NONE = np.empty(0, np.float32)


@dataclass(frozen=True)
class Familiarity:
    """The k-mers of the training rows, and the share of them in each held-out row.

    Parameters
    ----------
    seen : uint8 of shape (4**K / 8,), one bit per k-mer, by its number.
    held_out : float32, the share of each held-out row, in ascending order.
    unrelated : the share that `FAR` of the held-out rows of a class do not exceed if the class is
        left out of the training rows, of the class where it is largest. NaN without such rows.
    strands : whether k-mers of the other strand are the same. It is false for rows of one strand,
        so that the other one is not familiar to their model.
    """

    seen: np.ndarray
    held_out: np.ndarray
    unrelated: float = float("nan")
    strands: bool = True

    @classmethod
    def learn(cls, trained: Sides, held_out: Sides, strands: bool = True) -> Familiarity:
        """Collect the k-mers of training rows, and measure the share of each held-out row.

        Parameters
        ----------
        trained, held_out : by class, blocks of codes, uint8 of shape (some rows, length), 0 to 4.
        strands : whether the rows are of both strands.
        """
        classes, of_class = np.zeros(4**K, np.uint16), {}
        for label, blocks in trained.items():
            known = np.zeros(4**K, np.bool_)
            for row in _rows(blocks):
                known[kmers(row, K, strands)] = True
            classes += known
            of_class[label] = np.packbits(known)
        everything, shares, far = cls(np.packbits(classes > 0), _NONE, strands=strands), [], []
        for label, blocks in held_out.items():
            own = np.unpackbits(of_class[label]) if label in of_class else np.uint8(0)
            others, unrelated = cls(np.packbits(classes > own), _NONE, strands=strands), []
            for row in _rows(blocks):
                share = everything.share(row)
                if not np.isnan(share):
                    shares.append(share)
                    unrelated.append(others.share(row))
            if unrelated:
                far.append(np.quantile(unrelated, FAR))
        measured = np.sort(np.array(shares, np.float32))
        return cls(everything.seen, measured, float(max(far, default=np.nan)), strands)

    def share(self, codes: np.ndarray) -> float:
        """Return the share of a sequence's k-mers that occur in the training rows.

        `codes` are uint8 of shape (n,). Without K consecutive unambiguous letters the share is NaN.
        """
        found = kmers(codes, K, self.strands)
        if not len(found):
            return float("nan")
        bits = self.seen[found >> 3] >> (7 - (found & 7)).astype(np.uint8) & 1
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

    def likeness(self, share: float, threshold: float) -> str:
        """Return how like the training rows a share is: `familiar`, `near` or `far`.

        Without a k-mer (NaN) it is `far`.
        """
        if share >= threshold:
            return "familiar"
        return "near" if share > self.unrelated else "far"

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
    """Write the k-mers of a split's training rows and the shares of its test rows.

    Parameters
    ----------
    split : folder with `train.npy`, `train_genomes.npy`, `test.npy`, the labels of both sides, and
        `dataset.json`.
    output : `.npz` to write.

    Raises
    ------
    InputError : no test row has a k-mer, so that false alarms cannot be measured.
    """
    (train, train_labels), (test, test_labels) = (
        [
            np.load(split / f"{side}{what}.npy", mmap_mode="r", allow_pickle=False)
            for what in ("", "_labels")
        ]
        for side in ("train", "test")
    )
    # Rows that SMOTEN made are sequences of no genome.
    real = np.load(split / "train_genomes.npy", allow_pickle=False) >= 0
    familiarity = Familiarity.learn(
        _by_class(train, np.where(real, train_labels, -1), "trained on"),
        _by_class(test, test_labels, "held out"),
        strands=read_json(split / DESCRIPTION)["window"]["reverse_complement"],
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


def _by_class(array: np.ndarray, labels: np.ndarray, what: str) -> Sides:
    """Return blocks of the rows of each class, with progress bars; a label of -1 is none."""
    found = np.unique(labels[labels >= 0]).tolist()
    return {label: _blocks(array, np.flatnonzero(labels == label), what) for label in found}


def _blocks(array: np.ndarray, rows: np.ndarray, what: str) -> Iterator[np.ndarray]:
    """Yield the given rows of an array in blocks, with a progress bar."""
    for first in tqdm(range(0, len(rows), ROWS), desc=what, unit=" blocks", disable=None):
        yield array[rows[first : first + ROWS]]


def _rows(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    for block in blocks:
        yield from block
