"""Pieces of genomes that become rows, and the enlargement of small classes.

Pieces are starts, random windows or tiles, on one strand or both. Classes are enlarged by windows
of their own genomes or by SMOTEN. The libraries of SMOTEN take a second to import, so they are
imported on demand.
"""

from collections.abc import Iterator

import numpy as np

from escala.core.errors import InputError
from escala.data.nucleotides import reverse_complement

#: The place of a row in the genomes. `begin` counts letters from the start of the genome. `reverse`
#: means the reverse complement of the window.
ROW = np.dtype([("genome", np.int32), ("begin", np.int32), ("reverse", np.bool_)])
BLOCK_BYTES = 64 * 2**20


def windows(
    genomes: np.ndarray, letters: np.ndarray, length: int, window: dict, seed: int
) -> np.ndarray:
    """Return the rows, an array of `ROW`, that a window setting cuts from genomes, in order.

    `method` is `start` (one row for each genome), `random` (`per_genome` rows, which begin
    anywhere, by the seed) or `tiles` (a row every `stride` letters, and a last row at the end of
    the genome). With `reverse_complement` each row is followed by its other strand. A genome
    shorter than a row gives one padded row; `random` repeats this row `per_genome` times.

    `genomes` are numbers of genomes. `letters` has the letters of every genome, by number. `length`
    is the length of a row.
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

    Sequenced genomes of one virus begin at different letters. So a model that weighs positions must
    see every genome shifted (docs/decisions/genomes.md). The genomes take turns, so their numbers
    of windows differ by at most one. Windows begin within the first `within` letters of a genome;
    None means anywhere. Strands are drawn if `rows` holds both strands.
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
    from a file. `offsets` has the start of each genome in `codes`, and `letters` its number of
    letters.
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
    """Return rows that are not reversed, an array of `ROW`."""
    rows = np.zeros(len(genomes), ROW)
    rows["genome"], rows["begin"] = genomes, begins
    return rows


def class_sizes(labels: np.ndarray, classes: list[str], oversample: dict) -> dict[int, int]:
    """Return the wanted number of rows of each class to enlarge, by label.

    `oversample["rows"]` has the wanted number of rows by class name. Other classes, and classes
    with enough rows, stay as they are. Without `rows` every class gets the rows of the largest
    class. SMOTEN needs more rows of a class than `neighbours`.
    """
    if oversample["method"] == "none":
        return {}
    counts = np.bincount(labels, minlength=len(classes))
    rows = oversample.get("rows", dict.fromkeys(classes, int(counts.max())))
    enlarged = {
        label: rows[name] for label, name in enumerate(classes) if rows.get(name, 0) > counts[label]
    }
    for label in enlarged:
        if oversample["method"] == "smoten" and counts[label] <= oversample["neighbours"]:
            reason = f"rows are too few for SMOTEN with {oversample['neighbours']} neighbours"
            remedy = "add records, lower oversample.neighbours, or set oversample.method: none"
            raise InputError(f"class {classes[label]}", int(counts[label]), reason, remedy)
    return enlarged


def more_rows(
    rows: np.ndarray,
    labels: np.ndarray,
    letters: np.ndarray,
    identities: np.ndarray,
    enlarged: dict[int, int],
    oversample: dict,
    length: int,
) -> np.ndarray:
    """Return the added rows that are pieces of genomes: windows, or copies of existing rows.

    With `features: sequence`, as in the source work, SMOTEN treats the whole genome as one nominal
    feature, and so makes only copies. With `features: positions` there are no such rows; see
    `synthetic`.

    `rows` is an array of `ROW`, and `labels` has the class of each row. `letters` has the number of
    letters of every genome, and `identities` a number that equal genomes have in common. `enlarged`
    is the result of `class_sizes`.
    """
    added = [rows[:0]]
    if oversample["method"] == "windows":
        for label, count in enlarged.items():
            of_class = rows[labels == label]
            missing = count - len(of_class)
            within, seed = oversample.get("within"), oversample["seed"] + label
            added.append(random_windows(of_class, letters, length, missing, within, seed))
    elif enlarged and (oversample["method"], oversample["features"]) == ("smoten", "sequence"):
        from imblearn.over_sampling import SMOTEN

        names = np.stack([identities[rows["genome"]], rows["begin"], rows["reverse"]], axis=1)
        _, first, identity = np.unique(names, axis=0, return_index=True, return_inverse=True)
        smoten = SMOTEN(
            sampling_strategy=enlarged,
            k_neighbors=oversample["neighbours"],
            random_state=oversample["seed"],
        )
        copies, _ = smoten.fit_resample(identity.reshape(-1, 1), labels)
        added.append(rows[first[copies[len(rows) :, 0].astype(np.int64)]])
    return np.concatenate(added)


def synthetic(
    codes: np.ndarray, labels: np.ndarray, enlarged: dict[int, int], oversample: dict
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the rows that SMOTEN makes with each position as a nominal feature, in blocks.

    A block is a label, and codes of rows of this class, uint8 of shape (some rows, length).
    """
    if enlarged and (oversample["method"], oversample["features"]) == ("smoten", "positions"):
        from escala.data.genomes.smoten import new_rows

        yield from new_rows(codes, labels, enlarged, oversample["neighbours"], oversample["seed"])
