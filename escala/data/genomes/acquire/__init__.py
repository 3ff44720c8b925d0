"""Acquisition of genomes: one FASTA file per class, and a lock file of checksums.

A query or accessions select the records of a class at NCBI. Taxids come from NCBI's taxonomy. The
help of NCBI's sequence databases (NBK49540) describes the fields of a query. The bounds on the
length, in letters, lie around the reference genomes. They exclude fragments with the title
"complete", and assemblies with long additions.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from escala.core.errors import InputError
from escala.core.files import atomic
from escala.data.genomes.acquire.files import accession_files, class_files, label_files, lock_file

#: The module of each type of source, imported on demand. `fetch` in this module gets the genomes.
SOURCES = {
    "files": "escala.data.genomes.acquire.files",
    "labelled": "escala.data.genomes.acquire.files",
    "ncbi": "escala.data.genomes.acquire.entrez",
    "simulated": "escala.data.genomes.acquire.simulate",
}


def inputs(source: dict, classes: list[str]) -> list[Path]:
    """Return the files that a source reads: genomes or lists of accessions, and a lock file."""
    genomes = class_files(source, classes) if "folder" in source else []
    genomes += label_files(source) if "labels" in source else []
    return [*genomes, *accession_files(source, classes), *filter(None, [lock_file(source)])]


def acquire(
    source: dict, classes: list[str], folder: Path, lock: Path, partial: Path | None = None
) -> None:
    """Fill `folder` with `{class}.fasta` for every class, and write `lock`; both or neither.

    If the `lock` of a source names an earlier lock file, the records are exactly the records of
    that file, in its order. The written lock file is a TSV of `files.Locked`. The folder `partial`
    keeps the records of an incomplete download. It stays after a failure, and is removed after
    success.
    """
    from escala.data.genomes.acquire.download import forget
    from escala.data.genomes.acquire.files import COLUMNS, lock_rows, read_lock, require_locked
    from escala.data.splits import write_tsv

    earlier = lock_file(source)
    locked = read_lock(earlier, classes) if earlier else None
    partial = partial or folder.with_name(".partial")
    options = {"partial": partial, "locked": locked} if source["type"] == "ncbi" else {}
    with atomic(folder) as temporary:
        temporary.mkdir()
        import_module(SOURCES[source["type"]]).fetch(source, classes, temporary, **options)
        rows = list(lock_rows(temporary, classes))
        if locked:
            require_locked(rows, locked, earlier)
        write_tsv(lock, [COLUMNS, *rows])
    if options:
        forget(partial)


REMEDY = "check the query and the connection, then run the same command again"
#: An accession as `canonical` returns it.
ACCESSION = re.compile(r"\w+(\.\d+)?", re.A)
#: A chain of a structure in PDB. The case of the chain's name distinguishes chains.
_CHAIN = re.compile(r"(\d[A-Za-z0-9]{3})[_|:.](\w{1,4})(\.\d+)?", re.A)
#: The word before an accession in the names of FASTA records.
_DATABASES = {"gi", "gb", "emb", "dbj", "ref", "tpg", "tpe", "tpd"}
_CONTIGS = "list its contigs, or take the FASTA file of its assembly by `source: files`"
_PROTEIN = "list the nucleotide record that codes for it"
#: For a pattern of accessions without version: why it has no sequence, and the remedy. The first
#: match counts.
_WITHOUT_SEQUENCE = (
    (r"(NZ_)?([A-Z]{4}\d\d0{6,}|[A-Z]{6}\d\d0{7,})",
     "is the master record of a WGS, TSA or TLS project, which has no sequence of its own",
     _CONTIGS),
    (r"EPI_ISL_\d+|ENS[A-Z]*\d{11}", "is of GISAID or Ensembl, and not of NCBI",
     "take its FASTA file by `source: files`"),
    (r"GC[AF]_\d+", "is an assembly", "list its sequences, or take its FASTA by `source: files`"),
    (r"\d+", "is a GI number, which NCBI no longer gives", "list the accession of this record"),
    (r"PRJ[A-Z]{2}\d+|SAM[A-Z]{1,2}\d+|[SED]R[APRSXZ]\d+",
     "is a project, a sample or a set of reads", "list sequences"),
    (r"[ANWXYZ]P_\d+|[A-Z]{3}(\d{5}|\d{7})", "is a protein", _PROTEIN),
    (r"[OPQ]\d[A-Z0-9]{3}\d|[A-NR-Z]\d([A-Z][A-Z0-9]{2}\d){1,2}", "is a protein of UniProt",
     _PROTEIN),
    (r"\d[A-Z0-9]{3}", "is a structure of several chains", "name the chain: 1ABC_A"),
)  # fmt: skip


def _complete(organisms: str, shortest: int, longest: int) -> str:
    """Return a query for complete genomes, without patented and synthetic sequences."""
    return (
        f'({organisms}) AND "complete genome"[Title] AND {shortest}:{longest}[SLEN] '
        "NOT gbdiv_pat[PROP] NOT gbdiv_syn[PROP]"
    )


def _any_of(*taxids: int) -> str:
    return " OR ".join(f"txid{taxid}[Organism:exp]" for taxid in taxids)


QUERIES = {
    # SARS-CoV-2; reference NC_045512, 29 903 letters.
    "COVID": _complete(_any_of(2697049), 29_000, 30_500),
    # Dengue virus 1 to 4; references NC_001477, NC_001474, NC_001475, NC_002640, 10 649 to 10 735.
    "DENGUE": _complete(_any_of(11053, 11060, 11069, 11070), 10_000, 11_500),
    # Zaire, Sudan, Reston, Tai Forest, Bundibugyo, Bombali; reference NC_002549, 18 959 letters.
    "EBOLA": _complete(_any_of(186538, 186540, 186539, 186541, 565995, 2010960), 18_000, 19_500),
    # MERS-CoV; reference NC_019843, 30 119 letters.
    "MERS": _complete(_any_of(1335626), 29_000, 31_000),
    # The species of SARS-CoV, without taxa below the species, such as SARS-CoV-2. Related viruses
    # of bats may be included. Reference NC_004718, 29 751 letters.
    "SARS": _complete("txid694009[Organism:noexp] NOT txid2697049[Organism:exp]", 29_000, 30_500),
}


@dataclass(frozen=True)
class Wanted:
    """The wanted records of a class.

    Attributes
    ----------
    where, value : the key in the config and its value, for messages.
    accessions : records to fetch; None if a search must list the records first.
    places : the place of each accession in a list, such as `line 3`.
    digests : known SHA-256 of sequences, by accession.
    limit : maximum number of records from a search.
    """

    where: str
    value: object
    accessions: list[str] | None = None
    places: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    limit: int | None = None

    def error(self, reason: str, remedy: str = REMEDY) -> InputError:
        return InputError(self.where, self.value, reason, remedy)


def canonical(text: str) -> str:
    """Return the canonical text of an accession, by which requests and answers are compared.

    Letters are in upper case, except in the name of a chain. `db|ACCESSION|…` becomes the
    accession. A chain in PDB (`pdb|1ABC|A`, `1ABC|A` or `1ABC:A`) becomes `1ABC_A`.
    """
    words = text.strip().strip("|").split("|")
    before = [word.lower() for word in words]
    if "pdb" in before:
        words = ["|".join(words[before.index("pdb") + 1 :])]
    elif known := [place for place, word in enumerate(before[:-1]) if word in _DATABASES]:
        words = [words[known[-1] + 1]]
    joined = "|".join(words)
    if chain := _CHAIN.fullmatch(joined):
        return f"{chain[1].upper()}_{chain[2]}"
    return joined.upper()


def sequenceless(accession: str) -> str | None:
    """Return why a canonical accession has no nucleotide sequence and the remedy, or None."""
    bare = re.sub(r"\.\d+$", "", accession)
    for form, reason, remedy in _WITHOUT_SEQUENCE:
        if re.fullmatch(form, bare, re.A):
            return f"{reason} ({remedy})"
    return None


def explain(lacking: Mapping[str, str], places: Mapping[str, str]) -> str:
    """Return a text of accessions that cannot be downloaded: by reason, with places in a list."""
    by_reason: dict[str, list[str]] = {}
    for accession in sorted(lacking):
        place = f" ({places[accession]})" if accession in places else ""
        by_reason.setdefault(lacking[accession], []).append(accession + place)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
