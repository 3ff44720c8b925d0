"""List the records that match a query, as NCBI's history server holds them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import date
from itertools import islice

from Bio import Entrez

from escala.data.genomes.acquire import eutils
from escala.data.genomes.acquire.accessions import ACCESSION, canonical, sequenceless
from escala.data.genomes.acquire.wanted import Wanted

#: Records of one listing. EFetch gives 10 000 at once (NBK25499) and refuses positions beyond 9998
#: with "out of acceptable range [9999,9998]" (Biopython, issue 4189). So a longer result is divided
#: into searches of at most this many records, each listed from position 0.
PAGE = 9999

#: A field of a record, and its first and last value: a day as an ordinal, or a number of letters.
Span = tuple[str, int, int]
#: Fields that divide a long result: first the day of publication, then the length in letters.
SPANS: tuple[Span, ...] = (
    ("PDAT", date(1970, 1, 1).toordinal(), date(2099, 12, 31).toordinal()),
    ("SLEN", 1, 10**9),
)


def searched(client: eutils.Client, wanted: Wanted) -> list[str]:
    """Return the accessions that match a query, sorted, at most `wanted.limit` of them.

    Records without a sequence of their own, such as masters of WGS projects, are left out and named
    on stderr. No match, and matches that NCBI does not list, are refused.
    """
    left_out: list[str] = []

    def usable() -> Iterator[str]:
        for accession in _pieces(client, wanted, SPANS):
            if sequenceless(accession):
                left_out.append(accession)
            else:
                yield accession

    found = list(dict.fromkeys(islice(usable(), wanted.limit)))
    if left_out:
        names = ", ".join(left_out)
        print(f"left out, because it {sequenceless(left_out[0])}: {names}", file=sys.stderr)
    if not found:
        raise wanted.error("no record matches", "widen the query")
    return sorted(found)


def _pieces(client: eutils.Client, wanted: Wanted, spans: tuple[Span, ...]) -> Iterator[str]:
    """Yield the accessions that match; if there are more than `PAGE`, older ones first."""
    narrowed = [_restriction(*span) for span in spans if span not in SPANS]
    term = " AND ".join([f"({wanted.value})", *narrowed]) if narrowed else str(wanted.value)
    most = PAGE if wanted.limit is None else min(PAGE, wanted.limit)
    all_of_them = wanted.limit is None or wanted.limit > PAGE
    count, accessions = client.with_retries(lambda: _listing(client, term, most, all_of_them))
    if accessions is not None:
        yield from accessions
        return
    number = next((n for n, (_, low, high) in enumerate(spans) if low < high), None)
    if number is None:
        reason = f"{count} records of one day and length match, and NCBI lists {PAGE} at once"
        raise wanted.error(reason, "narrow the query, set max_records, or give accessions")
    field, low, high = spans[number]
    middle, listed = (low + high) // 2, 0
    for half in ((field, low, middle), (field, middle + 1, high)):
        for accession in _pieces(client, wanted, (*spans[:number], half, *spans[number + 1 :])):
            listed += 1
            yield accession
    if listed < count:
        raise wanted.error(f"NCBI lists {listed} of {count} records that match")


def _restriction(field: str, low: int, high: int) -> str:
    """Return the part of a query that a field is from `low` to `high`, both included."""
    bounds = low, high
    if field == "PDAT":
        bounds = [date.fromordinal(day).strftime("%Y/%m/%d") for day in bounds]
    return "{}:{}[{}]".format(*bounds, field)


def _listing(
    client: eutils.Client, term: str, most: int, all_of_them: bool
) -> tuple[int, list[str] | None]:
    """Search, and return how many records match, and the accessions of the first `most`.

    There are none if all are wanted and there are more. A retry repeats search and list.
    """
    try:
        text = client.ask(Entrez.esearch, term=term, usehistory="y", retmax=0, retmode="json")
    except eutils.NotFound as failure:
        raise eutils.PermanentFailure(str(failure)) from None
    result = eutils.parse_answer(text).get("esearchresult", {})
    if "ERROR" in result or "count" not in result:
        said = result.get("ERROR", "no result of a search")
        raise eutils.RetryableFailure(f"the server answers: {said}")
    count = int(result["count"])
    # What NCBI ignored of the query changes the result.
    for part in ("errorlist", "warninglist"):
        for kind, phrases in result.get(part, {}).items():
            if phrases:
                print(f"NCBI, about {term!r}: {kind}: {', '.join(phrases)}", file=sys.stderr)
    if count == 0:
        return 0, []
    if count > most and all_of_them:
        return count, None
    if not {"webenv", "querykey"} <= result.keys():
        raise eutils.RetryableFailure("the search has no place on the history server")
    expected = min(count, most)
    place = {"WebEnv": result["webenv"], "query_key": result["querykey"], "retstart": 0}
    form = {"rettype": "acc", "retmode": "text", "retmax": expected}
    try:
        text = client.ask(Entrez.efetch, **place, **form)
    except eutils.NotFound as failure:
        raise eutils.RetryableFailure(str(failure)) from None
    accessions = [canonical(name) for name in text.split()]
    if not accessions or not all(map(ACCESSION.fullmatch, accessions)):
        raise eutils.RetryableFailure(f"the server answers: {eutils.excerpt(text)}")
    if not len(set(accessions)) == len(accessions) == expected:
        raise eutils.RetryableFailure(f"a list of {len(set(accessions))} of {expected} accessions")
    return count, accessions
