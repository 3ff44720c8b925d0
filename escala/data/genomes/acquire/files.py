"""The files that a source of genomes names, and the lock file of all records with digests.

The workflow asks for the files' paths at every start, so heavy libraries are imported on demand.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from escala.core.errors import InputError
from escala.core.text import PACKED_ENDINGS, read_table
from escala.data.paths import expand_path, is_hidden

if TYPE_CHECKING:
    import pandas as pd

#: Endings of FASTA files with nucleotides, in small or capital letters; a packed file has a second
#: ending.
ENDINGS = (".fasta", ".fas", ".fa", ".fna", ".ffn", ".fsa")
_FILE = re.compile(
    f"(.+)(?:{'|'.join(map(re.escape, ENDINGS))})(?:{'|'.join(map(re.escape, PACKED_ENDINGS))})?",
    re.IGNORECASE,
)
#: An accession of NCBI with its version.
_VERSIONED = re.compile(r"([A-Z]{1,6}_?[A-Z]{0,6}\d{5,})\.\d+")
#: The columns of a lock file.
COLUMNS = ["class", "accession", "length", "sha256"]
#: Maximum number of accessions in a message.
NAMED = 10


def files_by_class(folder: Path) -> dict[str, list[Path]]:
    """Return the FASTA files of a folder by the names of their classes, in alphabetical order."""
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _FILE.fullmatch(path.name)
        if match and not is_hidden(path) and path.is_file():
            files.setdefault(match[1], []).append(path)
    return files


def class_files(source: dict, classes: list[str]) -> list[Path]:
    """Return the only file of each class in `source["folder"]`; refuse a class without a file."""
    where, folder = "source.folder", Path(expand_path(source["folder"], "source.folder"))
    if not folder.is_dir():
        raise InputError(where, str(folder), "no such folder", "name an existing folder")
    files = files_by_class(folder)
    for name in classes:
        names = [path.name for path in files.get(name, [])]
        if not names:
            reason = f"holds no file for the class {name}"
            remedy = f"add {name}.fasta (or {', '.join(ENDINGS[1:])}; plain, or with "
            remedy += f"{', '.join(PACKED_ENDINGS)}), or remove the class"
            raise InputError(where, str(folder), reason, remedy)
        if len(names) > 1:
            reason = f"several files for the class {name}"
            raise InputError(where, names, reason, "keep one file")
    return [files[name][0] for name in classes]


def is_fasta(path: Path) -> bool:
    """Return whether the name of a file is that of a FASTA file, plain or packed."""
    return bool(_FILE.fullmatch(path.name))


def label_files(source: dict) -> tuple[Path, Path]:
    """Return the FASTA file of a source with a table of labels, and the table."""
    fasta, table = (expand_path(source[key], f"source.{key}") for key in ("file", "labels"))
    return Path(fasta), Path(table)


def match_records(fasta: Path, table: Path) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the table of labels of a FASTA file, and for each header the identifier of its row.

    The table is CSV or TSV, plain or packed, and its first line names the columns. The column of
    identifiers is the one of which most values are in headers: as the whole header, as its first
    word, or as a part between bars. If no value is equal, versions of accessions are ignored.

    The table returned has text in all columns, and the identifiers as its index. A header without a
    row has an empty identifier.

    Raises
    ------
    InputError : a file cannot be read; no column identifies a record; or several rows have the
        identifier of one record.
    """
    from escala.data.nucleotides import records

    rows, best, column = read_table(table), Counter(), None
    headers = [header for header, _ in records(fasta, str.strip)]
    for name in rows.columns:
        matched = _match(headers, {*rows[name]} - {""})
        counts = Counter(filter(None, matched.values()))
        if len(counts) > len(best):
            identifiers, best, column = matched, counts, name
    if column is None:
        reason = f"no column holds an identifier of {fasta.name}, such as {headers[0][:70]!r}"
        remedy = "add a column with the first word of each header, or a part of it between bars"
        raise InputError(table, ", ".join(rows.columns), reason, remedy)
    rows = rows.set_index(rows[column])
    in_rows = rows.index.value_counts()
    for path, each, counts in ((table, "row", in_rows), (fasta, "record", best)):
        if repeated := [name for name in best if counts[name] > 1]:
            reason = f"several {each}s have the identifier of one: {join_names(repeated)}"
            raise InputError(path, column, reason, f"keep one {each} of each")
    return rows, identifiers


