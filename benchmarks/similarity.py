"""Measure the cost of finding near-duplicates, and how well sketches agree with all 21-mers.

Agreement: of real genomes (--genomes, CLASS.fasta[.gz] each) every match of a class is compared by
all of its 21-mers, and by sketches of several scales.

Cost: simulated genomes, 13 300 COVID, 10 200 DENGUE, 600 EBOLA, 700 MERS and 800 SARS times
--scale, are written once for each --difficulty and kept in --folder. Sketches, clusters, and the
nearest of 70 % of the genomes to each of the others are made in a process of its own each, whose
seconds and largest resident set are printed.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from benchmarks.common import seconds, spread
from escala.data.encode import encode
from escala.data.genomes.acquire import files, simulate
from escala.data.genomes.prepare import similarity
from escala.data.genomes.prepare.fasta import encode_classes, read_records, records
from escala.data.genomes.prepare.kmers import kmers

RECORDS = {"COVID": 13300, "DENGUE": 10200, "EBOLA": 600, "MERS": 700, "SARS": 800}
CLASSES = list(RECORDS)
SCALES = [1000, 100, 20, 10]


def agreement(folder: Path, threshold: float) -> None:
    """Compare sketches of real genomes with all of their 21-mers."""
    with tempfile.TemporaryDirectory() as scratch:
        files.fetch({"type": "files", "folder": str(folder)}, CLASSES, Path(scratch))
        for name in CLASSES:
            genomes = [
                np.frombuffer(encode(letters), np.uint8)
                for _, letters in records(Path(scratch) / f"{name}.fasta")
            ]
            exact = _all_pairs([kmers(codes, similarity.K, strands=True) for codes in genomes])
            linked = connected_components(exact >= threshold, directed=False)[1]
            print(f"{name}: {len(genomes)} genomes, clusters of {_sizes(linked)}")
            matches = np.triu_indices(len(genomes), 1)
            for scale in SCALES:
                parts = [similarity.sketch(codes, scale) for codes in genomes]
                made = similarity.Sketches(np.concatenate(parts), np.cumsum([*map(len, parts)]))
                near = _all_pairs(parts)
                error = (near - exact)[matches]
                wrong = ((near >= threshold) != (exact >= threshold))[matches].mean()
                found = similarity.clusters(
                    made.matrix(), np.zeros(len(genomes), np.int64), threshold
                )
                print(
                    f"  1 in {scale}: error {np.sqrt((error**2).mean()):.4f} (root mean square), "
                    f"{wrong:.2%} of matches on the other side of {threshold:g}, "
                    f"clusters of {_sizes(found)}",
                    flush=True,
                )


def _all_pairs(kmers: list[np.ndarray]) -> np.ndarray:
    """Return the fraction of k-mers in common for all matches, from one sparse product."""
    distinct = [np.unique(own) for own in kmers]
    _, columns = np.unique(np.concatenate(distinct), return_inverse=True)
    sizes = np.array([*map(len, distinct)])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    held = sparse.csr_matrix((np.ones(len(columns), np.int32), columns, starts))
    return (held @ held.T).toarray() / np.maximum(np.minimum(sizes[:, None], sizes), 1)


def _sizes(numbers: np.ndarray) -> str:
    """Return how many genomes each cluster has, the largest first, single ones counted."""
    sizes = np.sort(np.unique(numbers, return_counts=True)[1])[::-1]
    single = int((sizes == 1).sum())
    return ", ".join([*map(str, sizes[sizes > 1]), *([f"{single} x 1"] if single else [])])


def simulated(folder: Path, scale: float, difficulty: float) -> Path:
    """Return the folder with the genomes and `records.tsv`, written if they are not there yet."""
    target = folder / f"similarity-{scale:g}-{difficulty:g}"
    if not target.exists():
        counts = {name: round(scale * count) for name, count in RECORDS.items()}
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder))
        simulate.fetch(
            {"seed": 1, "difficulty": difficulty, "records": counts}, CLASSES, unfinished
        )
        encode_classes(unfinished, CLASSES, 1000, "none", unfinished, 1000)
        unfinished.rename(target)
    return target


def cost(sequences: Path, threshold: float, repeats: int) -> None:
    """Measure the three stages on simulated genomes."""
    kept, sketches = read_records(sequences / "records.tsv"), sequences / "sketches.npz"
    print(f"{sequences.name}: {len(kept)} genomes, {kept['length'].sum() / 1e6:.0f} MB")
    stages = {
        "sketch": lambda: similarity.sketches(sequences, kept).save(sketches),
        "clusters": lambda: _clusters(sketches, kept, threshold),
        "nearest": lambda: _nearest(sketches, len(kept)),
    }
    for stage, work in stages.items():
        spent, peaks = zip(*(_apart(work) for _ in range(repeats)), strict=True)
        print(f"  {stage}: {spread(spent)} s, {max(peaks) / 1e6:.0f} MB at its peak", flush=True)


def _clusters(sketches: Path, kept: pd.DataFrame, threshold: float) -> None:
    matrix = similarity.Sketches.load(sketches).matrix()
    similarity.clusters(matrix, kept["label"].to_numpy(), threshold)


def _nearest(sketches: Path, count: int) -> None:
    order = np.random.default_rng(0).permutation(count)
    train, test = np.sort(order[: count * 7 // 10]), np.sort(order[count * 7 // 10 :])
    similarity.nearest(similarity.Sketches.load(sketches).matrix(), train, test)


def _apart(work: Callable[[], object]) -> tuple[float, int]:
    """Return the seconds and the peak memory, in bytes, of work done in a process of its own."""
    context = get_context("fork")
    here, there = context.Pipe()

    def measured() -> None:
        spent = seconds(work)
        there.send((spent, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))

    process = context.Process(target=measured)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"a stage ended with exit code {process.exitcode}")
    return here.recv()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--genomes", type=Path, default=os.environ.get("ESCALA_GENOMES"))
    parser.add_argument("--folder", type=Path, help="keeps the simulated genomes")
    parser.add_argument("--scale", type=float, default=1, help="times as many genomes (1)")
    parser.add_argument("--difficulty", type=float, nargs="+", default=[0.5, 0], help="(0.5 0)")
    parser.add_argument("--threshold", type=float, default=0.95, help="similarity (0.95)")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if not arguments.genomes and not arguments.folder:
        parser.error("give --genomes, --folder or both")
    if arguments.folder:
        for difficulty in arguments.difficulty:
            sequences = simulated(arguments.folder, arguments.scale, difficulty)
            cost(sequences, arguments.threshold, arguments.repeats)
    if arguments.genomes:
        agreement(arguments.genomes, arguments.threshold)


if __name__ == "__main__":
    main()
