"""NCBI through the real client of Biopython, against a server on loopback that speaks for NCBI."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from Bio import Entrez
from Bio.SeqIO.FastaIO import SimpleFastaParser

from escala.acquire import acquire, entrez
from escala.errors import InputError

NCBI = "https://eutils.ncbi.nlm.nih.gov"
KEY = "0123456789abcdefsecret"


@dataclass
class Ncbi:
    """What the server holds, how it misbehaves, and what it was asked."""

    genomes: dict[str, list[tuple[str, str]]]
    url: str = ""
    requests: list[dict[str, str]] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    search_error: str | None = None
    spoil: str | None = None

    def search(self, asked: dict[str, str]) -> str:
        if self.search_error:
            return json.dumps({"esearchresult": {"ERROR": self.search_error}})
        count = len(self.genomes.get(asked["term"], []))
        result = {"count": str(count), "idlist": []}
        if count:
            result |= {"webenv": f"MCID_{asked['term']}", "querykey": "1"}
        return json.dumps({"esearchresult": result})

    def fetch(self, asked: dict[str, str]) -> str:
        term = asked["WebEnv"].removeprefix("MCID_")
        start, size = int(asked["retstart"]), int(asked["retmax"])
        batch = self.genomes[term][start : start + size]
        if self.spoil == "short" and start > 0:
            batch = batch[:-1]
        if self.spoil == "twice" and start > 0:
            batch = [self.genomes[term][0], *batch[1:]]
        text = "".join(f">{header}\n{sequence}\n\n" for header, sequence in batch)
        if self.spoil == "error at the end":
            text += "<ERROR>Search Backend failed</ERROR>\n"
        if self.spoil == "error instead":
            text = "Unable to obtain query #1\n"
        return text


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ncbi: Ncbi = self.server.ncbi
        address = urlsplit(self.path)
        asked = {key: values[0] for key, values in parse_qs(address.query).items()}
        ncbi.requests.append(asked | {"path": address.path})
        if ncbi.status:
            self.send_error(ncbi.status.pop(0))
            return
        searching = address.path.endswith("esearch.fcgi")
        body = (ncbi.search(asked) if searching else ncbi.fetch(asked)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if searching else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:-7] if ncbi.spoil == "cut" and not searching else body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def ncbi(monkeypatch) -> Iterator[Ncbi]:
    genomes = {
        "flu[organism]": [
            (f"F{n}.1 an influenza genome", "ACGTN" * 30 + "A" * n) for n in range(5)
        ],
        "cold[organism]": [("C1.2", "acgt")],
    }
    ncbi = Ncbi(genomes)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.ncbi = ncbi
    ncbi.url = f"http://127.0.0.1:{server.server_port}"
    build = Entrez._build_request
    monkeypatch.setattr(
        Entrez,
        "_build_request",
        lambda cgi, *rest, **named: build(cgi.replace(NCBI, ncbi.url), *rest, **named),
    )
    monkeypatch.setattr(Entrez, "sleep_between_tries", 0)
    monkeypatch.setattr(entrez, "BATCH", 2)
    monkeypatch.setenv("NCBI_API_KEY", KEY)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield ncbi
    server.shutdown()
    server.server_close()
    thread.join()


def fetched(tmp_path: Path, **changes: object) -> dict[str, list[tuple[str, str]]]:
    source = {
        "type": "ncbi",
        "email": "someone@example.org",
        "queries": {"FLU": "flu[organism]", "COLD": "cold[organism]"},
    }
    output = tmp_path / "sequences"
    acquire(source | changes, ["FLU", "COLD"], output, tmp_path / "lock.tsv")
    result = {}
    for path in output.iterdir():
        with open(path) as handle:
            result[path.stem] = list(SimpleFastaParser(handle))
    return result


def test_every_record_arrives_once_in_batches(ncbi, tmp_path):
    assert fetched(tmp_path) == {
        "FLU": ncbi.genomes["flu[organism]"],
        "COLD": ncbi.genomes["cold[organism]"],
    }
    batches = [r for r in ncbi.requests if r["path"].endswith("efetch.fcgi")]
    assert [(r["retstart"], r["retmax"]) for r in batches] == [
        ("0", "2"), ("2", "2"), ("4", "1"), ("0", "1"),
    ]  # fmt: skip
    assert {(r["db"], r["rettype"], r["retmode"]) for r in batches} == {
        ("nucleotide", "fasta", "text")
    }
    assert {r["email"] for r in ncbi.requests} == {"someone@example.org"}
    assert {r["api_key"] for r in ncbi.requests} == {KEY}
    assert len((tmp_path / "lock.tsv").read_text().splitlines()) == 1 + 6


def test_without_a_key_none_is_sent_and_the_address_may_come_from_the_environment(
    ncbi, tmp_path, monkeypatch
):
    monkeypatch.delenv("NCBI_API_KEY")
    monkeypatch.setenv("MY_ADDRESS", "me@example.org")
    fetched(tmp_path, email="$MY_ADDRESS", max_records={"FLU": 1})
    assert all("api_key" not in r and r["email"] == "me@example.org" for r in ncbi.requests)


def test_max_records_limits_a_class(ncbi, tmp_path):
    result = fetched(tmp_path, max_records={"FLU": 3, "COLD": 9})
    assert result["FLU"] == ncbi.genomes["flu[organism]"][:3]
    assert result["COLD"] == ncbi.genomes["cold[organism]"]


def test_a_passing_failure_is_survived(ncbi, tmp_path):
    ncbi.status = [500, 429]
    assert len(fetched(tmp_path)["FLU"]) == 5


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ("short", r"records 3 to 4.*1 of 2 records whole"),
        ("error at the end", r"records 1 to 2.*1 of 2 records whole"),
        ("error instead", r"records 1 to 2.*0 of 2 records whole"),
        ("twice", r"'F0\.1': two records have this accession"),
        ("cut", r"no usable answer"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_is_refused(ncbi, tmp_path, spoil, reason):
    ncbi.spoil = spoil
    with pytest.raises(InputError, match=reason) as refused:
        fetched(tmp_path)
    assert refused.value.where == "source.queries.FLU"
    assert not list(tmp_path.iterdir())


def test_no_match_is_told_apart_from_failure(ncbi, tmp_path):
    with pytest.raises(InputError, match=r"source\.queries\.COLD: 'mumps'.*no record matches"):
        fetched(tmp_path, queries={"FLU": "flu[organism]", "COLD": "mumps"})
    ncbi.search_error = "Search Backend failed: read failed"
    with pytest.raises(InputError, match="NCBI answers: Search Backend failed"):
        fetched(tmp_path)


@pytest.mark.parametrize("status", [400, 500])
def test_a_lasting_failure_ends_after_bounded_tries_without_showing_the_key(
    ncbi, tmp_path, status, capfd
):
    ncbi.status = [status] * 10
    with pytest.raises(InputError, match=f"no usable answer .*{status}") as refused:
        fetched(tmp_path)
    assert len(ncbi.requests) == (1 if status == 400 else Entrez.max_tries)
    assert KEY not in str(refused.value) + "".join(capfd.readouterr())
    assert refused.value.__suppress_context__


def test_an_unreachable_server_is_reported(ncbi, tmp_path):
    ncbi.url = "http://127.0.0.1:9"
    with pytest.raises(InputError, match=r"source\.queries\.FLU.*no usable answer"):
        fetched(tmp_path)
