"""A server on loopback that speaks for NCBI's E-utilities and misbehaves as they do.

It knows genomes by query. Of each kind of request (`search`, `list`, `fetch`) it answers the n-th
with the n-th fault planned for that kind; None, or no plan, is a proper answer. As NCBI, it refuses
positions beyond 9998 and ends FASTA records with an empty line.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from Bio.SeqIO.FastaIO import SimpleFastaParser

from escala.data.genomes.acquire import acquire, download

LAST_POSITION = 9998
#: A chain of a structure in PDB, which is listed as 1ABC_A and has pdb|1ABC|A in FASTA.
CHAIN = re.compile(r"(\d\w{3})_(\w+)")
DAY = date(2021, 5, 4)
RESTRICTION = re.compile(r" AND (\S+):(\S+)\[(PDAT|SLEN)\]")

SEARCH_FAULTS = [
    "429", "503", "rate limit under 200", "search backend", "cut JSON", "HTML instead",
    "no history", "reset",
]  # fmt: skip
LIST_FAULTS = [
    "expired", "expired under 400", "an accession missing", "an accession twice", "503", "empty",
    "no IDs under 400", "cut",
]  # fmt: skip
FETCH_FAULTS = [
    "429", "429 until a date", "503", "no IDs under 400", "no ID, plainly", "reset",
    "no answer", "rate limit under 200", "HTML instead", "XML error instead", "empty", "cut",
    "cut in chunks", "cut in the last record", "cut after a record", "HTML at the end",
    "text at the end", "error in the middle", "a record missing",
    "a record twice", "a record cut and whole", "another record", "another version",
]  # fmt: skip

HTML = "<html><head><title>Error</title></head><body>Service unavailable</body></html>\n"
XML = '<?xml version="1.0"?>\n<eFetchResult><ERROR>Search Backend failed</ERROR></eFetchResult>\n'
NO_IDS = (
    "<eFetchResult><ERROR>ID list is empty! Possibly it has no correct IDs.</ERROR></eFetchResult>"
)


@dataclass
class Eutils:
    """State of the server: its records, planned faults, and the requests received."""

    #: Query → accession with version → sequence, in the order the server lists them.
    genomes: dict[str, dict[str, str]]
    #: When a record was published; `DAY` for those not named.
    days: dict[str, date] = field(default_factory=dict)
    #: Kind of request → faults of the first, second, … of them.
    plan: dict[str, list[str | None]] = field(default_factory=dict)
    #: Listed, and never given; with `refuse_gone`, no record is given in one answer with them.
    gone: set[str] = field(default_factory=set)
    instead: dict[str, str] = field(default_factory=dict)
    refuse_gone: bool = False
    requests: list[dict] = field(default_factory=list)
    #: Number of the fetch, from 1, that is not answered before `released` is set.
    hold_at: int | None = None
    held: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    _histories: dict[str, list[str]] = field(default_factory=dict)
    _searches: int = 0

    def of(self, kind: str) -> list[dict]:
        return [request for request in self.requests if request["kind"] == kind]

    def asked_for(self) -> list[str]:
        """Return the accessions of every fetch, one after the other."""
        return [one for request in self.of("fetch") for one in request["id"].split(",")]

    def matches(self, term: str) -> list[str]:
        queries = [one for one in self.genomes if term == one or term.startswith(f"({one}) AND ")]
        if not queries:
            return []
        found = self.genomes[queries[0]]
        for low, high, what in RESTRICTION.findall(term.replace(queries[0], "", 1)):
            if what == "SLEN":
                found = {a: s for a, s in found.items() if int(low) <= len(s) <= int(high)}
            else:
                first, last = (date.fromisoformat(d.replace("/", "-")) for d in (low, high))
                found = {a: s for a, s in found.items() if first <= self.days.get(a, DAY) <= last}
        return list(found)

    def records(self, accessions: list[str]) -> list[tuple[str, str]]:
        """Return accessions with version and sequences; case matters in chains of PDB only."""
        known = {
            name: sequence
            for genomes in self.genomes.values()
            for name, sequence in genomes.items()
            if name not in self.gone
        }
        latest = {name.rpartition(".")[0]: name for name in sorted(known)}
        asked = [name if CHAIN.fullmatch(name) else name.upper() for name in accessions]
        names = [self.instead.get(name, latest.get(name, name)) for name in asked]
        return [(name, known[name]) for name in names if name in known]

    def remember(self, accessions: list[str]) -> str:
        self._searches += 1
        name = f"MCID_{self._searches}"
        self._histories[name] = accessions
        return name


class _Handler(BaseHTTPRequestHandler):
    eutils = property(lambda self: self.server.eutils)

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

    def do_GET(self) -> None:
        self._answer(urlsplit(self.path).query)

    def _answer(self, query: str) -> None:
        asked = {key: values[0] for key, values in parse_qs(query).items()}
        utility = urlsplit(self.path).path.rpartition("/")[2]
        kind = "search" if utility == "esearch.fcgi" else asked.get("rettype")
        kind = {"acc": "list", "fasta": "fetch"}.get(kind, kind)
        number = len(self.eutils.of(kind))
        plan = self.eutils.plan.get(kind, [])
        fault = plan[number] if number < len(plan) else None
        self.eutils.requests.append(asked | {"kind": kind, "fault": fault})
        if kind == "fetch" and number + 1 == self.eutils.hold_at:
            self.eutils.held.set()
            self.eutils.released.wait(60)
        if int(asked.get("retstart", 0)) > LAST_POSITION:
            self._send(XML.replace("Search Backend failed", "out of range [9999,9998]"))
        elif not self._common_fault(fault, asked):
            getattr(self, f"_{kind}")(asked, fault)

    def _common_fault(self, fault: str | None, asked: dict[str, str]) -> bool:
        limit = {"error": "API rate limit exceeded", "count": "5", "limit": "3"}
        limit = json.dumps(limit | {"api-key": asked.get("api_key", "127.0.0.1")})
        backend = "Search Backend failed"
        answers = {
            "429": (limit, 429, {"Retry-After": "0"}),
            "429 until a date": (limit, 429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
            **{status: (HTML, int(status), {}) for status in ("500", "503")},
            "rate limit under 200": (limit, 200, {}),
            "HTML instead": (HTML, 200, {}),
            "no IDs under 400": (NO_IDS, 400, {}),
            "expired under 400": (XML.replace(backend, "Unable to obtain query #1"), 400, {}),
            "unknown error under 400": (XML.replace(backend, "No connection to PubOne"), 400, {}),
            "empty": ("", 200, {}),
        }
        if fault in answers:
            text, status, headers = answers[fault]
            self._send(text, status, **headers)
        elif fault == "no answer":
            self.close_connection = True
        elif fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            return False
        return True

    def _search(self, asked: dict[str, str], fault: str | None) -> None:
        found = self.eutils.matches(asked["term"])
        result: dict = {"count": str(len(found)), "idlist": []}
        if asked.get("usehistory") == "y" and fault != "no history":
            result |= {"webenv": self.eutils.remember(found), "querykey": "1"}
        if not found:
            result["errorlist"] = {"phrasesnotfound": [asked["term"]], "fieldsnotfound": []}
            result["warninglist"] = {"outputmessages": ["No items found."]}
        if fault == "search backend":
            result = {"ERROR": "Search Backend failed: read failed"}
        text = json.dumps({"header": {"type": "esearch"}, "esearchresult": result})
        self._send(text[:-9] if fault == "cut JSON" else text)

    def _list(self, asked: dict[str, str], fault: str | None) -> None:
        if fault == "expired":
            del self.eutils._histories[asked["WebEnv"]]
        found = self.eutils._histories.get(asked["WebEnv"])
        if found is None:
            self._send("Unable to obtain query #1\n")
            return
        start = int(asked["retstart"])
        part = found[start : start + min(int(asked["retmax"]), 10_000)]
        if fault == "an accession missing":
            part = part[:-1]
        if fault == "an accession twice":
            part = [part[0], *part[:-1]]
        text = "".join(f"{accession}\n" for accession in part)
        self._send(text, sent=len(text) // 2 if fault == "cut" else None)

    def _fetch(self, asked: dict[str, str], fault: str | None) -> None:
        whole = {"no ID, plainly": "Supplied+id+parameter+is+empty.\n", "XML error instead": XML}
        if fault in whole:
            self._send(whole[fault])
            return
        names = asked["id"].split(",")
        records = self.eutils.records(names)
        if not records or (self.eutils.refuse_gone and len(records) < len(names)):
            self._send(NO_IDS, 400)
            return
        middle = len(records) // 2
        name, sequence = records[middle]
        match fault:
            case "a record missing":
                del records[middle]
            case "a record twice":
                records.append(records[0])
            case "a record cut and whole":
                records.insert(0, (name, sequence[:-5]))
            case "another record":
                records[middle] = ("ZZ999999.1", sequence)
            case "another version":
                records[middle] = (f"{name.rpartition('.')[0]}.99", sequence)
        records = [(CHAIN.sub(r"pdb|\1|\2", name), letters) for name, letters in records]
        texts = [f">{name} a virus, complete genome\n{letters}\n\n" for name, letters in records]
        if fault == "error in the middle":
            texts.insert(middle + 1, XML)
        if fault == "cut after a record":
            texts = texts[: max(1, len(texts) - 2)]
        ends = {"HTML": HTML, "text": "Search Backend failed\n"}
        text = "".join(texts) + ends.get(str(fault).removesuffix(" at the end"), "")
        match fault:
            case "cut":
                self._send(text, sent=len(text) * 2 // 3)
            case "cut in chunks":
                self._send_chunks(text[: len(text) * 2 // 3])
            case "cut in the last record":
                self._send(text[:-30])
            case _:
                self._send(text)

    def _send(self, text: str, status: int = 200, sent: int | None = None, **headers: str) -> None:
        """Answer; with `sent`, so many bytes of those promised."""
        body = text.encode()
        self.send_response(status)
        headers = {"Content-Type": "text/plain"} | headers | {"Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:sent])

    def _send_chunks(self, text: str) -> None:
        """Answer in chunks, as NCBI does, without the last, empty one."""
        self.protocol_version = "HTTP/1.1"
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        body = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(body), body))
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32

    def handle_error(self, *_: object) -> None:
        """Clients are killed and connections reset on purpose."""


@contextmanager
def serving(eutils: Eutils) -> Iterator[Eutils]:
    """Serve on a port of loopback until the block ends; `eutils.url` is its address."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.eutils = eutils
    eutils.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield eutils
    finally:
        eutils.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


