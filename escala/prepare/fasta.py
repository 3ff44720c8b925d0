"""FASTA to codes: parsed, checked, freed of duplicates, and counted per class."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from Bio.SeqIO.FastaIO import SimpleFastaParser
from numpy.lib.format import open_memmap
from tqdm import tqdm

from escala.errors import InputError
from escala.files import atomic
from escala.prepare.encode import ambiguous, encode, foreign_letters, letters

RECORD_COLUMNS = ["class", "label", "accession", "length", "genome"]


def records(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield accession and letters (uint8 character codes) of each record of a FASTA file.

    Raises
    ------
    InputError : the file is missing or holds no record, a record has no sequence, or one holds
        letters that are not nucleotides.
    """
    if not path.is_file():
        raise InputError(path, path.name, "no such file", "give one FASTA file per class")
    found = False
    with open(path, encoding="utf-8", errors="replace") as handle:
        for header, sequence in SimpleFastaParser(handle):
            found = True
            accession = (header.split() or ["(no name)"])[0]
            if not sequence:
                raise InputError(
                    path, accession, "the record has no sequence", "remove it or fetch it again"
                )
            codes = letters(sequence)
            foreign = foreign_letters(codes)
            if foreign:
                raise InputError(
                    path,
                    accession,
                    f"holds letters that are not nucleotides ({foreign}), as a protein's",
                    "give nucleotide sequences in IUPAC letters",
                )
            yield accession, codes
    if not found:
        raise InputError(path, path.name, "holds no FASTA record", "give at least one sequence")


def encode_classes(
    folder: Path,
    classes: list[str],
    length: int,
    deduplicate: str,
    output: Path,
    margin: int = 0,
) -> pd.DataFrame:
    """Encode one FASTA file per class and drop exact duplicates within each class.

    Parameters
    ----------
    folder : holds `CLASS.fasta` for each of `classes`; a class's label is its position.
    length : letters kept of each genome.
    deduplicate : `none`, `genome` (compare whole sequences, upper case) or `encoded`.
    margin : letters to keep beyond the length, for windows that begin later.
    output : receives `codes.npy` (uint8, kept records × (length + margin)), `records.tsv` and
        `classes.csv`.

    Returns
    -------
    One row per class: records, duplicates of both kinds, kept, lengths, ambiguous fraction.

    Raises
    ------
    InputError : as `records`, or the same genome stands in two classes.
    """
    kept, rows, summaries, home = [], [], [], {}
    for label, name in enumerate(classes):
        path = folder / f"{name}.fasta"
        genomes, encodings, lengths, unclear = set(), set(), [], 0
        same_genome = same_codes = 0
        for accession, sequence in tqdm(records(path), desc=name, unit=" records", disable=None):
            codes = encode(sequence, length + margin)
            genome = hashlib.sha256(sequence.tobytes().upper()).hexdigest()
            if home.setdefault(genome, name) != name:
                raise InputError(
                    path,
                    accession,
                    f"the same genome stands in {home[genome]}",
                    "keep it in one class only",
                )
            encoded = codes[:length].tobytes()
            lengths.append(len(sequence))
            unclear += ambiguous(sequence)
            duplicate = {
                "none": False,
                "genome": genome in genomes,
                "encoded": encoded in encodings,
            }[deduplicate]
            same_genome += genome in genomes
            same_codes += encoded in encodings
            genomes.add(genome)
            encodings.add(encoded)
            if not duplicate:
                kept.append(codes)
                rows.append((name, label, accession, len(sequence), genome))
        summaries.append(
            {
                "class": name,
                "label": label,
                "records": len(lengths),
                "duplicates_genome": same_genome,
                "duplicates_encoded": same_codes,
                "kept": sum(row[1] == label for row in rows),
                "length_min": min(lengths),
                "length_median": float(np.median(lengths)),
                "length_max": max(lengths),
                "ambiguous_fraction": unclear / sum(lengths),
            }
        )
    report = pd.DataFrame(summaries)
    with atomic(output / "codes.npy") as temporary:
        array = open_memmap(temporary, "w+", np.uint8, (len(kept), length + margin))
        for index, codes in enumerate(kept):
            array[index] = codes
        array.flush()
    with atomic(output / "records.tsv") as temporary:
        pd.DataFrame(rows, columns=RECORD_COLUMNS).to_csv(temporary, sep="\t", index=False)
    with atomic(output / "classes.csv") as temporary:
        report.to_csv(temporary, index=False)
    return report