def _match(headers: list[str], values: set[str]) -> dict[str, str]:
    """Return for each header the value that is in it, an empty text if none is."""
    index = {_VERSIONED.sub(r"\1", value): value for value in values}
    index |= {value: value for value in values}
    matched = {}
    for header in headers:
        parts = [header.strip(), *header.split()[:1], *map(str.strip, header.split("|"))]
        parts += [_VERSIONED.sub(r"\1", part) for part in parts]
        matched[header] = next((index[part] for part in parts if part in index), "")
    return matched


def name_classes(rows: pd.DataFrame, label: str) -> pd.Series:
    """Return the values of a column as names of classes, an empty text for a missing value.

    Letters, digits, `_` and `-` stay; other signs become `-`. Two values that would become one
    class are refused, and so is a column that is not in `rows`.
    """
    from escala.data.tabular.table import is_missing

    if label not in rows:
        remedy = f"name one of {', '.join(rows.columns)}"
        raise InputError("label", label, "is not a column of the labels", remedy)
    names = {
        value: re.sub(r"[^A-Za-z0-9_-]+", "-", value).strip("-_")[:64]
        for value in rows[label].unique()
        if not is_missing(value)
    }
    for name, count in Counter(names.values()).items():
        if not name:
            value = next(value for value in names if not names[value])
            reason, remedy = "has no letter or digit for the name of a class", "rename it"
            raise InputError("label", f"{label}: {value}", reason, remedy)
        if count > 1:
            values = [value for value in names if names[value] == name]
            reason, remedy = f"become the same class {name}", "rename them in the table"
            raise InputError("label", f"{label}: {', '.join(values)}", reason, remedy)
    return rows[label].map(names).fillna("")


def accession_files(source: dict, classes: list[str]) -> list[Path]:
    """Return the files that list accessions; a list in the settings has no file."""
    lists = source.get("accessions", {})
    return [
        Path(expand_path(lists[name], f"source.accessions.{name}"))
        for name in classes
        if isinstance(lists.get(name), str)
    ]


def lock_file(source: dict) -> Path | None:
    """Return the earlier lock file that a source names, or None."""
    return Path(expand_path(source["lock"], "source.lock")) if "lock" in source else None


def fetch(source: dict, classes: list[str], folder: Path) -> None:
    """Write the records of a folder or of a labelled file to `{class}.fasta`, unpacked and wrapped.

    Letters stay as they are, and so do headers, whose first word is the accession. In a labelled
    file, the identifier in the table is the accession, and is put before a header that begins
    otherwise. An accession may occur only once in a class, because class and accession identify a
    record. A labelled genome with several classes is left out.
    """
    from tqdm import tqdm

    from escala.core.console import say
    from escala.data.nucleotides import nucleotides, records, write_record

    if "labels" in source:
        labelled = _labelled_records(source, classes)
    else:
        files = zip(classes, class_files(source, classes), strict=True)
        labelled = ((name, path, *record) for name, path in files for record in records(path))
    gaps: Counter[Path] = Counter()
    with ExitStack() as opened:
        written = {
            name: opened.enter_context(open(folder / f"{name}.fasta", "w", encoding="utf-8"))
            for name in classes
        }
        for name, path, *record in tqdm(labelled, unit="genome", disable=None):
            # A wrong record is refused here, so that the message names the user's file.
            [(_, genome)] = nucleotides([record], path)
            gaps[path] += len(record[1]) - len(genome)
            write_record(written[name], *record)
    for path, count in gaps.items():
        if count:
            say(f"{path}: its {count} gaps, as of an alignment, are no letters and are left out")


