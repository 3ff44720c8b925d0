"""Measure seconds and peak memory from FASTA to arrays, at the scale of the enlarged problem.

Simulated genomes, 13 300 COVID, 10 200 DENGUE, 600 EBOLA, 700 MERS and 800 SARS times --scale, are
written once and kept in --folder. Every repeat encodes them, splits them 70/30 and enlarges each
class to --rows with SMOTEN, each stage in a process of its own, whose peak memory is the kernel's.
Parsing and encoding are also timed alone, against Biopython's low-level parser on the same file.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections import deque
from pathlib import Path

from Bio.SeqIO.FastaIO import SimpleFastaParser

from benchmarks.common import RECORDS, apart, seconds, simulated, spread
from escala.data.encode import encode
from escala.data.genomes.arrays import prepare
from escala.data.genomes.prepare.fasta import encode_classes, records

CLASSES = list(RECORDS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="keeps the simulated genomes")
    parser.add_argument("--scale", type=float, default=1, help="times as many genomes (1)")
    parser.add_argument("--length", type=int, default=6000, help="letters of a row (6000)")
    parser.add_argument("--rows", type=int, default=13000, help="training rows a class (13000)")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    sequences = simulated(arguments.folder, "enlarged", arguments.scale, 0.5)
    size = sum(path.stat().st_size for path in sequences.glob("*.fasta"))
    print(f"{size / 1e6:.0f} MB of FASTA, rows of {arguments.length} letters")
    found = [_once(sequences, arguments.length, arguments.rows) for _ in range(arguments.repeats)]
    for stage in ("encode", "arrays"):
        spent, peaks = zip(*(one[stage] for one in found), strict=True)
        print(f"{stage}: {spread(spent)} s, {max(peaks) / 1e9:.2f} GB at its peak")
    both = [one["encode"][0] + one["arrays"][0] for one in found]
    print(f"FASTA to arrays: {spread(both)} s")
    _parsing(sequences / "DENGUE.fasta", arguments.repeats)


def _once(sequences: Path, length: int, rows: int) -> dict[str, tuple[float, int]]:
    """Return the seconds and the peak memory, in bytes, of each stage."""
    preparation = {
        "provenance": "simulated",
        "classes": CLASSES,
        "length": length,
        "window": {"method": "start", "reverse_complement": False},
        "deduplicate": "genome",
        "similarity": 0.95,
        "split": {"by": "random", "test_fraction": 0.3},
        "oversample": {
            "method": "smoten",
            "features": "positions",
            "order": "after-split",
            "neighbours": 5,
            "rows": dict.fromkeys(CLASSES, rows),
            "seed": 0,
        },
    }
    output = Path(tempfile.mkdtemp(dir=sequences.parent))
    inputs = {"codes": output / "codes.npy"}
    try:
        return {
            "encode": apart(
                lambda: encode_classes(sequences, CLASSES, length, "genome", output, length)
            ),
            "arrays": apart(lambda: prepare("enlarged", preparation, 4, inputs, output / "s")),
        }
    finally:
        shutil.rmtree(output)


def _parsing(path: Path, repeats: int) -> None:
    """Time parsing and encoding against Biopython's parser alone, in turns."""
    letters = sum(len(sequence) for _, sequence in records(path))
    alone, whole, encoding = [], [], []
    for _ in range(repeats):
        with open(path, encoding="utf-8") as handle:
            alone.append(seconds(deque, SimpleFastaParser(handle), 0))
        whole.append(seconds(deque, records(path), 0))
        genomes = [sequence for _, sequence in records(path)]
        encoding.append(seconds(list, map(encode, genomes)))
    ratios = [one / other for one, other in zip(whole, alone, strict=True)]
    print(f"parsing and checking: {spread(ratios)} times Biopython's parser alone")
    print(f"encoding: {spread([letters / 1e6 / one for one in encoding])} MB/s")


if __name__ == "__main__":
    main()
