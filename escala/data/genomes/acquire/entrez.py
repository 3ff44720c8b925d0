"""Genomes from NCBI's nucleotide database: by query, by accession or by lock file.

The wanted records are listed before the first one is fetched. A query leaves its result on NCBI's
history server, from which the accessions are listed. Sequences are then fetched by accession in
batches, and every answer is compared with its request. A record counts as received once it is
complete. The last record of an answer may have been cut without a sign. It is accepted when another
record follows it in a later answer, or when a lock file or a second answer gives it the same
digest.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from itertools import islice
from pathlib import Path

from Bio import Entrez
from Bio.SeqIO.FastaIO import SimpleFastaParser
from tqdm import tqdm

from escala.core.errors import InputError
from escala.data.fasta import write_record
from escala.data.genomes.acquire import eutils
from escala.data.genomes.acquire.lock import digest, listed, read_lock
from escala.data.genomes.acquire.partial import Partial
from escala.data.genomes.acquire.paths import accession_files
from escala.data.genomes.acquire.queries import QUERIES
from escala.data.paths import expanded, expanded_path

#: Records of one request. With 200 or more, Bio.Entrez sends the accessions in the body.
BATCH = 200
#: Records of one listing. EFetch gives 10 000 at once (NBK25499) and refuses positions beyond 9998
#: with "out of acceptable range [9999,9998]" (Biopython, issue 4189). So a longer result is divided
#: into searches of at most this many records, each listed from position 0.
PAGE = 9999
#: Number of refused requests for one record after which it counts as absent.
ALONE = 4
#: Letters of nucleotides (IUPAC), with U for T.
NUCLEOTIDES = re.compile("[ACGTURYKMSWBDHVN]+", re.I)
ACCESSION = re.compile(r"\w+(\.\d+)?", re.A)
REMEDY = "check the query and the connection, then run the same command again"


def fetch(source: dict, classes: list[str], folder: Path, partial: Path | None = None) -> None:
    """Download the records of each class to `{class}.fasta`, in upper case.

    The records are sorted by accession, or are in the order of the lock file. Their headers are
    accessions with versions, because descriptions change. So the same list gives the same bytes.

    Parameters
    ----------
    source : `email` (or `$NAME` of an environment variable) and, for each class, where its records
        are listed: `lock` (path of a lock file), else `accessions` (class → list, or path of a file
        with one a line), else `queries` (class → Entrez query), else `queries.QUERIES`. For queries
        `max_records` (class → int).
    partial : folder for verified records. It survives a failure, an interrupt and a kill, and the
        next call requests only the other records. None keeps nothing.

    Raises
    ------
    InputError : no record matches, a record does not exist (any more) or has changed, NCBI refuses,
        or it gave no usable answer `eutils.MAX_TRIES` times in a row.
    """
    email = source["email"]
    if email.startswith("$"):
        email = expanded(email, "source.email")
    wanted = {name: _wanted(source, name, classes) for name in classes}
    client = eutils.Client(email)
    with ExitStack() as stack:
        stack.enter_context(client.ncbi_lock())
        if partial is None:
            partial = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder.parent)))
        kept = Partial(partial)
        for name in classes:
            accessions = _received(client, wanted[name], name, kept)
            with open(folder / f"{name}.fasta", "w", encoding="utf-8") as fasta:
                for accession in accessions:
                    write_record(fasta, accession, kept.sequence(accession))


@dataclass(frozen=True)
class _Wanted:
    """The wanted records of a class.

    Attributes
    ----------
    where, value : the key in the config and its value, for messages.
    accessions : records to fetch; None if a search must list them first.
    digests : SHA-256 of sequences, by accession, where they are known.
    limit : maximum number of records from a search.
    """

    where: str
    value: object
    accessions: list[str] | None = None
    digests: dict[str, str] = field(default_factory=dict)
    limit: int | None = None

    def error(self, reason: str, remedy: str = REMEDY) -> InputError:
        return InputError(self.where, self.value, reason, remedy)


def _wanted(source: dict, name: str, classes: list[str]) -> _Wanted:
    lists, queries = source.get("accessions", {}), QUERIES | source.get("queries", {})
    if "lock" in source:
        rows = read_lock(Path(expanded_path(source["lock"], "source.lock")), classes)[name]
        digests = {row.accession: row.sha256 for row in rows}
        return _Wanted("source.lock", source["lock"], list(digests), digests)
    if name in lists:
        where, value = f"source.accessions.{name}", lists[name]
        [path] = accession_files(source, [name]) or [None]
        return _Wanted(where, value, _named(value if path is None else _lines(path), path or where))
    if name in queries:
        limit = source.get("max_records", {}).get(name)
        return _Wanted(f"source.queries.{name}", queries[name], limit=limit)
    raise InputError(
        f"source.queries.{name}",
        None,
        "the class has neither a query nor accessions",
        f"add one; only {', '.join(QUERIES)} have a query by default",
    )


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise InputError("source.accessions", str(path), "no such file", "name an existing file")
    text = path.read_text(encoding="utf-8-sig")
    return [line.strip() for line in text.splitlines() if line.strip()]


def _named(accessions: list[str], where: object) -> list[str]:
    """Return accessions in sorted order; refuse malformed and repeated ones."""
    if not accessions:
        raise InputError(where, accessions, "no accession", "give at least one")
    for accession in accessions:
        if not ACCESSION.fullmatch(accession):
            raise InputError(where, accession, "is no accession", "write one per line: AB123456.1")
    twice = {accession for accession, count in Counter(accessions).items() if count > 1}
    if twice:
        raise InputError(where, listed(twice), "is listed twice", "remove one")
    return sorted(accessions)


def _received(client: eutils.Client, wanted: _Wanted, name: str, kept: Partial) -> list[str]:
    """Fetch the missing records of a class; return all its accessions in the order to write."""
    client.faults.clear()
    try:
        accessions = wanted.accessions or _searched(client, wanted)
        download = _Download(client, accessions, wanted.digests, kept)
        with _progress(name, len(accessions), len(accessions) - len(download.waiting)) as bar:
            while download.waiting:
                left = len(download.waiting)
                client.with_retries(download.attempt)
                bar.update(left - len(download.waiting))
    except eutils.Failure as failure:
        known = f"; {len(kept)} verified records are kept and will not be fetched again"
        raise wanted.error(f"NCBI gave no usable answer ({failure}){known}") from None
    finally:
        for fault, count in client.faults.most_common():
            print(f"{name}: tried again after: {fault} ({count} times)", file=sys.stderr)
    for lacking, reason in (
        (download.absent, "NCBI has no such record (any more)"),
        (download.changed, "the record has changed: its digest differs from the lock file"),
    ):
        if lacking:
            raise wanted.error(f"{listed(lacking)}: {reason}", "remove or replace these accessions")
    found = [kept.find(accession) for accession in accessions]
    if len(set(found)) < len(found):
        raise wanted.error("an accession is listed with and without version", "remove one")
    return found


def _progress(name: str, total: int, initial: int) -> tqdm:
    """Return a progress bar, updated steadily on a terminal and twice a minute in a log."""
    return tqdm(
        desc=name,
        total=total,
        initial=initial,
        unit=" records",
        mininterval=0.1 if sys.stderr.isatty() else 30,
        maxinterval=10 if sys.stderr.isatty() else 60,
    )


class _Download:
    """The records of a list that are not yet received.

    Attributes
    ----------
    waiting : accessions to request, in this order, each with its number of refusals.
    absent, changed : accessions that NCBI lacks, or whose digest differs from the locked one.
    """

    def __init__(
        self,
        client: eutils.Client,
        accessions: list[str],
        digests: dict[str, str],
        kept: Partial,
    ):
        self.client, self.digests, self.kept = client, digests, kept
        self.waiting = {accession: 0 for accession in accessions if not self._have(accession)}
        self.absent: set[str] = set()
        self.changed: set[str] = set()
        self._size = BATCH
        self._doubtful: dict[str, str] = {}
        self._companion = kept.any()

    def attempt(self) -> None:
        """Request the next records once, and keep the complete ones of the answer.

        Raises
        ------
        Failure : the answer held no complete record; the next request is smaller.
        """
        asked = list(islice(self.waiting, self._size))
        # A single record is always the last of its answer, so request another one after it.
        alone = len(asked) == 1 and asked[0] in self._doubtful
        companion = [self._companion] if alone and self._companion else []
        cut = None
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
        if cut or damaged:
            self._size = max(1, len(asked) // 4)
            raise cut or eutils.RetryableFailure("no record arrived whole")
        return self._refused(asked, "NCBI answers without it")

    def _ask(self, asked: list[str]) -> str:
        text = self.client.ask(Entrez.efetch, id=asked, rettype="fasta", retmode="text")
        if not text.strip():
            raise eutils.NotFound("an empty answer")
        if not re.search("^>", text, re.M):
            eutils.raise_reported_failure(text)
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
        self.absent.add(accession)

    def _whole(self, asked: list[str], text: str) -> tuple[bool, bool]:
        """Keep the complete records; return whether any is new, and whether any is damaged."""
        copies, damaged = self._sorted_out(asked, text)
        certain: dict[str, str] = {}
        new = False
        for accession, (received, sequence, last) in copies.items():
            found, locked = digest(sequence), self.digests.get(accession)
            again = self._doubtful.get(accession)
            if found == locked or (locked is None and (not last or found == again)):
                certain[received] = sequence
                self._done(accession)
            elif found == again:
                self.changed.add(accession)
                self._done(accession)
            else:
                self._doubtful[accession] = found
                new, damaged = new or again is None, damaged or again is not None
                continue
            new = True
        if certain:
            self.kept.keep(certain)
            self._companion = next(iter(certain))
        return new, damaged

    def _sorted_out(
        self, asked: list[str], text: str
    ) -> tuple[dict[str, tuple[str, str, bool]], bool]:
        """Return the usable records of an answer, and whether any was damaged.

        The usable records map the requested accession to the received accession, the sequence, and
        whether the record is the last one of the answer.
        """
        usable: dict[str, tuple[str, str, bool]] = {}
        faults = self.client.faults
        contradictory, damaged = set(), False
        records = list(SimpleFastaParser(io.StringIO(text)))
        by_name = dict(zip(asked, asked, strict=True))
        for position, (header, sequence) in enumerate(records, start=1):
            received = _accession(header)
            name = by_name.get(received) or by_name.get(received.rpartition(".")[0])
            if not name and received == self._companion:
                continue
            if not name:
                faults["a record that was not asked for"] += 1
            elif not NUCLEOTIDES.fullmatch(sequence):
                faults["a record that is not nucleotides"] += 1
                damaged = True
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
        return found is not None and locked in (None, digest(self.kept.sequence(found)))

    def _done(self, accession: str) -> None:
        del self.waiting[accession]
        self._doubtful.pop(accession, None)


def _accession(header: str) -> str:
    """Return the accession with version from `ACCESSION.VERSION …` or `db|ACCESSION.VERSION| …`."""
    return (header.split() or [""])[0].strip("|").rpartition("|")[2]


def _searched(client: eutils.Client, wanted: _Wanted) -> list[str]:
    """Return the accessions that match a query, sorted, at most `limit` of them."""
    found = list(dict.fromkeys(islice(_pieces(client, wanted), wanted.limit)))
    if not found:
        raise wanted.error("no record matches", "widen the query")
    return sorted(found)


@dataclass(frozen=True)
class _Span:
    """The part of a query's result where a field is from `low` to `high`, both included."""

    low: int
    high: int
    term: Callable[[int, int], str]

    def halves(self) -> list[_Span]:
        middle = (self.low + self.high) // 2
        return [
            _Span(self.low, middle, self.term),
            _Span(middle + 1, self.high, self.term),
        ]

    def __str__(self) -> str:
        return self.term(self.low, self.high)


