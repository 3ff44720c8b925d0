"""The k-mers of encoded sequences, of one strand or of both."""

from __future__ import annotations

import numpy as np


def kmers(codes: np.ndarray, k: int, strands: bool) -> np.ndarray:
    """Return the number of every k-mer of a sequence, int64, in order of its start.

    `codes` are uint8, 0 to 4, and `k` is at most 31. A k-mer is read as a number in base 4 with the
    digits A 0, C 1, G 2 and T 3. The smaller one of the numbers of a k-mer and of its reverse
    complement stands for both if `strands` is true. K-mers with an ambiguous letter or padding are
    left out.
    """
    if len(codes) < k:
        return np.empty(0, np.int64)
    digits = (codes.astype(np.int64) - 1) & 3
    numbers = _numbers(digits, k)
    if strands:
        numbers = np.minimum(numbers, _numbers(3 - digits[::-1], k)[::-1])
    unclear = np.concatenate([[0], np.cumsum(codes == 0)])
    return numbers[unclear[k:] == unclear[:-k]]


def _numbers(digits: np.ndarray, k: int) -> np.ndarray:
    """Return the number that each `k` digits in base 4 make, int64 of shape (n - k + 1,).

    Two neighbours make a number of twice as many digits, as in exponentiation by squaring.
    """
    if k == 1:
        return digits
    half = _numbers(digits, k // 2)
    whole = (half[: len(half) - k // 2] << (2 * (k // 2))) + half[k // 2 :]
    return whole if k % 2 == 0 else (whole[: len(digits) - k + 1] << 2) + digits[k - 1 :]
