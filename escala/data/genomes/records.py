"""Encoding of FASTA files: parse, check, drop duplicates, count per class."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.files import atomic
from escala.data.nucleotides import encode, nucleotides, records
from escala.data.splits import open_array

RECORD_COLUMNS = ["class", "label", "accession", "length", "genome", "offset", "letters"]


@dataclass
class _Counts:
    """Counts of the records of a class; duplicates are found by digests of 32 bytes a record."""

    lengths: list[int] = field(default_factory=list)
    ambiguous: int = 0
    kept: int = 0
    genomes: set[bytes] = field(default_factory=set)
    encodings: set[bytes] = field(default_factory=set)

    def add(self, genome: bytes, codes: bytes, length: int, deduplicate: str) -> bool:
        """Count a record, and return whether it is kept."""
        encoded = hashlib.sha256(codes[:length].ljust(length, b"\0")).digest()
        seen = {"genome": genome in self.genomes, "encoded": encoded in self.encodings}
        keep = not seen.get(deduplicate, False)
        self.lengths.append(len(codes))
        self.ambiguous += codes.count(0)
        self.kept += keep
        self.genomes.add(genome)
        self.encodings.add(encoded)
        return keep

    def row(self, name: str, label: int) -> dict:
        records = len(self.lengths)
        return {
            "class": name,
            "label": label,
            "records": records,
            "duplicates_genome": records - len(self.genomes),
            "duplicates_encoded": records - len(self.encodings),
            "kept": self.kept,
            "length_min": min(self.lengths),
            "length_median": float(np.median(self.lengths)),
            "length_max": max(self.lengths),
            "ambiguous_fraction": self.ambiguous / sum(self.lengths),
        }


def encode_classes(
    folder: Path,
    classes: list[str],
    length: int,
    deduplicate: str,
    output: Path,
    letters_kept: int | None = None,
) -> pd.DataFrame:
    """Encode one FASTA file per class and drop exact duplicates within each class.

    Memory holds one genome at a time, and for each record two digests and a row of the table. The
    same genome in two classes is refused.

    Parameters
    ----------
    folder : holds `CLASS.fasta` for each of `classes`; a class's label is its position.
    length : letters of a row; `encoded` compares only these letters.
    deduplicate : `none`, `genome` (compare whole sequences, upper case) or `encoded`.
    letters_kept : letters to keep from the start of each genome; None keeps all of them.
    output : receives `codes.npy` (uint8 of shape (letters,), the kept genomes concatenated),
        `records.tsv` (a row per genome, with its start `offset` and its number of `letters` in
        `codes.npy`) and `classes.csv`, which is returned: a row per class, with its records,
        duplicates of both kinds, kept, lengths, and ambiguous fraction.
    """
    rows, summaries, home, offset = [], [], {}, 0
    codes_path = output / "codes.npy"
    with atomic(codes_path) as temporary, open_array(temporary, (), np.uint8) as writer:
        for label, name in enumerate(classes):
            path, seen = folder / f"{name}.fasta", _Counts()
            shown = tqdm(nucleotides(records(path), path), desc=name, unit=" records", disable=None)
            for accession, sequence in shown:
                genome = hashlib.sha256(sequence.upper()).digest()
                if home.setdefault(genome, name) != name:
                    reason = f"the same genome is in {home[genome]}"
                    raise InputError(path, accession, reason, "keep it in one class only")
                codes = encode(sequence)
                if seen.add(genome, codes, length, deduplicate):
                    kept = np.frombuffer(codes[:letters_kept], np.uint8)
                    writer.append(kept)
                    digest, letters = genome.hex(), len(kept)
                    rows.append((name, label, accession, len(codes), digest, offset, letters))
                    offset += letters
            summaries.append(seen.row(name, label))
    report, table = pd.DataFrame(summaries), pd.DataFrame(rows, columns=RECORD_COLUMNS)
    with atomic(output / "records.tsv") as temporary:
        table.to_csv(temporary, sep="\t", index=False)
    with atomic(output / "classes.csv") as temporary:
        report.to_csv(temporary, index=False)
    return report


def read_records(path: Path) -> pd.DataFrame:
    """Read `records.tsv`; names of classes and records such as NA or 1 stay text."""
    as_written = dict.fromkeys(("class", "accession", "genome"), str)
    return pd.read_csv(path, sep="\t", dtype=as_written, keep_default_na=False)