def _days(low: int, high: int) -> str:
    first, last = (date.fromordinal(day).strftime("%Y/%m/%d") for day in (low, high))
    return f"{first}:{last}[PDAT]"


def _letters(low: int, high: int) -> str:
    return f"{low}:{high}[SLEN]"


#: Fields that divide a long result: first the day of publication, then the length in letters.
SPANS = (
    _Span(date(1970, 1, 1).toordinal(), date(2099, 12, 31).toordinal(), _days),
    _Span(1, 10**9, _letters),
)


def _pieces(
    client: eutils.Client,
    wanted: _Wanted,
    spans: tuple[_Span, ...] = SPANS,
    chosen: tuple[_Span, ...] = (),
) -> Iterator[str]:
    """Yield the accessions that match; if there are more than `PAGE`, older ones first."""
    query = " AND ".join([f"({wanted.value})", *map(str, chosen)]) if chosen else str(wanted.value)
    most = PAGE if wanted.limit is None else min(PAGE, wanted.limit)
    count, accessions = client.with_retries(
        lambda: _listing(client, query, most, wanted.limit is None or wanted.limit > PAGE)
    )
    if accessions is not None:
        yield from accessions
        return
    number = next((n for n, span in enumerate(spans) if span.low < span.high), None)
    if number is None:
        raise wanted.error(
            f"{count} records of one day and length match, and NCBI lists {PAGE} at once",
            "narrow the query, set max_records, or give accessions",
        )
    listed_so_far = 0
    for half in spans[number].halves():
        rest = (*spans[:number], half, *spans[number + 1 :])
        chosen = tuple(span for span in rest if span not in SPANS)
        for accession in _pieces(client, wanted, rest, chosen):
            listed_so_far += 1
            yield accession
    if listed_so_far < count:
        raise wanted.error(f"NCBI lists {listed_so_far} of {count} records that match")


