"""Measure how well a run classifies fragments of unseen genomes, and flags unrelated letters.

Draws fragments of the test genomes of the run's split, at random positions, on either strand and
in either case, and classifies them as the rule `predict` does. Then fragments with their letters
shuffled, random letters of the same composition, and fragments of simulated genomes whose roots
are unrelated to anything, none of which should pass as familiar.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from sklearn.metrics import classification_report

from escala.core.files import read_json
from escala.data import KINDS
from escala.data.encode import encode, reverse_complement
from escala.data.fasta import records, write_record
from escala.data.genomes.acquire import simulate
from escala.data.genomes.arrays import Genomes
from escala.data.genomes.familiarity import learn
from escala.predict.classify import predict

LETTERS = np.frombuffer(b"NACGT", np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True, help="folder of a run that ended ok")
    parser.add_argument("--split", type=Path, required=True, help="folder of the run's split")
    parser.add_argument("--letters", type=int, default=1000, help="of a fragment (1000)")
    parser.add_argument("--per-class", type=int, default=300, help="fragments of each class (300)")
    parser.add_argument("--false-alarms", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random = np.random.default_rng(arguments.seed)
    classes = read_json(arguments.split / "dataset.json")["classes"]
    genomes = Genomes.load(arguments.split.parent)
    held_out = np.unique(np.load(arguments.split / "test_genomes.npy", allow_pickle=False))
    real = _fragments(genomes, held_out, arguments.letters, arguments.per_class, random)
    count = len(real)
    sets = {
        "real": [codes for _, codes in real],
        "shuffled": [random.permutation(codes) for _, codes in real],
        "random": [
            random.choice(5, arguments.letters, p=np.bincount(codes, minlength=5) / len(codes))
            for _, codes in real
        ],
        "unrelated": _unrelated(arguments.letters, count, random),
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        learn(arguments.split, folder / "familiarity.npz")
        tables = {}
        for name, fragments in sets.items():
            _write(folder / f"{name}.fasta", fragments, random)
            tables[name] = predict(
                KINDS["genomes"],
                folder / f"{name}.fasta",
                arguments.run,
                folder / "familiarity.npz",
                arguments.false_alarms,
                folder / f"{name}.tsv",
            )
    truth = [classes[label] for label, _ in real]
    print(classification_report(truth, tables["real"]["predicted"], digits=3, zero_division=0))
    for name, table in tables.items():
        flagged = table["unlike_anything_seen"].mean()
        print(f"{name}: {100 * flagged:.1f} % of {len(table)} flagged as unlike anything seen")
    threshold = tables["real"]["threshold"].iloc[0]
    rate = tables["real"]["false_alarm_rate"].iloc[0]
    print(f"threshold {threshold:.4f}, false alarms {100 * rate:.1f} % of the held-out rows")


def _fragments(
    genomes: Genomes, held_out: np.ndarray, letters: int, per_class: int, random
) -> list[tuple[int, np.ndarray]]:
    """Return label and codes of fragments of held-out genomes, on either strand."""
    offsets = genomes.records["offset"].to_numpy()
    found = []
    for label in np.unique(genomes.labels[held_out]):
        own = held_out[genomes.labels[held_out] == label]
        for genome in random.choice(own, per_class):
            begin = offsets[genome] + random.integers(0, genomes.letters[genome] - letters + 1)
            codes = genomes.codes[begin : begin + letters]
            found.append((label, reverse_complement(codes) if random.integers(2) else codes))
    return found


def _unrelated(letters: int, count: int, random) -> list[np.ndarray]:
    """Return fragments of simulated genomes of difficulty 0, whose roots share nothing."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        source = {"seed": 99, "difficulty": 0, "records": {"EBOLA": 20, "MERS": 20}}
        simulate.fetch(source, ["EBOLA", "MERS"], folder)
        texts = [
            sequence for path in sorted(folder.glob("*.fasta")) for _, sequence in records(path)
        ]
    pieces = []
    for index in random.integers(0, len(texts), count):
        begin = random.integers(0, len(texts[index]) - letters + 1)
        piece = encode(texts[index][begin : begin + letters].encode())
        pieces.append(np.frombuffer(piece, np.uint8))
    return pieces


def _write(path: Path, fragments: Iterable[np.ndarray], random) -> None:
    with open(path, "w", encoding="ascii") as handle:
        for number, codes in enumerate(fragments):
            text = LETTERS[codes].tobytes().decode()
            write_record(handle, f"fragment{number}", text.lower() if random.integers(2) else text)


if __name__ == "__main__":
    main()