def genome(number: int, letters: int = 150) -> str:
    """Return a sequence that no other number has."""
    digits = "".join("ACGT"[number >> shift & 3] for shift in range(0, 24, 2))
    return (digits * (letters // len(digits) + 1))[:letters]


def genomes(prefix: str, count: int, letters: int = 150) -> dict[str, str]:
    """Return `count` records, listed in an order that is not that of their accessions."""
    numbers = sorted(range(count), key=lambda number: (number * 7919) % 104729)
    return {f"{prefix}{number:06d}.1": genome(number, letters) for number in numbers}


KEY = "0123456789abcdef+secret"
FLU, COLD = "flu[organism]", "cold[organism]"
SOURCE = {"type": "ncbi", "email": "someone@example.org", "queries": {"FLU": FLU, "COLD": COLD}}


def misbehaving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Eutils]:
    """Yield the server; nothing of the client is replaced but the address in its environment."""
    with serving(Eutils({FLU: genomes("FL", 25), COLD: genomes("CO", 3)})) as server:
        monkeypatch.setenv("ESCALA_EUTILS_URL", server.url)
        monkeypatch.setenv("ESCALA_EUTILS_WAIT", "0")
        monkeypatch.setenv("NCBI_API_KEY", KEY)
        monkeypatch.setattr(download, "BATCH", 10)
        yield server


def fetched(tmp_path: Path, **changes: object) -> dict[str, dict[str, str]]:
    """Acquire, and return accession → sequence of each class."""
    source = {key: value for key, value in (SOURCE | changes).items() if value is not None}
    output = tmp_path / "sequences"
    acquire(source, ["FLU", "COLD"], output, tmp_path / "lock.tsv", tmp_path / "partial")
    result = {}
    for path in sorted(output.iterdir()):
        with open(path) as handle:
            records = list(SimpleFastaParser(handle))
        result[path.stem] = dict(records)
        assert len(result[path.stem]) == len(records), "an accession is there twice"
    return result
