"""Genomes from NCBI's nucleotide database: by query, by accession or by lock file.

The wanted records are listed before the first one is fetched. A query leaves its result on NCBI's
history server, from which the accessions are listed. Sequences are then fetched by accession in
batches, and every answer is compared with its request. All accessions that cannot be had are named
in one message, after the others have been received and kept.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.text import read_text
from escala.data.fasta import write_record
from escala.data.genomes.acquire import eutils
from escala.data.genomes.acquire.accessions import ACCESSION, canonical, explained
from escala.data.genomes.acquire.download import Download
from escala.data.genomes.acquire.lock import Locked, listed
from escala.data.genomes.acquire.partial import Partial
from escala.data.genomes.acquire.paths import accession_files
from escala.data.genomes.acquire.queries import QUERIES
from escala.data.genomes.acquire.search import searched
from escala.data.genomes.acquire.wanted import Wanted
from escala.data.paths import expanded


def fetch(
    source: dict,
    classes: list[str],
    folder: Path,
    partial: Path,
    locked: dict[str, list[Locked]] | None,
) -> None:
    """Download the records of each class to `{class}.fasta`, in upper case.

    The records are sorted by accession, or are in the order of the lock file: `locked` are the rows
    of an earlier one, in place of lists and queries. Their headers are accessions with versions,
    because descriptions change. So the same list gives the same bytes. The folder `partial` holds
    verified records. It survives a failure, an interrupt and a kill, and the next call requests
    only the other records.

    What is an `InputError`: no record matches, a record does not exist (any more) or has changed,
    NCBI refuses, or it gave no usable answer `eutils.MAX_TRIES` times in a row.
    """
    email = source["email"]
    client = eutils.Client(expanded(email, "source.email") if email.startswith("$") else email)
    wanted = {name: _wanted(source, name, locked) for name in classes}
    with client.ncbi_lock():
        kept = Partial(partial)
        received = {name: _received(client, wanted[name], name, kept) for name in classes}
        _require_all(wanted, {name: download.lacking for name, download in received.items()})
        for name, download in received.items():
            with open(folder / f"{name}.fasta", "w", encoding="utf-8") as fasta:
                for accession in download.found.values():
                    write_record(fasta, accession, kept.sequence(accession))


def _wanted(source: dict, name: str, locked: dict[str, list[Locked]] | None) -> Wanted:
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
            places = _named(lines, path)
        else:
            places = _named({f"entry {n}": text for n, text in enumerate(value, 1)}, where)
        return Wanted(where, value, list(places), places)
    if name in queries:
        limit = source.get("max_records", {}).get(name)
        return Wanted(f"source.queries.{name}", queries[name], limit=limit)
    remedy = f"add one; only {', '.join(QUERIES)} have a query by default"
    reason = "the class has neither a query nor accessions"
    raise InputError(f"source.queries.{name}", None, reason, remedy)


def _named(lines: dict[str, str], where: object) -> dict[str, str]:
    """Return the place of each accession, in sorted order; refuse malformed and repeated ones."""
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


def _received(client: eutils.Client, wanted: Wanted, name: str, kept: Partial) -> Download:
    """Fetch the missing records of a class; return what was found, in the order of writing."""
    client.faults.clear()
    often = sys.stderr.isatty()  # Twice a minute in a log.
    try:
        accessions = wanted.accessions or searched(client, wanted)
        download = Download(client, accessions, wanted.digests, kept)
        if download.lacking:
            found = explained(download.lacking, wanted.places)
            print(f"{name}: will be refused after the download: {found}", file=sys.stderr)
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
        known = f"; {len(kept)} verified records are kept and will not be fetched again"
        raise wanted.error(f"NCBI gave no usable answer ({failure}){known}") from None
    finally:
        for fault, count in client.faults.most_common():
            print(f"{name}: tried again after: {fault} ({count} times)", file=sys.stderr)
    found = download.found
    download.found = {name: found[name] for name in accessions if name in found}
    twice = {name for name, count in Counter(found.values()).items() if count > 1}
    if twice:
        text = f"{listed(twice)}: is listed more than once, such as with and without version"
        raise wanted.error(text, "keep one of them")
    return download


def _require_all(wanted: dict[str, Wanted], lacking: dict[str, dict[str, str]]) -> None:
    """Refuse the accessions of all classes that cannot be had, in one message."""
    faulty = {name: reasons for name, reasons in lacking.items() if reasons}
    if not faulty:
        return
    texts = {name: explained(faulty[name], wanted[name].places) for name in faulty}
    remedy = "remove or replace these accessions; all others are kept, and not fetched again"
    if all(wanted[name].accessions is None for name in faulty):
        remedy = "exclude them from the query, each by NOT ACCESSION[accn]"
    if len(faulty) == 1:
        [name] = faulty
        raise wanted[name].error(texts[name], remedy)
    text = "; ".join(f"{wanted[name].where}: {text}" for name, text in texts.items())
    raise InputError("source", None, text, remedy)