def _listing(
    client: eutils.Client, query: str, most: int, all_of_them: bool
) -> tuple[int, list[str] | None]:
    """Search, and list the matching accessions; a retry repeats both.

    Returns
    -------
    How many records match, and the accessions of the first `most`; None if all are wanted and there
    are more.
    """
    try:
        text = client.ask(Entrez.esearch, term=query, usehistory="y", retmax=0, retmode="json")
    except eutils.NotFound as failure:
        raise eutils.PermanentFailure(str(failure)) from None
    result = eutils.parse_answer(text).get("esearchresult", {})
    if "ERROR" in result or not {"count"} <= result.keys():
        raise eutils.RetryableFailure(
            f"the server answers: {result.get('ERROR', 'no result of a search')}"
        )
    count = int(result["count"])
    _say_what_was_ignored(query, result)
    if count == 0:
        return 0, []
    if count > most and all_of_them:
        return count, None
    if not {"webenv", "querykey"} <= result.keys():
        raise eutils.RetryableFailure("the search has no place on the history server")
    expected = min(count, most)
    try:
        text = client.ask(
            Entrez.efetch,
            WebEnv=result["webenv"],
            query_key=result["querykey"],
            rettype="acc",
            retmode="text",
            retstart=0,
            retmax=expected,
        )
    except eutils.NotFound as failure:
        raise eutils.RetryableFailure(str(failure)) from None
    accessions = text.split()
    if not all(map(ACCESSION.fullmatch, accessions)):
        accessions = []
    if len(set(accessions)) != expected or len(accessions) != expected:
        if not accessions:
            raise eutils.RetryableFailure(f"the server answers: {eutils.excerpt(text)}")
        raise eutils.RetryableFailure(f"a list of {len(set(accessions))} of {expected} accessions")
    return count, accessions


def _say_what_was_ignored(query: str, result: dict) -> None:
    """Print the parts of a query that NCBI ignored, because they change the result."""
    for part in ("errorlist", "warninglist"):
        for kind, phrases in result.get(part, {}).items():
            if phrases:
                print(f"NCBI, about {query!r}: {kind}: {', '.join(phrases)}", file=sys.stderr)
