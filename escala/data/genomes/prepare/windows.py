"""Pieces of genomes that become rows: starts, random windows or tiles, on either strand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from escala.data.encode import reverse_complement

#: A row before its letters are looked up. `begin` counts letters from the start of the genome;
#: `reverse` asks for the reverse complement of the window.
ROW = np.dtype([("genome", np.int32), ("begin", np.int32), ("reverse", np.bool_)])
BLOCK_BYTES = 64 * 2**20


def windows(
    genomes: np.ndarray, letters: np.ndarray, length: int, window: dict, seed: int
) -> np.ndarray:
    """Return the rows, an array of `ROW`, that a window setting cuts from genomes, in their order.

    `method` is `start` (one row a genome), `random` (`per_genome` rows, which begin anywhere, by
    the seed) or `tiles` (a row every `stride` letters, and one that ends where the genome does).
    With `reverse_complement` each row is followed by its other strand. A genome shorter than a row
    gives one padded row, with `random` the same one `per_genome` times.

    `genomes` are numbers, by which `letters`, those of every genome, are indexed. `length` is that
    of a row.
    """
    room = np.maximum(letters[genomes].astype(np.int64) - length, 0)
    if window["method"] == "start":
        begins = [np.zeros(1, np.int64)] * len(genomes)
    elif window["method"] == "random":
        drawn = np.random.default_rng(seed).integers(
            0, room[:, None] + 1, (len(genomes), window["per_genome"])
        )
        begins = list(drawn)
    else:
        begins = [np.unique([*range(0, last + 1, window["stride"]), last]) for last in room]
    rows = _rows(np.repeat(genomes, [len(b) for b in begins]), np.concatenate([[], *begins]))
    if not window["reverse_complement"]:
        return rows
    both = np.repeat(rows, 2)
    both["reverse"][1::2] = True
    return both


def random_windows(
    rows: np.ndarray, letters: np.ndarray, length: int, count: int, within: int | None, seed: int
) -> np.ndarray:
    """Return `count` more rows from the genomes of `rows`, with random starts.

    Genomes of one virus begin at different letters, as sequencing gave them, so a model that
    weighs positions must see each of them shifted (docs/decisions/009-windows.md). The genomes take
    turns, so their numbers of windows differ by at most one. Windows begin within the first
    `within` letters from the start of a genome; None is anywhere. Strands are drawn if `rows` holds
    both.
    """
    random = np.random.default_rng(seed)
    genomes = np.resize(random.permutation(np.unique(rows["genome"])), count)
    room = np.maximum(letters[genomes].astype(np.int64) - length, 0)
    if within is not None:
        room = np.minimum(room, within)
    added = _rows(genomes, random.integers(0, room + 1))
    if rows["reverse"].any():
        added["reverse"] = random.integers(0, 2, count, dtype=np.bool_)
    return added


def blocks(
    codes: np.ndarray,
    offsets: np.ndarray,
    letters: np.ndarray,
    rows: np.ndarray,
    length: int,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[np.ndarray]:
    """Yield the codes of `rows`, uint8 of shape (some rows, length), in order, padded with 0.

    `codes`, uint8 of shape (letters,), holds all genomes one after the other, and may be mapped
    from a file. `offsets` and `letters` tell where each begins in it, and how many letters it has.
    """
    size = max(1, block_bytes // length)
    for first in range(0, len(rows), size):
        part = rows[first : first + size]
        block = np.zeros((len(part), length), np.uint8)
        for target, (genome, begin, reverse) in zip(block, part.tolist(), strict=True):
            start = offsets[genome] + begin
            taken = codes[start : min(start + length, offsets[genome] + letters[genome])]
            target[: len(taken)] = reverse_complement(taken) if reverse else taken
        yield block


def _rows(genomes: np.ndarray, begins: np.ndarray) -> np.ndarray:
    rows = np.zeros(len(genomes), ROW)
    rows["genome"], rows["begin"] = genomes, begins
    return rows
