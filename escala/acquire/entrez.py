"""Genomes from NCBI's nucleotide database, by an Entrez query per class."""

from __future__ import annotations

import io
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

from Bio import Entrez
from Bio.SeqIO.FastaIO import SimpleFastaParser
from tqdm import tqdm

from escala.acquire.files import distinct, expanded, write_record
from escala.errors import InputError

BATCH = 200
TIMEOUT_SECONDS = 60
REMEDY = "check the query and the connection, and try again later"


def fetch(source: dict, classes: list[str], folder: Path) -> None:
    """Download the records that match the query of each class to `{class}.fasta`.

    The search result stays on NCBI's history server and is fetched in batches. Bio.Entrez keeps to
    the request rate NCBI allows and tries a request `Bio.Entrez.max_tries` times. The API key comes
    from the environment variable NCBI_API_KEY and is shown nowhere.

    Parameters
    ----------
    source : `email` (or `$NAME` of an environment variable), `queries` (class → Entrez query) and
        optionally `max_records` (class → int).

    Raises
    ------
    InputError : nothing matches, NCBI cannot be reached or refuses, or the records received are
        not those asked for.
    """
    email = source["email"]
    if email.startswith("$"):
        email = expanded(email, "source.email")
    identity = {"email": email, "api_key": os.environ.get("NCBI_API_KEY") or None}
    limits = source.get("max_records", {})
    for name in classes:
        where = f"source.queries.{name}"
        found = _records(source["queries"][name], where, limits.get(name), identity)
        with open(folder / f"{name}.fasta", "w", encoding="utf-8") as fasta:
            for header, sequence in distinct(found, where):
                write_record(fasta, header, sequence)


def _records(
    query: str, where: str, limit: int | None, identity: dict[str, str | None]
) -> Iterator[tuple[str, str]]:
    with _explained(where, query):
        count, history = _search(query, where, identity)
    total = count if limit is None else min(count, limit)
    for start in tqdm(range(0, total, BATCH), desc=where, unit="batch", disable=None):
        with _explained(where, query):
            batch = _batch(where, start, min(BATCH, total - start), history | identity)
        yield from batch


def _search(
    query: str, where: str, identity: dict[str, str | None]
) -> tuple[int, dict[str, str | None]]:
    """Return the number of records that match, and where the history server keeps the result."""
    with Entrez.esearch(
        db="nucleotide", term=query, usehistory="y", retmax=0, retmode="json", **identity
    ) as reply:
        result = json.load(reply).get("esearchresult", {})
    if "ERROR" not in result and result.get("count") == "0":
        raise InputError(where, query, "no record matches", "widen the query")
    if "ERROR" in result or not {"count", "webenv", "querykey"} <= result.keys():
        reason = result.get("ERROR", "without the result of a search")
        raise InputError(where, query, f"NCBI answers: {reason}", REMEDY)
    return int(result["count"]), {"WebEnv": result["webenv"], "query_key": result["querykey"]}


def _batch(
    where: str, start: int, size: int, keywords: dict[str, str | None]
) -> list[tuple[str, str]]:
    with Entrez.efetch(
        db="nucleotide", rettype="fasta", retmode="text", retstart=start, retmax=size, **keywords
    ) as reply:
        body = reply.read()
    text = body if isinstance(body, str) else body.decode("utf-8", "replace")
    batch = list(SimpleFastaParser(io.StringIO(text)))
    intact = [sequence.isalpha() for _, sequence in batch]
    if len(batch) != size or not all(intact):
        raise InputError(
            where,
            f"records {start + 1} to {start + size}",
            f"NCBI sent {sum(intact)} of {size} records whole",
            REMEDY,
        )
    return batch


@contextmanager
def _explained(where: str, query: str) -> Iterator[None]:
    """Turn what a request can fail with into an InputError; a stalled one fails too."""
    previous = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        yield
    except InputError:
        raise
    except (OSError, HTTPException, ValueError) as error:
        # The chain is cut: an HTTPError holds the URL, and with it the API key.
        raise InputError(where, query, f"NCBI gave no usable answer ({error})", REMEDY) from None
    finally:
        socket.setdefaulttimeout(previous)
