"""Acquisition of genomes: one FASTA file per class, and a lock file of checksums."""

from importlib import import_module
from pathlib import Path

from escala.core.files import atomic
from escala.data.genomes.acquire.files import accession_files, class_files, lock_file

#: The module of each type of source, imported on demand. Its `fetch` gets the genomes.
SOURCES = {
    "files": "escala.data.genomes.acquire.files",
    "ncbi": "escala.data.genomes.acquire.entrez",
    "simulated": "escala.data.genomes.acquire.simulate",
}


def inputs(source: dict, classes: list[str]) -> list[Path]:
    """Return the files that a source reads: genomes or lists of accessions, and a lock file."""
    genomes = class_files(source, classes) if "folder" in source else []
    return [*genomes, *accession_files(source, classes), *filter(None, [lock_file(source)])]


def acquire(
    source: dict, classes: list[str], folder: Path, lock: Path, partial: Path | None = None
) -> None:
    """Fill `folder` with `{class}.fasta` for every class, and write `lock`; both or neither.

    If the `lock` of a source names an earlier lock file, the records are exactly those of that
    file, in its order. The lock that is written is a TSV of `files.Locked`. The folder `partial`
    keeps the records of an incomplete download. It stays after a failure, and goes after success.
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
