"""Download the records of a list by accession, in batches, and compare answers with requests.

A record counts as received once it is complete. The last record of an answer may have been cut
without a sign. It is accepted when another record follows it in a later answer, or when a lock file
or a second answer gives it the same digest.
"""

from __future__ import annotations

import io
import re
from itertools import islice

from Bio import Entrez
from Bio.SeqIO.FastaIO import SimpleFastaParser

from escala.data.genomes.acquire import eutils
from escala.data.genomes.acquire.accessions import canonical, sequenceless
from escala.data.genomes.acquire.lock import digest
from escala.data.genomes.acquire.partial import Partial

#: Records of one request. With 200 or more, Bio.Entrez sends the accessions in the body.
BATCH = 200
#: Number of refused requests for one record after which it counts as absent.
ALONE = 4
#: Letters of nucleotides (IUPAC), with U for T.
NUCLEOTIDES = re.compile("[ACGTURYKMSWBDHVN]+", re.I)
ABSENT = "NCBI has no such record (any more)"
CHANGED = "the record has changed: its digest differs from the lock file"

#: By the requested accession: the received one, the sequence, and whether the answer ends with it.
Records = dict[str, tuple[str, str, bool]]


class Download:
    """The records of a list that are not yet received.

    `waiting` has the accessions to request, in this order, each with its number of refusals;
    `found` the name of the record of each accession that is kept, and `lacking` the reason why one
    cannot be had.
    """

    def __init__(
        self, client: eutils.Client, accessions: list[str], digests: dict[str, str], kept: Partial
    ):
        self.client, self.digests, self.kept = client, digests, kept
        self.found: dict[str, str] = {}
        self.lacking = {name: why for name in accessions if (why := sequenceless(name))}
        wanted = [name for name in accessions if name not in self.lacking]
        self.waiting = {name: 0 for name in wanted if not self._have(name)}
        self._size = BATCH
        self._doubtful: dict[str, str] = {}
        self._companion = kept.any()
        #: What an answer to a request for a single record held in its place.
        self._instead = ""

    def attempt(self) -> None:
        """Request the next records once, and keep the complete ones of the answer.

        Without a complete record a `Failure` is raised, and the next request is smaller.
        """
        asked = list(islice(self.waiting, self._size))
        # A single record is always the last of its answer, so request another one after it.
        alone = len(asked) == 1 and asked[0] in self._doubtful
        companion = [self._companion] if alone and self._companion else []
        cut, self._instead = None, ""
        try:
            received = self._ask(asked + companion)
        except eutils.TruncatedAnswer as failure:
            # The last record of a cut answer is incomplete.
            received, cut = failure.text.rpartition("\n>")[0], failure
            self.client.faults[str(cut)] += 1
        except eutils.NotFound as failure:
            return self._refused(asked, str(failure))
        whole, damaged = self._whole(asked, received)
        if whole:
            self._size = min(BATCH, 4 * self._size)
            for accession in asked:
                # Missing records go to the end, so that they do not delay the others.
                if accession in self.waiting and accession not in self._doubtful:
                    self.client.faults["a record missing"] += 1
                    self.waiting[accession] = self.waiting.pop(accession)
            return None
        if len(asked) == 1 and self._instead:
            return self._refused(asked, self._instead)
        if cut or damaged:
            self._size = max(1, len(asked) // 4)
            raise cut or eutils.RetryableFailure("no record arrived whole")
        return self._refused(asked, "NCBI answers without it")

    def _ask(self, asked: list[str]) -> str:
        text = self.client.ask(Entrez.efetch, id=asked, rettype="fasta", retmode="text")
        if not text.strip():
            raise eutils.NotFound("an empty answer")
        if not re.search("^>", text, re.M):
            raise eutils.reported(text)
        return text

    def _refused(self, asked: list[str], reason: str) -> None:
        """Narrow the requests down to the record that NCBI lacks, and give this record up."""
        if len(asked) > 1:
            self._size = max(1, len(asked) // 4)
            raise eutils.RetryableFailure(reason)
        [accession] = asked
        self.waiting[accession] += 1
        if self.waiting[accession] < ALONE:
            raise eutils.RetryableFailure(reason)
        del self.waiting[accession]
        self.lacking[accession] = self._instead or ABSENT

    def _whole(self, asked: list[str], text: str) -> tuple[bool, bool]:
        """Keep the complete records; return whether any is new, and whether any is damaged."""
        copies, damaged = self._usable(asked, text)
        certain: dict[str, str] = {}
        new = False
        for accession, (received, sequence, last) in copies.items():
            found, locked = digest(sequence), self.digests.get(accession)
            before = self._doubtful.get(accession)
            if found == locked or (locked is None and (not last or found == before)):
                certain[received] = sequence
                self.found[accession] = received
            elif found == before:
                self.lacking[accession] = CHANGED
            else:
                self._doubtful[accession] = found
                new, damaged = new or before is None, damaged or before is not None
                continue
            del self.waiting[accession]
            self._doubtful.pop(accession, None)
            new = True
        if certain:
            self.kept.keep(certain)
            self._companion = next(iter(certain))
        return new, damaged

    def _usable(self, asked: list[str], text: str) -> tuple[Records, bool]:
        """Return the usable records of an answer, and whether any was damaged."""
        usable: Records = {}
        faults = self.client.faults
        contradictory, damaged = set(), False
        records = list(SimpleFastaParser(io.StringIO(text)))
        by_form: dict[str, list[str]] = {}
        for name in asked:
            by_form.setdefault(name.upper(), []).append(name)
        for position, (header, sequence) in enumerate(records, start=1):
            received = canonical((header.split() or [""])[0])
            name = _meant(received, by_form)
            if not name and received == self._companion:
                continue
            if not name:
                faults["a record that was not asked for"] += 1
                self._instead = f"NCBI gives {received} in its place (list that one)"
            elif not NUCLEOTIDES.fullmatch(sequence):
                faults["a record that is not nucleotides"] += 1
                damaged = True
                if re.fullmatch(r"[A-Z*-]+", sequence, re.I):
                    self._instead = "its letters are not nucleotides (list a nucleotide record)"
            elif name in usable:
                faults["a record sent twice"] += 1
                if usable[name][:2] != (received, sequence.upper()):
                    contradictory.add(name)
            else:
                usable[name] = (received, sequence.upper(), position == len(records))
        for name in contradictory:
            del usable[name]
        return usable, damaged or bool(contradictory)

    def _have(self, accession: str) -> bool:
        found, locked = self.kept.find(accession), self.digests.get(accession)
        have = found is not None and locked in (None, digest(self.kept.sequence(found)))
        if have:
            self.found[accession] = found
        return have


def _meant(received: str, asked: dict[str, list[str]]) -> str | None:
    """Return the requested accession that a received one answers, or None.

    It is the same with or without version, or the only one that differs just in case. `asked` holds
    the requested accessions by their form in upper case.
    """
    for form in (received, received.rpartition(".")[0]):
        alike = asked.get(form.upper(), [])
        if form in alike or len(alike) == 1:
            return form if form in alike else alike[0]
    return None
