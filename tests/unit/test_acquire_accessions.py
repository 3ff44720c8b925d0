"""Records of NCBI by their accessions, from lists and from lock files."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from escala.core.errors import InputError
from escala.data.genomes.acquire import inputs
from tests.eutils import genome
from tests.ncbi import COLD, FLU, SOURCE, fetched, misbehaving

ncbi = pytest.fixture(misbehaving)


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


@pytest.mark.parametrize("form", ["6t0v_R", "6T0V:R", "gi|5|pdb|6T0V|R"])
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
        "P0DTC2": "is a protein of UniProt",
        "GCF_009858895.2": "is an assembly",
        "EPI_ISL_402124": "is of GISAID or Ensembl",
        "12345": "is a GI number",
        "6T0V": "name the chain",
        "SRR10971381": "set of reads",
        "FL000090.1": "its letters are not nucleotides",
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
        ("\nCO000000.1 CO000001.1\n#\n", r"'CO000000.1 CO000001.1' \(line 2\), '#' \(line 3\)"),
        ("CO000000.1\nCO000000\n", "with and without version"),
        ("CO000000.1\n\ngb|co000000.1|\n", r"'gb\|co000000\.1\|' \(line 3\) is listed twice"),
    ],
)
def test_a_list_of_accessions_that_cannot_be_meant_is_refused(ncbi, tmp_path, lines, reason):
    (tmp_path / "cold.txt").write_text(lines)
    with pytest.raises(InputError, match=reason):
        fetched(tmp_path, accessions={"COLD": str(tmp_path / "cold.txt")})
    with pytest.raises(InputError, match="no such file"):
        fetched(tmp_path, accessions={"COLD": str(tmp_path / "none.txt")})


def test_a_lock_gives_the_same_bytes_whatever_is_new(ncbi, tmp_path):
    before = fetched(tmp_path)
    sequences = {p.name: p.read_bytes() for p in (tmp_path / "sequences").iterdir()}
    lock = (tmp_path / "lock.tsv").rename(tmp_path / "kept.tsv")
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
    fetched(tmp_path)
    lock = (tmp_path / "lock.tsv").rename(tmp_path / "kept.tsv")
    ncbi.genomes[FLU] = ncbi.genomes[FLU] | {"FL000004.1": genome(777)}
    with pytest.raises(InputError, match=r"source\.lock.*FL000004\.1: the record has changed"):
        fetched(tmp_path, lock=str(lock))
    ncbi.gone = {"FL000004.1"}
    with pytest.raises(InputError, match=r"FL000004\.1: NCBI has no such record \(any more\)"):
        fetched(tmp_path, lock=str(lock))
