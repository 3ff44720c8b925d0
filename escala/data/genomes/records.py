"""Encoding of FASTA files: parse, check, drop duplicates, count per class."""

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.files import atomic
from escala.data.nucleotides import encode, nucleotides, records
from escala.data.splits import open_array

RECORD_COLUMNS = ["class", "label", "accession", "length", "genome", "offset", "letters"]


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
    rows, home, offset = [], {}, 0
    codes_path = output / "codes.npy"
    with atomic(codes_path) as temporary, open_array(temporary, (), np.uint8) as writer:
        for label, name in enumerate(classes):
            path, seen = folder / f"{name}.fasta", set()
            shown = tqdm(nucleotides(records(path), path), desc=name, unit=" records", disable=None)
            for accession, sequence in shown:
                genome = hashlib.sha256(sequence.upper()).digest()
                if home.setdefault(genome, name) != name:
                    reason = f"the same genome is in {home[genome]}"
                    raise InputError(path, accession, reason, "keep it in one class only")
                codes = encode(sequence)
                encoded = hashlib.sha256(codes[:length].ljust(length, b"\0")).digest()
                identity = {"genome": genome, "encoded": encoded}.get(deduplicate)
                keep = identity is None or identity not in seen
                seen.add(identity)
                kept = np.frombuffer(codes[:letters_kept] if keep else b"", np.uint8)
                writer.append(kept)
                row = (name, label, accession, len(codes), genome.hex(), offset, len(kept))
                rows.append((*row, encoded, codes.count(0), keep))
                offset += len(kept)
    table = pd.DataFrame(rows, columns=[*RECORD_COLUMNS, "encoded", "ambiguous", "kept"])
    groups = table.groupby(["class", "label"], sort=False)
    count, lengths = groups.size(), groups["length"]
    summary = {
        "records": count,
        "duplicates_genome": count - groups["genome"].nunique(),
        "duplicates_encoded": count - groups["encoded"].nunique(),
        "kept": groups["kept"].sum(),
        "length_min": lengths.min(),
        "length_median": lengths.median(),
        "length_max": lengths.max(),
        "ambiguous_fraction": groups["ambiguous"].sum() / lengths.sum(),
    }
    report = pd.DataFrame(summary).reset_index()
    with atomic(output / "records.tsv") as temporary:
        table.loc[table["kept"], RECORD_COLUMNS].to_csv(temporary, sep="\t", index=False)
    with atomic(output / "classes.csv") as temporary:
        report.to_csv(temporary, index=False)
    return report


def read_records(path: Path) -> pd.DataFrame:
    """Read `records.tsv`; names of classes and records such as NA or 1 stay text."""
    as_written = dict.fromkeys(("class", "accession", "genome"), str)
    return pd.read_csv(path, sep="\t", dtype=as_written, keep_default_na=False)
