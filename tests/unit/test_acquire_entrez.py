"""NCBI through the real client of Biopython, against a server on loopback that misbehaves as NCBI.

Nothing of the client is replaced: it is told the server's address by its environment variable.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest
from Bio import Entrez
from Bio.SeqIO.FastaIO import SimpleFastaParser

from escala.core.errors import InputError
from escala.data.genomes.acquire import acquire, download, eutils, inputs, search
from escala.data.genomes.acquire.lock import digest
from escala.data.genomes.acquire.queries import QUERIES
from tests.conftest import ROOT
from tests.eutils import (
    FETCH_FAULTS,
    LIST_FAULTS,
    SEARCH_FAULTS,
    Eutils,
    genome,
    genomes,
    serving,
)

KEY = "0123456789abcdef+secret"
FLU, COLD = "flu[organism]", "cold[organism]"
SOURCE = {
    "type": "ncbi",
    "email": "someone@example.org",
    "queries": {"FLU": FLU, "COLD": COLD},
}


@pytest.fixture
def ncbi(monkeypatch) -> Iterator[Eutils]:
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


def lock_of(records: dict[str, dict[str, str]], path: Path) -> Path:
    rows = [
        f"{name}\t{accession}\t{len(letters)}\t{digest(letters)}\n"
        for name, held in records.items()
        for accession, letters in held.items()
    ]
    path.write_text("".join(["class\taccession\tlength\tsha256\n", *rows]))
    return path


def test_every_record_arrives_once_sorted_and_named_by_accession(ncbi, tmp_path):
    ncbi.genomes[COLD]["CO000002.1"] = "acgtn" * 9
    result = fetched(tmp_path)
    assert result == {
        "FLU": ncbi.genomes[FLU],
        "COLD": ncbi.genomes[COLD] | {"CO000002.1": "ACGTN" * 9},
    }
    assert list(result["FLU"]) == sorted(ncbi.genomes[FLU])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock.tsv", "sequences"]
    lock = (tmp_path / "lock.tsv").read_text().splitlines()
    assert lock[1:26] == [
        f"FLU\t{name}\t{len(letters)}\t{digest(letters)}"
        for name, letters in sorted(ncbi.genomes[FLU].items())
    ]
    [search, _] = ncbi.of("search")
    assert search["term"] == FLU
    assert {(r["db"], r["email"], r["tool"], r["api_key"]) for r in ncbi.requests} == {
        ("nuccore", "someone@example.org", "escala", KEY)
    }
    repeated = len(ncbi.asked_for()) - 28
    assert repeated <= len(ncbi.of("fetch")) + 2, "the last of an answer, and one to follow it"


def test_without_a_key_none_is_sent_and_the_address_may_come_from_the_environment(
    ncbi, tmp_path, monkeypatch
):
    monkeypatch.delenv("NCBI_API_KEY")
    monkeypatch.setenv("MY_ADDRESS", "me@example.org")
    fetched(tmp_path, email="$MY_ADDRESS")
    assert all("api_key" not in r and r["email"] == "me@example.org" for r in ncbi.requests)


def test_no_record_is_lost_whatever_goes_wrong_in_one_download(ncbi, tmp_path, capsys):
    prefixes = ["FA", "FB", "FC", "FD"]
    ncbi.genomes = {f"query {prefix}": genomes(prefix, 105) for prefix in prefixes}
    ncbi.plan = {
        # A list that is spoilt is searched for again.
        "search": [f for faults in pairs(SEARCH_FAULTS) for f in (*faults, None, None, None)],
        "list": [f for faults in pairs(LIST_FAULTS) for f in (*faults, None)],
        "fetch": [f for fault in FETCH_FAULTS for f in (fault, None)],
    }
    queries = {prefix: f"query {prefix}" for prefix in prefixes}
    acquire(SOURCE | {"queries": queries}, prefixes, tmp_path / "out", tmp_path / "lock.tsv")
    received = {}
    for prefix in prefixes:
        with open(tmp_path / "out" / f"{prefix}.fasta") as handle:
            received[f"query {prefix}"] = list(SimpleFastaParser(handle))
    injected = {
        kind: [r["fault"] for r in ncbi.of(kind) if r["fault"]]
        for kind in ("search", "list", "fetch")
    }
    assert KEY not in "".join(capsys.readouterr())
    assert injected == {"search": SEARCH_FAULTS, "list": LIST_FAULTS, "fetch": FETCH_FAULTS}
    assert received == {query: sorted(held.items()) for query, held in ncbi.genomes.items()}


def pairs(faults: list[str]) -> list[tuple[str, str]]:
    return list(zip(faults[::2], faults[1::2], strict=True))


@pytest.mark.parametrize("fault", FETCH_FAULTS)
def test_a_fault_of_a_fetch_is_survived_alone_and_with_a_single_record(ncbi, tmp_path, fault):
    ncbi.genomes[COLD] = genomes("CO", 1)
    ncbi.plan = {"fetch": [fault, None, fault, None, None, fault, fault]}
    assert fetched(tmp_path) == {"FLU": ncbi.genomes[FLU], "COLD": ncbi.genomes[COLD]}


@pytest.mark.parametrize("fault", LIST_FAULTS)
def test_after_a_fault_of_a_list_the_search_is_made_again(ncbi, tmp_path, fault):
    ncbi.plan = {"list": [fault, fault]}
    assert len(fetched(tmp_path)["FLU"]) == 25
    assert [r["WebEnv"] for r in ncbi.of("list")] == ["MCID_1", "MCID_2", "MCID_3", "MCID_4"]


def test_a_stalled_answer_is_given_up_without_a_timeout_for_other_sockets(
    ncbi, tmp_path, monkeypatch
):
    monkeypatch.setattr(eutils, "TIMEOUT_SECONDS", 0.3)
    ncbi.hold_at = 1
    assert len(fetched(tmp_path)["FLU"]) == 25
    assert ncbi.held.is_set()


def test_a_lasting_failure_ends_after_bounded_tries(ncbi, tmp_path, capfd):
    ncbi.plan = {"fetch": ["429"] * 99}
    with pytest.raises(InputError, match=r"source\.queries\.FLU.*HTTP 429.*0 verified") as refused:
        fetched(tmp_path)
    assert len(ncbi.of("fetch")) == eutils.MAX_TRIES
    assert refused.value.__suppress_context__
    assert KEY not in str(refused.value) + "".join(capfd.readouterr())
    ncbi.plan = {"search": ["503"] * 99}
    ncbi.requests.clear()
    with pytest.raises(InputError, match="HTTP 503"):
        fetched(tmp_path)
    assert len(ncbi.requests) == eutils.MAX_TRIES


def test_an_unknown_error_under_400_is_retried_and_no_record_is_called_absent(ncbi, tmp_path):
    ncbi.plan = {"fetch": ["unknown error under 400"] * 99}
    with pytest.raises(
        InputError, match=r"no usable answer \(the server answers HTTP 400: No conn"
    ):
        fetched(tmp_path)
    assert len(ncbi.of("fetch")) == eutils.MAX_TRIES
    ncbi.plan, ncbi.requests = {"fetch": ["unknown error under 400"]}, []
    assert fetched(tmp_path)["FLU"] == ncbi.genomes[FLU]


@pytest.mark.parametrize("address", ["localhost:8000", "ftp://localhost", "http://[::1", "http:"])
def test_an_address_that_is_not_http_is_refused_by_its_variable(
    ncbi, tmp_path, monkeypatch, address
):
    monkeypatch.setenv("ESCALA_EUTILS_URL", address)
    with pytest.raises(InputError, match=r"^ESCALA_EUTILS_URL: .*is no HTTP address"):
        fetched(tmp_path)


def test_no_match_is_told_apart_from_failure(ncbi, tmp_path, capfd):
    with pytest.raises(InputError, match=r"source\.queries\.COLD: 'mumps'.*no record matches"):
        fetched(tmp_path, queries={"FLU": FLU, "COLD": "mumps"})
    assert "No items found" in capfd.readouterr().err
    assert len(ncbi.of("search")) == 2
    assert not (tmp_path / "lock.tsv").exists()


@pytest.mark.parametrize("refuse", [True, False])
def test_records_that_do_not_exist_are_named_and_all_others_fetched(ncbi, tmp_path, refuse):
    ncbi.gone = {"FL000007.1", "FL000019.1"}
    ncbi.refuse_gone = refuse
    with pytest.raises(InputError, match=r"FL000007\.1, FL000019\.1: NCBI has no such record"):
        fetched(tmp_path)
    ncbi.gone, ncbi.requests = set(), []
    assert fetched(tmp_path)["FLU"] == ncbi.genomes[FLU]
    assert {one for one in ncbi.asked_for() if one.startswith("FL")} == {
        "FL000007.1",
        "FL000019.1",
    }


def test_a_key_that_ncbi_does_not_accept_is_said_without_showing_it(ncbi, tmp_path, monkeypatch):
    answer = json.dumps({"error": "API key invalid", "api-key": KEY, "count": "1"})
    failure = eutils.reported(answer)
    assert isinstance(failure, eutils.PermanentFailure)
    assert "the key in NCBI_API_KEY" in str(failure)
    assert KEY not in eutils.excerpt(f"api_key=0123456789abcdef%2Bsecret {answer}")
    assert "secret" not in eutils.excerpt(f"api_key=0123456789abcdef%2Bsecret {answer}")


def test_more_than_one_list_holds_are_listed_without_high_positions(ncbi, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "BATCH", 900)
    monkeypatch.setattr(search, "PAGE", 999)
    many = {f"MA{n:06d}.2": genome(n, 20 + n % 50) for n in range(3100)}
    days = itertools.cycle(date(1999, 1, 1) + timedelta(100 * n) for n in range(90))
    # 1200 of them are of one day: these are divided by length.
    ncbi.days = {name: next(days) for name in itertools.islice(many, 1900)}
    ncbi.genomes[FLU] = many
    assert fetched(tmp_path)["FLU"] == many
    assert {r["retstart"] for r in ncbi.of("list")} == {"0"}
    assert max(int(r["retmax"]) for r in ncbi.of("list")) <= 999
    assert any("[SLEN]" in r["term"] for r in ncbi.of("search"))
    first = fetched(tmp_path, max_records={"FLU": 1050})["FLU"]
    assert len(first) == 1050
    latest = max(ncbi.days[name] for name in first)
    older = {name for name, day in ncbi.days.items() if day < latest}
    assert older - first.keys() == set() or len(older) > 1050


def test_too_many_of_one_day_and_length_are_refused(ncbi, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "PAGE", 20)
    with pytest.raises(InputError, match="25 records of one day and length match"):
        fetched(tmp_path)


def test_accessions_come_from_a_list_or_a_file_with_or_without_version(ncbi, tmp_path):
    listing = tmp_path / "cold.txt"
    listing.write_text("CO000002\n\nCO000000.1\n", encoding="utf-8-sig")
    source = {"queries": None, "accessions": {"FLU": ["FL000003"], "COLD": str(listing)}}
    assert fetched(tmp_path, **source) == {
        "FLU": {"FL000003.1": ncbi.genomes[FLU]["FL000003.1"]},
        "COLD": {name: ncbi.genomes[COLD][name] for name in ("CO000000.1", "CO000002.1")},
    }
    assert not ncbi.of("search")
    assert inputs(SOURCE | source, ["FLU", "COLD"]) == [listing]


@pytest.mark.parametrize(
    "form", ["6T0V_R", "6t0v_R", "pdb|6T0V|R", "6t0v|R", "6T0V:R", "gi|5|pdb|6T0V|R"]
)
def test_an_accession_is_matched_in_each_form_that_ncbi_gives_it(ncbi, tmp_path, form):
    """NCBI has `pdb|6T0V|R` in FASTA where its lists have 6T0V_R; case tells only chains apart."""
    chains = {"6T0V_R": genome(70), "6T0V_r": genome(71)}
    ncbi.genomes[FLU] |= chains
    listing = tmp_path / "flu.txt"
    listing.write_text(f"fl000003\n{form}\n6t0v_r\nref|FL000004.1|\nFl000005.1\n")
    ncbi.plan = {"fetch": ["cut in the last record", None, "a record missing"]}
    result = fetched(tmp_path, accessions={"FLU": str(listing)})
    names = ["6T0V_R", "6T0V_r", "FL000003.1", "FL000004.1", "FL000005.1"]
    assert result["FLU"] == {name: ncbi.genomes[FLU][name] for name in names}


def test_a_query_gives_chains_and_leaves_out_masters_that_have_no_sequence(ncbi, tmp_path, capfd):
    masters = dict.fromkeys(["ABCD00000000.1", "NZ_JABCDE010000000.1"], genome(1))
    ncbi.genomes[FLU] |= {"6T0V_R": genome(70)} | masters
    ncbi.gone, ncbi.refuse_gone = set(masters), True
    result = fetched(tmp_path)["FLU"]
    assert "6T0V_R" in result and len(result) == 26
    said = capfd.readouterr().err
    assert all(name in said for name in masters) and "has no sequence of its own" in said


def test_all_that_cannot_be_had_is_named_in_one_message_with_reason_and_line(ncbi, tmp_path):
    ncbi.genomes[FLU] |= {"FL000090.1": "MKTLLQEF" * 9, "FL000091.2": genome(91)}
    ncbi.instead = {"FL000092.1": "FL000091.2"}
    wrong = {
        "FL000099.1": "no such record",
        "abcd01000000": "master record of a WGS",
        "NP_828851.1": "is a protein",
        "QHD43416.1": "is a protein",
        "P0DTC2": "is a protein of UniProt",
        "GCF_009858895.2": "is an assembly",
        "EPI_ISL_402124": "is of GISAID or Ensembl",
        "12345": "is a GI number",
        "6T0V": "name the chain",
        "SRR10971381": "set of reads",
        "FL000090.1": "its letters are no nucleotides",
        "FL000092.1": "gives FL000091.2 in its place",
    }
    (tmp_path / "flu.txt").write_text("FL000001\n" + "".join(f"{name}\n" for name in wrong))
    with pytest.raises(InputError) as refused:
        accessions = {"FLU": str(tmp_path / "flu.txt"), "COLD": ["co000001", "CO000009"]}
        fetched(tmp_path, accessions=accessions)
    said = str(refused.value)
    for line, (accession, reason) in enumerate(wrong.items(), start=2):
        found = re.search(rf"{accession.upper()} \(line {line}\)[^;:]*: ([^;]*)", said)
        assert found and reason in found[1], (accession, said)
    assert "source.accessions.COLD: CO000009 (entry 2): NCBI has no such record" in said
    assert not {"NP_828851.1", "12345", "ABCD01000000"} & set(ncbi.asked_for())
    ncbi.requests.clear()
    fetched(tmp_path, accessions={"FLU": ["FL000001"], "COLD": ["CO000001.1"]})
    assert not ncbi.requests, "what was received is kept"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("", "no accession"),
        ("CO000000.1\nCO000000.1\n", r"'CO000000\.1' \(line 1\), .*is listed twice"),
        ("\nCO000000.1 CO000001.1\n#\n", r"'CO000000.1 CO000001.1' \(line 2\), '#' \(line 3\)"),
        ("CO000000.1\nCO000000\n", "with and without version"),
        ("CO000000.1\n\ngb|co000000.1|\n", r"'gb\|co000000\.1\|' \(line 3\) is listed twice"),
        ("6T0V_R\npdb|6t0v|R\n", "is listed twice"),
    ],
)
def test_a_list_of_accessions_that_cannot_be_meant_is_refused(ncbi, tmp_path, lines, reason):
    (tmp_path / "cold.txt").write_text(lines)
    with pytest.raises(InputError, match=reason):
        fetched(tmp_path, accessions={"COLD": str(tmp_path / "cold.txt")})
    with pytest.raises(InputError, match="no such file"):
        fetched(tmp_path, accessions={"COLD": str(tmp_path / "none.txt")})


def test_a_lock_gives_the_same_bytes_whatever_is_new(ncbi, tmp_path, monkeypatch):
    before = fetched(tmp_path)
    sequences = {p.name: p.read_bytes() for p in (tmp_path / "sequences").iterdir()}
    lock = tmp_path / "kept.tsv"
    lock.write_bytes((tmp_path / "lock.tsv").read_bytes())
    ncbi.genomes[FLU]["AA000001.1"] = genome(999)
    assert fetched(tmp_path) != before
    ncbi.requests.clear()
    assert fetched(tmp_path, lock=str(lock)) == before
    assert {p.name: p.read_bytes() for p in (tmp_path / "sequences").iterdir()} == sequences
    assert (tmp_path / "lock.tsv").read_bytes() == lock.read_bytes()
    assert {r["kind"] for r in ncbi.requests} == {"fetch"}
    assert max(Counter(ncbi.asked_for()).values()) == 1, "a digest makes the last record certain"
    assert inputs(SOURCE | {"lock": str(lock)}, ["FLU", "COLD"]) == [lock]


def test_a_record_changed_or_withdrawn_since_the_lock_is_named(ncbi, tmp_path):
    lock = lock_of({"FLU": ncbi.genomes[FLU], "COLD": ncbi.genomes[COLD]}, tmp_path / "kept.tsv")
    ncbi.genomes[FLU] = ncbi.genomes[FLU] | {"FL000004.1": genome(777)}
    with pytest.raises(InputError, match=r"source\.lock.*FL000004\.1: the record has changed"):
        fetched(tmp_path, lock=str(lock))
    ncbi.gone = {"FL000004.1"}
    with pytest.raises(InputError, match=r"FL000004\.1: NCBI has no such record \(any more\)"):
        fetched(tmp_path, lock=str(lock))


def test_what_is_kept_is_believed_only_if_it_is_what_was_written(ncbi, tmp_path):
    ncbi.plan = {"fetch": [None, None, *["503"] * 99]}
    with pytest.raises(InputError, match="verified records are kept"):
        fetched(tmp_path)
    first, second = sorted((tmp_path / "partial").iterdir())
    damaged = {line[1:] for line in first.read_text().split() if line.startswith(">")}
    whole = {line[1:] for line in second.read_text().split() if line.startswith(">")}
    first.write_text(first.read_text().replace("A", "C", 1))
    (tmp_path / "partial" / f".{first.name}.k1ll3d__").mkdir()
    ncbi.plan, ncbi.requests = {}, []
    assert fetched(tmp_path)["FLU"] == ncbi.genomes[FLU]
    assert damaged <= set(ncbi.asked_for())
    assert not whole & set(ncbi.asked_for())


def test_a_folder_for_a_download_that_holds_something_else_is_refused_and_left_alone(
    ncbi, tmp_path
):
    kept = tmp_path / "partial" / "thesis" / "chapter.tex"
    kept.parent.mkdir(parents=True)
    kept.write_text("years of work")
    with pytest.raises(InputError, match=r"partial: 'thesis': is not of a download"):
        fetched(tmp_path)
    assert not ncbi.requests
    simulated = {"type": "simulated", "seed": 1, "records": {"FLU": 2}}
    lock = tmp_path / "lock.tsv"
    acquire(simulated, ["FLU"], tmp_path / "out", lock, tmp_path / "partial")
    assert kept.read_text() == "years of work"


def test_classes_without_a_query_have_the_one_that_comes_with_escala(ncbi, tmp_path, monkeypatch):
    ncbi.genomes = {QUERIES["MERS"]: genomes("ME", 2), "mine": genomes("SA", 2)}
    source = {"type": "ncbi", "email": "someone@example.org", "queries": {"SARS": "mine"}}
    acquire(source, ["MERS", "SARS"], tmp_path / "out", tmp_path / "lock.tsv")
    assert (tmp_path / "out" / "MERS.fasta").read_text().count(">ME") == 2
    assert (tmp_path / "out" / "SARS.fasta").read_text().count(">SA") == 2
    requests = len(ncbi.requests)
    with pytest.raises(InputError, match=r"source\.queries\.MUMPS.*neither a query nor"):
        acquire(source, ["MERS", "MUMPS"], tmp_path / "out", tmp_path / "lock.tsv")
    assert len(ncbi.requests) == requests


@pytest.mark.parametrize(("key", "least"), [(KEY, 0.1), (None, 0.37)])
def test_every_try_keeps_the_rate_of_ncbi(ncbi, monkeypatch, key, least):
    if key is None:
        monkeypatch.delenv("NCBI_API_KEY")
    client = eutils.Client("someone@example.org")
    monkeypatch.setattr(client, "_is_ncbi", True)
    slots, opened = [], eutils.urlopen

    def noting(request, timeout):
        slots.append(Entrez._open.previous)
        return opened(request, timeout=timeout)

    monkeypatch.setattr(eutils, "urlopen", noting)
    ncbi.plan = {"search": ["429", "500", "reset", None]}
    client.with_retries(lambda: client.ask(Entrez.esearch, term=FLU, retmode="json"))
    assert len(slots) == 4
    assert all(later - earlier >= least - 1e-6 for earlier, later in itertools.pairwise(slots))


def test_downloads_from_ncbi_take_turns(ncbi, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("ESCALA_EUTILS_URL", "")
    code = (
        "from escala.data.genomes.acquire.eutils import Client\n"
        "with Client('a@b.c').ncbi_lock(): print('in', flush=True); input()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    try:
        assert other.stdout.readline() == b"in\n"
        second = subprocess.Popen(
            [sys.executable, "-c", code],
            **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
            cwd=ROOT,
        )
        assert b"waiting for another download" in second.stderr.readline()
        other.communicate(b"\n")
        assert second.stdout.readline() == b"in\n"
        second.communicate(b"\n")
    finally:
        other.kill()


def script(tmp_path: Path, **changes: object) -> subprocess.Popen:
    source = SOURCE | changes
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "scripts.acquire", "--source", json.dumps(source)),
            *("--classes", "FLU", "COLD", "--output", tmp_path / "sequences"),
            *("--lock", tmp_path / "lock.tsv", "--partial", tmp_path / "partial"),
        ],
        cwd=ROOT,
        env=os.environ | {"ESCALA_STORE": str(tmp_path / "store")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_download_that_is_stopped_goes_on_where_it_was(ncbi, tmp_path, end):
    ncbi.genomes[FLU] = genomes("FL", 1100)
    ncbi.hold_at = 4
    process = script(tmp_path)
    assert ncbi.held.wait(60)
    process.send_signal(end)
    process.communicate(timeout=60)
    assert process.returncode
    assert not (tmp_path / "lock.tsv").exists()
    verified = {
        line[1:].strip()
        for path in (tmp_path / "partial").glob("*.fasta")
        for line in path.read_text().splitlines()
        if line.startswith(">")
    }
    assert len(verified) > 590
    ncbi.released.set()
    ncbi.hold_at, ncbi.requests = None, []
    process = script(tmp_path)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "FLU: 1100 records" in output
    assert not verified & set(ncbi.asked_for())
    assert set(ncbi.asked_for()) == (ncbi.genomes[FLU] | ncbi.genomes[COLD]).keys() - verified
    assert not (tmp_path / "partial").exists()
    with open(tmp_path / "sequences" / "FLU.fasta") as handle:
        assert dict(SimpleFastaParser(handle)) == ncbi.genomes[FLU]


def test_the_key_is_shown_and_written_nowhere(ncbi, tmp_path):
    """While a real process downloads, fails in every way, and is done."""
    secret = KEY.partition("+")[2]
    ncbi.hold_at = 1
    process = script(tmp_path)
    assert ncbi.held.wait(60)
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:
            continue
    assert any(b"scripts.acquire" in line for line in lines)
    assert not any(secret.encode() in line for line in lines)
    ncbi.released.set()
    said = [process.communicate(timeout=60)]
    assert process.returncode == 0
    for plan in (
        {"fetch": ["rate limit under 200", "reset", "cut", "no IDs under 400", *["429"] * 99]},
        {"search": ["rate limit under 200"] * 99},
    ):
        ncbi.plan, ncbi.requests = plan, []
        process = script(tmp_path, max_records={"FLU": 3 + len(said)})
        said.append(process.communicate(timeout=60))
        assert process.returncode == 2
        assert {r["api_key"] for r in ncbi.requests} == {KEY}
    assert "HTTP 429" in said[1][1]
    assert not any(secret in text for pair in said for text in pair)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("store" in path.parts for path in files)
    assert not any(secret.encode() in path.read_bytes() for path in files)