def _labelled_records(source: dict, classes: list[str]) -> Iterator[tuple[str, Path, str, str]]:
    """Yield class, file, header and sequence of each labelled record of `classes`."""
    from escala.core.console import say
    from escala.data.nucleotides import records

    fasta, table = label_files(source)
    rows, identifiers = match_records(fasta, table)
    names = name_classes(rows.loc[[*filter(None, identifiers.values())]], source["label"])
    class_of = {
        header: names[row] for header, row in identifiers.items() if row and names[row] in classes
    }
    if missing := {*classes} - {*class_of.values()}:
        remedy = f"remove it from classes; the table has {join_names({*names} - {''})}"
        raise InputError("classes", join_names(missing), f"no record of {fasta} has it", remedy)
    digests = {
        header: digest(sequence)
        for header, sequence in records(fasta, str.strip)
        if header in class_of
    }
    classes_of: dict[str, set[str]] = {}
    for header, key in digests.items():
        classes_of.setdefault(key, set()).add(class_of[header])
    left_out = [header for header, key in digests.items() if len(classes_of[key]) > 1]
    if left_out:
        shown = join_names([identifiers[header] for header in left_out])
        say(f"{fasta}: left out, as each has a genome of several classes: {shown}")
    for header in left_out:
        del class_of[header]
    if emptied := {*classes} - {*class_of.values()}:
        reason = f"all its records in {fasta} have genomes that are in other classes, too"
        raise InputError("classes", join_names(emptied), reason, "correct the table")
    for header, sequence in records(fasta, str.strip):
        if header not in class_of:
            continue
        identifier = "_".join(identifiers[header].split())
        begins_so = header.split()[0] == identifier
        shown = header if begins_so else f"{identifier} {header}"
        yield class_of[header], fasta, shown, sequence


class Locked(NamedTuple):
    """A record: its class, accession, number of letters, and SHA-256 of the upper-case letters."""

    name: str
    accession: str
    length: int
    sha256: str


def digest(sequence: str) -> str:
    """Return the SHA-256 of the upper-case letters, in hexadecimal."""
    return hashlib.sha256(sequence.upper().encode()).hexdigest()


def lock_rows(folder: Path, classes: list[str]) -> Iterator[Locked]:
    """Yield a row for each record of `{class}.fasta` in `folder`, in the order of `classes`."""
    from escala.data.nucleotides import records

    for name in classes:
        for header, sequence in records(folder / f"{name}.fasta"):
            yield Locked(name, header.split()[0], len(sequence), digest(sequence))


def read_lock(path: Path, classes: list[str]) -> dict[str, list[Locked]]:
    """Return the rows of each class of a lock file, in the order of the file.

    A file that is no lock file, a repeated accession in a class, and a class without a row are
    refused.
    """
    table = read_table(path)
    if [*table.columns] != COLUMNS:
        remedy = f"start with {', '.join(COLUMNS)}"
        raise InputError(path, "line 1", "is not the head of a lock file", remedy)
    usable = table["accession"].ne("") & table["length"].str.fullmatch("[0-9]+")
    usable &= table["sha256"].str.fullmatch("[0-9a-f]{64}")
    if not usable.all():
        reason = "is not class, accession, length and SHA-256"
        remedy = "use the lock.tsv that Escala wrote, unchanged"
        raise InputError(path, f"line {usable.idxmin() + 2}", reason, remedy)
    twice = table["accession"][table.duplicated(["class", "accession"])]
    if len(twice):
        raise InputError(path, twice.iloc[0], "is twice in a class", "remove a line")
    rows: dict[str, list[Locked]] = {name: [] for name in classes}
    for name, accession, length, sha256 in table.itertuples(index=False):
        rows.setdefault(name, []).append(Locked(name, accession, int(length), sha256))
    for name in classes:
        if not rows[name]:
            raise InputError(path, name, "the class has no row", "lock the dataset again")
    return {name: rows[name] for name in classes}


def require_locked(made: list[Locked], locked: dict[str, list[Locked]], lock: Path) -> None:
    """Refuse records that differ from the records of a lock file, or come in another order."""
    remedy = (
        "restore the records, or make a new lock: run without source.lock and use the lock.tsv "
        "alongside the sequences"
    )
    for name, expected in locked.items():
        have = {row.accession: row for row in made if row.name == name}
        want = {row.accession: row for row in expected}
        common = have.keys() & want.keys()
        for reason, accessions in (
            ("missing", want.keys() - have.keys()),
            ("of another length or digest", {a for a in common if have[a] != want[a]}),
            ("not in the lock", have.keys() - want.keys()),
        ):
            if accessions:
                raise InputError(lock, name, f"{join_names(accessions)}: {reason}", remedy)
        for accession, wanted in zip_longest(have, want):
            if accession != wanted:
                raise InputError(lock, wanted, f"{accession} is in its place", remedy)


def join_names(accessions: Collection[str]) -> str:
    """Return accessions as text, the first `NAMED` of them."""
    names = sorted(accessions)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
