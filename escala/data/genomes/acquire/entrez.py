"""Genomes from NCBI's nucleotide database: by query, by accession or by lock file.

The wanted records are listed before the first one is fetched. A query leaves its result on NCBI's
history server, which then lists the accessions. Sequences are fetched by accession in batches, and
every answer is compared with its request. Some accessions may have no record. One message names all
of them, after the other records have been received and kept.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import date
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.text import read_text
from escala.data.genomes.acquire import (
    ACCESSION,
    QUERIES,
    Wanted,
    canonical,
    eutils,
    explain,
    sequenceless,
)
from escala.data.genomes.acquire.download import Download, Partial
from escala.data.genomes.acquire.files import Locked, accession_files, join_names
from escala.data.nucleotides import write_record
from escala.data.paths import expand

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


def fetch(
    source: dict,
    classes: list[str],
    folder: Path,
    partial: Path,
    locked: dict[str, list[Locked]] | None,
) -> None:
    """Download the records of each class to `{class}.fasta`, in upper case.

    The records are sorted by accession. If `locked` has the rows of an earlier lock file, these
    rows replace lists and queries, and give the order. Headers are accessions with versions,
    because descriptions change. So the same list gives the same bytes. The folder `partial` holds
    verified records. It survives a failure, an interrupt and a kill, and the next call requests
    only the missing records.

    An `InputError` is raised if no record matches, if a record does not exist (any more) or has
    changed, if NCBI refuses, or after `eutils.MAX_TRIES` unusable answers in a row.
    """
    email = source["email"]
    client = eutils.Client(expand(email, "source.email") if email.startswith("$") else email)
    wanted = {name: _list_wanted(source, name, locked) for name in classes}
    with client.ncbi_lock():
        kept = Partial(partial)
        received = {name: _download(client, wanted[name], name, kept) for name in classes}
        # One message names all records that cannot be downloaded.
        faulty = {name: download.lacking for name, download in received.items() if download.lacking}
        texts = {name: explain(faulty[name], wanted[name].places) for name in faulty}
        remedy = "remove or replace these accessions; all other records are kept"
        if all(wanted[name].accessions is None for name in faulty):
            remedy = "exclude these accessions from the query, each by NOT ACCESSION[accn]"
        if len(faulty) == 1:
            [name] = faulty
            raise wanted[name].error(texts[name], remedy)
        if faulty:
            text = "; ".join(f"{wanted[name].where}: {text}" for name, text in texts.items())
            raise InputError("source", None, text, remedy)
        for name, download in received.items():
            with open(folder / f"{name}.fasta", "w", encoding="utf-8") as fasta:
                for accession in download.received.values():
                    write_record(fasta, accession, kept.sequence(accession))


def _list_wanted(source: dict, name: str, locked: dict[str, list[Locked]] | None) -> Wanted:
    """Return the wanted records of a class: by a lock file, a list or a query."""
    lists, queries = source.get("accessions", {}), QUERIES | source.get("queries", {})
    if locked:
        digests = {row.accession: row.sha256 for row in locked[name]}
        return Wanted("source.lock", source["lock"], list(digests), digests=digests)
    if name in lists:
        where, value = f"source.accessions.{name}", lists[name]
        if isinstance(value, str):
            [path] = accession_files(source, [name])
            numbered = enumerate(read_text(path).splitlines(), start=1)
            lines = {f"line {number}": line.strip() for number, line in numbered if line.strip()}
            places = _find_places(lines, path)
        else:
            places = _find_places({f"entry {n}": text for n, text in enumerate(value, 1)}, where)
        return Wanted(where, value, list(places), places)
    if name in queries:
        limit = source.get("max_records", {}).get(name)
        return Wanted(f"source.queries.{name}", queries[name], limit=limit)
    remedy = f"add a query; only {', '.join(QUERIES)} have a query by default"
    reason = "the class has neither a query nor accessions"
    raise InputError(f"source.queries.{name}", None, reason, remedy)


def _find_places(lines: dict[str, str], where: object) -> dict[str, str]:
    """Return the place of each accession, sorted; refuse malformed or repeated accessions."""
    if not lines:
        raise InputError(where, [], "no accession", "give at least one")
    forms = {place: canonical(line) for place, line in lines.items()}
    count = Counter(forms.values())
    for wrong, reason, remedy in (
        ([place for place, form in forms.items() if not ACCESSION.fullmatch(form)],
         "is not an accession", "write one per line: AB123456.1, or 1ABC_A for a chain in PDB"),
        ([place for place, form in forms.items() if count[form] > 1],
         "is listed twice", "keep one of each"),
    ):  # fmt: skip
        if wrong:
            named = ", ".join(f"{lines[place]!r} ({place})" for place in wrong)
            raise InputError(where, None, f"{named} {reason}", remedy)
    return {form: place for place, form in sorted(forms.items(), key=lambda item: item[1])}


def _download(client: eutils.Client, wanted: Wanted, name: str, kept: Partial) -> Download:
    """Fetch the missing records of a class, and return the download in the order of writing."""
    client.faults.clear()
    often = sys.stderr.isatty()  # A log gets a line twice a minute.
    try:
        accessions = wanted.accessions or search(client, wanted)
        download = Download(client, accessions, wanted.digests, kept)
        if download.lacking:
            reasons = explain(download.lacking, wanted.places)
            print(f"{name}: will be refused after the download: {reasons}", file=sys.stderr)
        with tqdm(
            desc=name,
            total=len(accessions),
            initial=len(accessions) - len(download.waiting),
            unit=" records",
            mininterval=0.1 if often else 30,
            maxinterval=10 if often else 60,
        ) as bar:
            while download.waiting:
                left = len(download.waiting)
                client.with_retries(download.attempt)
                bar.update(left - len(download.waiting))
    except eutils.Failure as failure:
        known = f"; {len(kept.files)} verified records are kept and will not be fetched again"
        raise wanted.error(f"NCBI gave no usable answer ({failure}){known}") from None
    finally:
        for fault, count in client.faults.most_common():
            print(f"{name}: tried again after: {fault} ({count} times)", file=sys.stderr)
    received = download.received
    download.received = {name: received[name] for name in accessions if name in received}
    twice = {name for name, count in Counter(received.values()).items() if count > 1}
    if twice:
        text = f"{join_names(twice)}: is listed more than once, such as with and without version"
        raise wanted.error(text, "keep one of them")
    return download


def search(client: eutils.Client, wanted: Wanted) -> list[str]:
    """Return the accessions that match a query, sorted, at most `wanted.limit` of them.

    Records without a sequence of their own, such as masters of WGS projects, are left out and named
    on stderr. A query without a match, and matches that NCBI does not list, are refused.
    """
    left_out: list[str] = []

    def usable() -> Iterator[str]:
        for accession in _pieces(client, wanted, SPANS):
            if sequenceless(accession):
                left_out.append(accession)
            else:
                yield accession

    accessions = list(dict.fromkeys(islice(usable(), wanted.limit)))
    if left_out:
        names = ", ".join(left_out)
        print(f"left out, because it {sequenceless(left_out[0])}: {names}", file=sys.stderr)
    if not accessions:
        raise wanted.error("no record matches", "widen the query")
    return sorted(accessions)


def _pieces(client: eutils.Client, wanted: Wanted, spans: tuple[Span, ...]) -> Iterator[str]:
    """Yield the accessions that match within `spans`; search halves for more than `PAGE` matches.

    Accessions of older records come first.
    """
    narrowed = []
    for field, *bounds in (span for span in spans if span not in SPANS):
        if field == "PDAT":
            bounds = [date.fromordinal(day).strftime("%Y/%m/%d") for day in bounds]
        narrowed.append("{}:{}[{}]".format(*bounds, field))
    term = " AND ".join([f"({wanted.value})", *narrowed]) if narrowed else str(wanted.value)
    most = PAGE if wanted.limit is None else min(PAGE, wanted.limit)
    all_of_them = wanted.limit is None or wanted.limit > PAGE
    count, accessions = client.with_retries(lambda: _list_page(client, term, most, all_of_them))
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


def _list_page(
    client: eutils.Client, term: str, most: int, all_of_them: bool
) -> tuple[int, list[str] | None]:
    """Search; return how many records match, and the accessions of the first `most` records.

    The accessions are None if `all_of_them` are wanted and more than `most` match. A retry repeats
    both requests.
    """
    try:
        text = client.ask("esearch", term=term, usehistory="y", retmax=0, retmode="json")
    except eutils.NotFound as failure:
        raise eutils.PermanentFailure(str(failure)) from None
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict) or "error" in content:
        raise eutils.failure_of(text)
    result = content.get("esearchresult", {})
    if "ERROR" in result or "count" not in result:
        message = result.get("ERROR", "no result of a search")
        raise eutils.RetryableFailure(f"the server answers: {message}")
    count = int(result["count"])
    # NCBI may ignore a part of the query, which changes the result.
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
        text = client.ask("efetch", **place, **form)
    except eutils.NotFound as failure:
        raise eutils.RetryableFailure(str(failure)) from None
    accessions = [canonical(name) for name in text.split()]
    if not accessions or not all(map(ACCESSION.fullmatch, accessions)):
        raise eutils.RetryableFailure(f"the server answers: {eutils.excerpt(text)}")
    if not len(set(accessions)) == len(accessions) == expected:
        raise eutils.RetryableFailure(f"a list of {len(set(accessions))} of {expected} accessions")
    return count, accessions
