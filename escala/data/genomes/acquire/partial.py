"""Verified records on disk, with which an interrupted download goes on."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
from functools import lru_cache
from pathlib import Path

from Bio.SeqIO.FastaIO import SimpleFastaParser

from escala.core.errors import InputError
from escala.core.files import atomic
from escala.data.fasta import write_record

#: Number of files whose content stays in memory while records are read in any order.
KEPT_IN_MEMORY = 4
# Name of a file, or of the temporary folder in which a file is written.
_NAME = re.compile(r"[0-9a-f]{64}\.fasta|\.[0-9a-f]{64}\.fasta\.[a-z0-9_]{8}")


class Partial:
    """A folder of verified records, in files that are named by the SHA-256 of their bytes.

    A file whose digest differs from its name is removed, and its records count as not received. The
    record of an accession with version never changes, so it may come from any earlier download.
    A folder with files of another origin is refused.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._files: dict[str, Path] = {}
        self._latest: dict[str, str] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in _own(folder):
            content = _verified(path)
            if content is None:
                _remove(path)
            else:
                self._note(content, path)
        self._content = lru_cache(KEPT_IN_MEMORY)(_verified)

    def __len__(self) -> int:
        return len(self._files)

    def find(self, accession: str) -> str | None:
        """Return the kept accession with version, the latest for one without version, or None."""
        return accession if accession in self._files else self._latest.get(accession)

    def any(self) -> str | None:
        """Return the accession of some record that is kept, if there is one."""
        return next(iter(self._files), None)

    def keep(self, records: dict[str, str]) -> None:
        """Write verified records, accession with version → sequence, as one file."""
        text = io.StringIO()
        for accession, sequence in records.items():
            write_record(text, accession, sequence)
        content = text.getvalue().encode()
        path = self.folder / f"{hashlib.sha256(content).hexdigest()}.fasta"
        with atomic(path) as temporary:
            temporary.write_bytes(content)
        self._note(records, path)

    def sequence(self, accession: str) -> str:
        """Return the kept sequence of an accession with version, verified again."""
        path = self._files[accession]
        content = self._content(path)
        if content is None:
            raise InputError(path, accession, "was damaged on disk", "check the disk and run again")
        return content[accession]

    def _note(self, records: dict[str, str], path: Path) -> None:
        for accession in records:
            self._files[accession] = path
            bare, _, version = accession.rpartition(".")
            latest = self._latest.get(bare, "").rpartition(".")[2]
            if version.isdigit() and int(version) >= int(latest or 0):
                self._latest[bare] = accession


def forget(folder: Path) -> None:
    """Remove the files of a `Partial` and their folder."""
    if folder.is_dir():
        for path in _own(folder):
            _remove(path)
        folder.rmdir()


def _own(folder: Path) -> list[Path]:
    """Return the files of a folder, and the remains of writers that were killed."""
    found = sorted(folder.iterdir())
    for path in found:
        if not _NAME.fullmatch(path.name):
            reason = "is not of a download, and this folder is removed when the download is "
            remedy = "name a separate folder for the download, or move the file"
            raise InputError(folder, path.name, f"{reason}complete", remedy)
    return found


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _verified(path: Path) -> dict[str, str] | None:
    """Return the records of a file, or None if the file is damaged or of another origin."""
    if not path.is_file():
        return None
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != path.stem:
        return None
    return dict(SimpleFastaParser(io.StringIO(content.decode())))
