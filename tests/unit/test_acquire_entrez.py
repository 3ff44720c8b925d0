"""Queries to NCBI, whatever goes wrong in its answers."""

from __future__ import annotations

import itertools
import json
from datetime import date, timedelta

import pytest
from Bio.SeqIO.FastaIO import SimpleFastaParser

from escala.core.errors import InputError
from escala.data.genomes.acquire import acquire, download, entrez, eutils
from escala.data.genomes.acquire.files import digest
from escala.data.genomes.acquire.wanted import QUERIES
from tests.eutils import (
    COLD,
    FETCH_FAULTS,
    FLU,
    KEY,
    LIST_FAULTS,
    SEARCH_FAULTS,
    SOURCE,
    fetched,
    genome,
    genomes,
    misbehaving,
)

ncbi = pytest.fixture(misbehaving)


def test_every_record_arrives_once_sorted_and_named_by_accession(ncbi, tmp_path):
    ncbi.genomes[COLD]["CO000002.1"] = "acgtn" * 9
    result, cold = fetched(tmp_path), ncbi.genomes[COLD] | {"CO000002.1": "ACGTN" * 9}
    assert result == {"FLU": ncbi.genomes[FLU], "COLD": cold}
    assert list(result["FLU"]) == sorted(ncbi.genomes[FLU])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock.tsv", "sequences"]
    name, letters = min(ncbi.genomes[FLU].items())
    lock = (tmp_path / "lock.tsv").read_text().splitlines()
    assert lock[1] == f"FLU\t{name}\t{len(letters)}\t{digest(letters)}" and len(lock) == 1 + 28
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
    # A list that is spoilt is searched for again.
    gaps = {"search": (2, 3), "list": (2, 1), "fetch": (1, 1)}
    faults = {"search": SEARCH_FAULTS, "list": LIST_FAULTS, "fetch": FETCH_FAULTS}
    ncbi.plan = {
        kind: [
            fault
            for start in range(0, len(faults[kind]), together)
            for fault in (*faults[kind][start : start + together], *[None] * well)
        ]
        for kind, (together, well) in gaps.items()
    }
    queries = {prefix: f"query {prefix}" for prefix in prefixes}
    acquire(SOURCE | {"queries": queries}, prefixes, tmp_path / "out", tmp_path / "lock.tsv")
    received = {}
    for prefix in prefixes:
        with open(tmp_path / "out" / f"{prefix}.fasta") as handle:
            received[f"query {prefix}"] = list(SimpleFastaParser(handle))
    assert KEY not in "".join(capsys.readouterr())
    injected = {kind: [r["fault"] for r in ncbi.of(kind) if r["fault"]] for kind in faults}
    assert injected == faults
    assert received == {query: sorted(held.items()) for query, held in ncbi.genomes.items()}


@pytest.mark.parametrize("fault", ["no IDs under 400", "cut in the last record", "a record twice"])
def test_a_fault_of_a_fetch_is_survived_alone_and_with_a_single_record(ncbi, tmp_path, fault):
    ncbi.genomes[COLD] = genomes("CO", 1)
    ncbi.plan = {"fetch": [fault, None, fault, None, None, fault, fault]}
    assert fetched(tmp_path) == {"FLU": ncbi.genomes[FLU], "COLD": ncbi.genomes[COLD]}


@pytest.mark.parametrize("fault", ["expired", "an accession twice"])
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


@pytest.mark.parametrize(
    ("kind", "fault", "message"),
    [
        ("fetch", "429", r"source\.queries\.FLU.*HTTP 429.*0 verified"),
        ("search", "503", "HTTP 503"),
        # No record is called absent.
        ("fetch", "unknown error under 400", r"no usable answer \(the server answers HTTP 400: No"),
    ],
)
def test_a_lasting_failure_ends_after_bounded_tries(ncbi, tmp_path, capfd, kind, fault, message):
    ncbi.plan = {kind: [fault] * 99}
    with pytest.raises(InputError, match=message) as refused:
        fetched(tmp_path)
    assert len(ncbi.of(kind)) == eutils.MAX_TRIES
    assert refused.value.__suppress_context__
    assert KEY not in str(refused.value) + "".join(capfd.readouterr())
    ncbi.plan, ncbi.requests = {kind: [fault]}, []
    assert fetched(tmp_path)["FLU"] == ncbi.genomes[FLU]


@pytest.mark.parametrize("address", ["localhost:8000", "ftp://localhost", "http://[::1"])
def test_an_address_that_is_not_http_is_refused_by_its_variable(
    ncbi, tmp_path, monkeypatch, address
):
    monkeypatch.setenv("ESCALA_EUTILS_URL", address)
    with pytest.raises(InputError, match=r"^ESCALA_EUTILS_URL: .*is not an HTTP address"):
        fetched(tmp_path)


def test_no_match_is_told_apart_from_failure(ncbi, tmp_path, capfd):
    with pytest.raises(InputError, match=r"source\.queries\.COLD: 'mumps'.*no record matches"):
        fetched(tmp_path, queries={"FLU": FLU, "COLD": "mumps"})
    assert "No items found" in capfd.readouterr().err
    assert len(ncbi.of("search")) == 2
    assert not (tmp_path / "lock.tsv").exists()


@pytest.mark.parametrize("refuse", [True, False])
def test_records_that_do_not_exist_are_named_and_all_others_fetched(ncbi, tmp_path, refuse):
    ncbi.gone = gone = {"FL000007.1", "FL000019.1"}
    ncbi.refuse_gone = refuse
    with pytest.raises(InputError, match=r"FL000007\.1, FL000019\.1: NCBI has no such record"):
        fetched(tmp_path)
    ncbi.gone, ncbi.requests = set(), []
    assert fetched(tmp_path)["FLU"] == ncbi.genomes[FLU]
    assert {one for one in ncbi.asked_for() if one.startswith("FL")} == gone


def test_a_key_that_ncbi_does_not_accept_is_said_without_showing_it(monkeypatch):
    monkeypatch.setenv("NCBI_API_KEY", KEY)
    answer = json.dumps({"error": "API key invalid", "api-key": KEY, "count": "1"})
    failure = eutils.failure_of(answer)
    assert isinstance(failure, eutils.PermanentFailure)
    assert "the key in NCBI_API_KEY" in str(failure)
    assert "secret" not in eutils.excerpt(f"api_key=0123456789abcdef%2Bsecret {answer}")


def test_more_than_one_list_holds_are_listed_without_high_positions(ncbi, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "BATCH", 900)
    monkeypatch.setattr(entrez, "PAGE", 999)
    many = {f"MA{n:06d}.2": genome(n, 20 + n % 50) for n in range(3100)}
    days = itertools.cycle(date(1999, 1, 1) + timedelta(100 * n) for n in range(90))
    # 1200 of them are of one day: these are divided by length.
    ncbi.days = {name: next(days) for name in itertools.islice(many, 1900)}
    ncbi.genomes[FLU] = many
    assert fetched(tmp_path)["FLU"] == many
    assert {r["retstart"] for r in ncbi.of("list")} == {"0"}
    assert max(int(r["retmax"]) for r in ncbi.of("list")) <= 999
    assert any("[SLEN]" in r["term"] for r in ncbi.of("search"))
    assert len(fetched(tmp_path, max_records={"FLU": 1050})["FLU"]) == 1050
    monkeypatch.setattr(entrez, "PAGE", 20)
    ncbi.genomes[FLU] = genomes("FL", 25)
    with pytest.raises(InputError, match="25 records of one day and length match"):
        fetched(tmp_path)


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
