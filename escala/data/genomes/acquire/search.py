"""List the records that match a query, as NCBI's history server holds them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from itertools import islice
from typing import Protocol

from Bio import Entrez

from escala.core.errors import InputError
from escala.data.genomes.acquire import eutils
from escala.data.genomes.acquire.accessions import ACCESSION, canonical, sequenceless

#: Records of one listing. EFetch gives 10 000 at once (NBK25499) and refuses positions beyond 9998
#: with "out of acceptable range [9999,9998]" (Biopython, issue 4189). So a longer result is divided
#: into searches of at most this many records, each listed from position 0.
PAGE = 9999


class Query(Protocol):
    """What is searched for: a query in Entrez's language, at most `limit` records of it."""

    value: object
    limit: int | None

    def error(self, reason: str, remedy: str = ...) -> InputError: ...


def searched(client: eutils.Client, query: Query) -> list[str]:
    """Return the accessions that match a query, sorted, at most `limit` of them.

    Records without a sequence of their own, such as masters of WGS projects, are left out and named
    on stderr.

    Raises
    ------
    InputError : no record matches, or NCBI does not list all of them.
    """
    left_out: list[str] = []

    def usable() -> Iterator[str]:
        for accession in _pieces(client, query):
            if sequenceless(accession):
                left_out.append(accession)
            else:
                yield accession

    found = list(dict.fromkeys(islice(usable(), query.limit)))
    if left_out:
        names = ", ".join(left_out)
        print(f"left out, because it {sequenceless(left_out[0])}: {names}", file=sys.stderr)
    if not found:
        raise query.error("no record matches", "widen the query")
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
    query: Query,
    spans: tuple[_Span, ...] = SPANS,
    chosen: tuple[_Span, ...] = (),
) -> Iterator[str]:
    """Yield the accessions that match; if there are more than `PAGE`, older ones first."""
    term = " AND ".join([f"({query.value})", *map(str, chosen)]) if chosen else str(query.value)
    most = PAGE if query.limit is None else min(PAGE, query.limit)
    count, accessions = client.with_retries(
        lambda: _listing(client, term, most, query.limit is None or query.limit > PAGE)
    )
    if accessions is not None:
        yield from accessions
        return
    number = next((n for n, span in enumerate(spans) if span.low < span.high), None)
    if number is None:
        raise query.error(
            f"{count} records of one day and length match, and NCBI lists {PAGE} at once",
            "narrow the query, set max_records, or give accessions",
        )
    listed_so_far = 0
    for half in spans[number].halves():
        rest = (*spans[:number], half, *spans[number + 1 :])
        chosen = tuple(span for span in rest if span not in SPANS)
        for accession in _pieces(client, query, rest, chosen):
            listed_so_far += 1
            yield accession
    if listed_so_far < count:
        raise query.error(f"NCBI lists {listed_so_far} of {count} records that match")


def _listing(
    client: eutils.Client, term: str, most: int, all_of_them: bool
) -> tuple[int, list[str] | None]:
    """Search, and list the matching accessions; a retry repeats both.

    Returns
    -------
    How many records match, and the accessions of the first `most`; None if all are wanted and there
    are more.
    """
    try:
        text = client.ask(Entrez.esearch, term=term, usehistory="y", retmax=0, retmode="json")
    except eutils.NotFound as failure:
        raise eutils.PermanentFailure(str(failure)) from None
    result = eutils.parse_answer(text).get("esearchresult", {})
    if "ERROR" in result or not {"count"} <= result.keys():
        raise eutils.RetryableFailure(
            f"the server answers: {result.get('ERROR', 'no result of a search')}"
        )
    count = int(result["count"])
    _say_what_was_ignored(term, result)
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
    accessions = [canonical(name) for name in text.split()]
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
