"""Measure seconds and peak memory from FASTA to arrays, at the scale of the enlarged problem.

Simulated genomes, 13 300 COVID, 10 200 DENGUE, 600 EBOLA, 700 MERS and 800 SARS times --scale, are
written once and kept in --folder. Every repeat encodes them, splits them 70/30 and enlarges each
class to --rows with SMOTEN, each stage in a process of its own, whose peak memory is the kernel's.
Parsing and encoding are also timed alone, against Biopython's low-level parser on the same file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from Bio.SeqIO.FastaIO import SimpleFastaParser

from escala.data.encode import encode
from escala.data.genomes.acquire import simulate
from escala.data.genomes.arrays import prepare
from escala.data.genomes.prepare.fasta import encode_classes, records

RECORDS = {"COVID": 13300, "DENGUE": 10200, "EBOLA": 600, "MERS": 700, "SARS": 800}
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
    sequences = _genomes(arguments.folder, arguments.scale)
    size = sum(path.stat().st_size for path in sequences.glob("*.fasta"))
    print(f"{size / 1e6:.0f} MB of FASTA, rows of {arguments.length} letters")
    found = [_once(sequences, arguments.length, arguments.rows) for _ in range(arguments.repeats)]
    for stage in ("encode", "arrays"):
        _say(stage, [one[stage] for one in found])
    both = [one["encode"]["seconds"] + one["arrays"]["seconds"] for one in found]
    print(f"FASTA to arrays: {_spread(both)} s")
    _parsing(sequences / "DENGUE.fasta", arguments.repeats)


def _genomes(folder: Path, scale: float) -> Path:
    target = folder / f"enlarged-{scale:g}"
    if not target.exists():
        source = {
            "seed": 1,
            "difficulty": 0.5,
            "records": {name: round(scale * count) for name, count in RECORDS.items()},
        }
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder))
        simulate.fetch(source, CLASSES, unfinished)
        unfinished.rename(target)
    return target


def _once(sequences: Path, length: int, rows: int) -> dict[str, dict[str, float]]:
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
            "encode": _apart(
                lambda: encode_classes(sequences, CLASSES, length, "genome", output, length)
            ),
            "arrays": _apart(lambda: prepare("enlarged", preparation, 4, inputs, output / "s")),
        }
    finally:
        shutil.rmtree(output)


def _apart(work: Callable[[], object]) -> dict[str, float]:
    """Return the seconds and the peak memory, in bytes, of work done in a process of its own."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def measured() -> None:
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        there.send(json.dumps({"seconds": seconds, "peak": peak}))

    process = context.Process(target=measured)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"a stage ended with exit code {process.exitcode}")
    return json.loads(here.recv())


def _parsing(path: Path, repeats: int) -> None:
    """Time parsing and encoding against Biopython's parser alone, in turns."""
    letters = sum(len(sequence) for _, sequence in records(path))
    alone, whole, encoding = [], [], []
    for _ in range(repeats):
        with open(path, encoding="utf-8") as handle:
            alone.append(_seconds(_consume, SimpleFastaParser(handle)))
        whole.append(_seconds(_consume, records(path)))
        genomes = [sequence for _, sequence in records(path)]
        encoding.append(_seconds(list, map(encode, genomes)))
    ratios = [one / other for one, other in zip(whole, alone, strict=True)]
    print(f"parsing and checking: {_spread(ratios)} times Biopython's parser alone")
    print(f"encoding: {_spread([letters / 1e6 / one for one in encoding])} MB/s")


def _consume(items: Iterable[object]) -> None:
    for _ in items:
        pass


def _seconds(work: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def _say(stage: str, found: list[dict[str, float]]) -> None:
    seconds = _spread([one["seconds"] for one in found])
    peak = max(one["peak"] for one in found)
    print(f"{stage}: {seconds} s, {peak / 1e9:.2f} GB at its peak")


def _spread(values: list[float]) -> str:
    middle = statistics.median(values)
    return f"{middle:.3g} ({min(values):.3g} to {max(values):.3g}, {len(values)} times)"


if __name__ == "__main__":
    main()
