"""Download the records of a list by accession, in batches, and compare answers with requests.

A record counts as received when it is complete. Nothing shows whether the last record of an answer
was cut. This record is accepted when another record follows it in a later answer, or when a lock
file or a second answer confirms its digest.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
from functools import lru_cache
from itertools import islice
from pathlib import Path

from Bio.SeqIO.FastaIO import SimpleFastaParser

from escala.core.errors import InputError
from escala.core.files import atomic
from escala.data.genomes.acquire import canonical, eutils, sequenceless
from escala.data.genomes.acquire.files import digest
from escala.data.nucleotides import write_record

#: Records of one request.
BATCH = 200
#: Number of refused requests for one record after which it counts as absent.
ALONE = 4
#: Letters of nucleotides (IUPAC), with U for T.
NUCLEOTIDES = re.compile("[ACGTURYKMSWBDHVN]+", re.I)
ABSENT = "NCBI has no such record (any more)"
CHANGED = "the record has changed: its digest differs from the lock file"
#: Number of files whose content stays in memory while single records are read.
KEPT_IN_MEMORY = 4
# Name of a file, or of the temporary folder in which a file is written.
_NAME = re.compile(r"[0-9a-f]{64}\.fasta|\.[0-9a-f]{64}\.fasta\.[a-z0-9_]{8}")

#: By requested accession: the received accession, the sequence, and whether the record is the last
#: of the answer.
Records = dict[str, tuple[str, str, bool]]


class Download:
    """The download of the records of a list: their states, and the next request.

    `waiting` has the accessions to request, in order, with the number of refusals of each.
    `received` has the accession with version of each kept record, by requested accession. `lacking`
    has the reason for each accession that cannot be downloaded.
    """

    def __init__(
        self, client: eutils.Client, accessions: list[str], digests: dict[str, str], kept: Partial
    ):
        self.client, self.digests, self.kept = client, digests, kept
        self.received: dict[str, str] = {}
        self.lacking = {name: why for name in accessions if (why := sequenceless(name))}
        self.waiting: dict[str, int] = {}
        for name in (name for name in accessions if name not in self.lacking):
            present, locked = kept.find(name), digests.get(name)
            if present and locked in (None, digest(kept.sequence(present))):
                self.received[name] = present
            else:
                self.waiting[name] = 0
        self._size = BATCH
        #: Digests of records that may have been cut.
        self._unconfirmed: dict[str, str] = {}
        #: A kept record. A request for a single record also asks for this one, so that it is the
        #: last.
        self._extra_record = next(iter(kept.files), None)
        #: The fault of an answer that held another content in place of a single requested record.
        self._wrong_answer = ""

    def attempt(self) -> None:
        """Request the next records once, and keep the complete ones of the answer.

        An answer without a complete record raises a `Failure`, and makes the next request smaller.
        """
        requested = list(islice(self.waiting, self._size))
        # A single record would be the last of the answer, so request another record after it.
        alone = len(requested) == 1 and requested[0] in self._unconfirmed
        companion = [self._extra_record] if alone and self._extra_record else []
        cut, self._wrong_answer = None, ""
        try:
            wanted = requested + companion
            received = self.client.ask(
                "efetch", id=",".join(wanted), rettype="fasta", retmode="text"
            )
            if not received.strip():
                raise eutils.NotFound("an empty answer")
            if not re.search("^>", received, re.M):
                raise eutils.failure_of(received)
        except eutils.TruncatedAnswer as failure:
            # The last record of a cut answer is incomplete.
            received, cut = failure.text.rpartition("\n>")[0], failure
            self.client.faults[str(cut)] += 1
        except eutils.NotFound as failure:
            return self._give_up(requested, str(failure))
        any_new, damaged = self._keep_complete(requested, received)
        if any_new:
            self._size = min(BATCH, 4 * self._size)
            for accession in requested:
                # Missing records go to the end, so that they do not delay the others.
                if accession in self.waiting and accession not in self._unconfirmed:
                    self.client.faults["a record missing"] += 1
                    self.waiting[accession] = self.waiting.pop(accession)
            return None
        if len(requested) == 1 and self._wrong_answer:
            return self._give_up(requested, self._wrong_answer)
        if cut or damaged:
            self._size = max(1, len(requested) // 4)
            raise cut or eutils.RetryableFailure("no record arrived whole")
        return self._give_up(requested, "NCBI answers without it")

    def _give_up(self, requested: list[str], reason: str) -> None:
        """Make requests smaller, down to the record that NCBI lacks, and give this record up."""
        if len(requested) > 1:
            self._size = max(1, len(requested) // 4)
            raise eutils.RetryableFailure(reason)
        [accession] = requested
        self.waiting[accession] += 1
        if self.waiting[accession] < ALONE:
            raise eutils.RetryableFailure(reason)
        del self.waiting[accession]
        self.lacking[accession] = self._wrong_answer or ABSENT

    def _keep_complete(self, requested: list[str], text: str) -> tuple[bool, bool]:
        """Keep the complete records; return whether a record is new, and whether one is damaged."""
        copies, damaged = self._select_usable(requested, text)
        certain: dict[str, str] = {}
        new = False
        for accession, (received, sequence, last) in copies.items():
            sha256, locked = digest(sequence), self.digests.get(accession)
            before = self._unconfirmed.get(accession)
            is_confirmed = not last or sha256 == before
            if sha256 == locked or (locked is None and is_confirmed):
                certain[received] = sequence
                self.received[accession] = received
            elif sha256 == before:
                self.lacking[accession] = CHANGED
            else:
                self._unconfirmed[accession] = sha256
                new, damaged = new or before is None, damaged or before is not None
                continue
            del self.waiting[accession]
            self._unconfirmed.pop(accession, None)
            new = True
        if certain:
            self.kept.keep(certain)
            self._extra_record = next(iter(certain))
        return new, damaged

    def _select_usable(self, requested: list[str], text: str) -> tuple[Records, bool]:
        """Return the usable records of an answer, and whether a record was damaged."""
        usable: Records = {}
        faults = self.client.faults
        contradictory, damaged = set(), False
        records = list(SimpleFastaParser(io.StringIO(text)))
        by_form: dict[str, list[str]] = {}
        for name in requested:
            by_form.setdefault(name.upper(), []).append(name)
        for position, (header, sequence) in enumerate(records, start=1):
            received = canonical((header.split() or [""])[0])
            name = match_request(received, by_form)
            if not name and received == self._extra_record:
                continue
            if not name:
                faults["a record that was not asked for"] += 1
                self._wrong_answer = f"NCBI gives {received} in its place (list that one)"
            elif not NUCLEOTIDES.fullmatch(sequence):
                faults["a record that is not nucleotides"] += 1
                damaged = True
                if re.fullmatch(r"[A-Z*-]+", sequence, re.I):
                    self._wrong_answer = (
                        "its letters are not nucleotides (list a nucleotide record)"
                    )
            elif name in usable:
                faults["a record sent twice"] += 1
                if usable[name][:2] != (received, sequence.upper()):
                    contradictory.add(name)
            else:
                usable[name] = (received, sequence.upper(), position == len(records))
        for name in contradictory:
            del usable[name]
        return usable, damaged or bool(contradictory)


def match_request(received: str, requests: dict[str, list[str]]) -> str | None:
    """Return the requested accession that a received one answers, or None.

    The two accessions are equal, with or without the version of the received one. Their case may
    differ if only one request matches. `requests` holds the requested accessions by their text in
    upper case.
    """
    for form in (received, received.rpartition(".")[0]):
        matches = requests.get(form.upper(), [])
        if form in matches or len(matches) == 1:
            return form if form in matches else matches[0]
    return None


class Partial:
    """A folder of verified records, in files whose names are the SHA-256 of their bytes.

    A file whose digest differs from its name is removed, and its records count as not received. The
    record of an accession with version never changes, so a record may come from any earlier
    download. A folder that holds other files is refused. `files` has the file of each accession.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.files: dict[str, Path] = {}
        self._latest: dict[str, str] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in list_files(folder):
            content = _read_verified(path)
            if content is None:
                _remove(path)
            else:
                self._note(content, path)
        self._content = lru_cache(KEPT_IN_MEMORY)(_read_verified)

    def find(self, accession: str) -> str | None:
        """Return the kept accession with version (for none in `accession`, the latest), or None."""
        return accession if accession in self.files else self._latest.get(accession)

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
        path = self.files[accession]
        content = self._content(path)
        if content is None:
            raise InputError(path, accession, "was damaged on disk", "check the disk and run again")
        return content[accession]

    def _note(self, records: dict[str, str], path: Path) -> None:
        for accession in records:
            self.files[accession] = path
            bare, _, version = accession.rpartition(".")
            latest = self._latest.get(bare, "").rpartition(".")[2]
            if version.isdigit() and int(version) >= int(latest or 0):
                self._latest[bare] = accession


def forget(folder: Path) -> None:
    """Remove the files of a `Partial` and their folder."""
    if folder.is_dir():
        for path in list_files(folder):
            _remove(path)
        folder.rmdir()


def list_files(folder: Path) -> list[Path]:
    """Return the files of a folder, with files that killed processes left incomplete."""
    paths = sorted(folder.iterdir())
    for path in paths:
        if not _NAME.fullmatch(path.name):
            reason = "is not of a download, and this folder is removed when the download is "
            remedy = "name a separate folder for the download, or move the file"
            raise InputError(folder, path.name, f"{reason}complete", remedy)
    return paths


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _read_verified(path: Path) -> dict[str, str] | None:
    """Return the records of a file, or None if it is damaged or was not written by `Partial`."""
    if not path.is_file():
        return None
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != path.stem:
        return None
    return dict(SimpleFastaParser(io.StringIO(content.decode())))
