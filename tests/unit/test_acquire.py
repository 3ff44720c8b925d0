"""Genomes are acquired: accessions, files, simulation, interruptions, and the lock of downloads."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import itertools
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from Bio import Entrez
from Bio.SeqIO.FastaIO import SimpleFastaParser
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.core.errors import InputError
from escala.data import nucleotides as fasta
from escala.data.genomes.acquire import acquire, eutils, inputs, simulate
from escala.data.genomes.acquire.files import read_lock
from escala.data.nucleotides import nucleotides, records, write_record
from escala.data.paths import expanded
from tests.conftest import ROOT
from tests.eutils import COLD, FLU, KEY, SOURCE, fetched, genome, misbehaving
from tests.eutils import genomes as made

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


TWO_LINES = b">A1 first\nACGT\n>A2\nacgtn\n"


@pytest.fixture
def genomes(tmp_path: Path) -> Path:
    folder = tmp_path / "genomes"
    folder.mkdir()
    (folder / "X.fasta").write_bytes(TWO_LINES)
    (folder / "Y.fa").write_bytes(b">B1\nAC\nGT\n")
    return folder


def taken(genomes: Path, classes: tuple[str, ...] = ("X", "Y")) -> Path:
    output = genomes.parent / "sequences"
    source = {"type": "files", "folder": str(genomes)}
    acquire(source, list(classes), output, genomes.parent / "lock.tsv")
    return output


@pytest.mark.parametrize(
    ("suffix", "packed"),
    [
        *((suffix, bytes) for suffix in (".fasta", ".fa", ".fna", ".fas", ".ffn")),
        *((".fa.gz", gzip.compress), (".FASTA.bz2", bz2.compress), (".Fsa.XZ", lzma.compress)),
    ],
)
def test_every_permitted_name_is_read(genomes, suffix, packed):
    (genomes / "X.fasta").unlink()
    (genomes / "._X.fasta").write_bytes(b"\0\5\x16\7Mac OS X")
    (genomes / f"X{suffix}").write_bytes(packed(TWO_LINES))
    output = taken(genomes, ("X",))
    assert [path.name for path in output.iterdir()] == ["X.fasta"]
    assert list(records(output / "X.fasta")) == [("A1 first", "ACGT"), ("A2", "acgtn")]


def test_the_folder_may_be_named_by_a_variable(genomes, monkeypatch):
    monkeypatch.setenv("SOME_GENOMES", str(genomes.parent))
    source = {"type": "files", "folder": "${SOME_GENOMES}/genomes"}
    acquire(source, ["X"], genomes.parent / "out", genomes.parent / "lock.tsv")
    assert expanded("$SOME_GENOMES/a$$b", "key") == f"{genomes.parent}/a$b"
    monkeypatch.setenv("NO_GENOMES", "")
    with pytest.raises(InputError, match=r"source\.folder.*NO_GENOMES is not set"):
        taken(Path("$NO_GENOMES"))


def test_a_class_without_a_file_or_with_several_is_refused(genomes):
    with pytest.raises(InputError, match="holds no file for the class Z"):
        taken(genomes, classes=("X", "Z"))
    (genomes / "X.fna.gz").write_bytes(gzip.compress(TWO_LINES))
    with pytest.raises(InputError, match=r"X\.fasta.*X\.fna\.gz.*several files for the class X"):
        taken(genomes)


PACKED = gzip.compress(b"".join(b">A%d\nACGT\n" % n for n in range(99)), mtime=0)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("X.fasta", b"\n \n", "is empty"),
        ("X.fa.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("X.fasta", b"accession,sequence\nA1,ACGT\n>A2\nACGT\n", "is not FASTA"),
        ("X.fa.gz", PACKED[:-20], "packed, and damaged or truncated"),
        ("X.fa.gz", PACKED[:-8] + b"\0\0\0\0" + PACKED[-4:], "packed, and damaged or truncated"),
        ("X.fasta", TWO_LINES + b">A1\nACGT\n", "two records have this accession\\. Remedy"),
        ("X.fasta", TWO_LINES + b">A1 again\nACGT\n", "which ends at the first space: >A1 again"),
        ("X.fasta", TWO_LINES + b">A3\n--..-\n", "holds gaps only"),
        ("X.fasta", TWO_LINES + b"> \nACGT\n", "record 3 has no accession"),
        ("X.fasta", TWO_LINES + b">=cmd|x!A1\nACGT\n", "begins with =: a spreadsheet"),
        ("X.fasta", TWO_LINES + b">+1 a\nACGT\n", "begins with \\+: a spreadsheet"),
        ("X.fasta", TWO_LINES + b">P1\nMKVLAAGLLALLAACEEF\n", "not nucleotides"),
        ("X.fasta", TWO_LINES + b">A3\n", "the record has no sequence"),
    ],
)
def test_a_bad_file_is_refused_by_name_and_nothing_is_left(genomes, name, data, reason):
    (genomes / "X.fasta").unlink()
    (genomes / name).write_bytes(data)
    with pytest.raises(InputError, match=reason) as refused:
        taken(genomes, ("X",))
    assert str(refused.value.where) == str(genomes / name)
    assert list(genomes.parent.iterdir()) == [genomes]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda: b">A1\n" + b"A" * 10_000_000, "'record 1': has more than 200,000 letters"),
        (lambda: b">A1\nACGT\n>A2" + b"A" * 10_000_000, "'record 2': has more than 200,000 le"),
        (lambda: b">A1\n" + b"ACGT\n" * 50_000, "'record 1': has more than 200,000 letters"),
        (lambda: b"".join(b">A%d\nAC\n" % n for n in range(5000)), "1001': is one more than the"),
    ],
    ids=["line", "header", "lines", "records"],
)
def test_a_bomb_is_refused_before_it_fills_the_memory(genomes, monkeypatch, content, reason):
    monkeypatch.setattr(fasta, "RECORD_LETTERS", 200_000)
    monkeypatch.setattr(fasta, "FILE_RECORDS", 1000)
    path = genomes / "X.fa.gz"
    path.write_bytes(gzip.compress(content(), 1))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=reason):
            list(records(path))
        assert tracemalloc.get_traced_memory()[1] < 20 * fasta.RECORD_LETTERS
    finally:
        tracemalloc.stop()


words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1).filter(
    lambda word: word[0] not in "=+-@＝＋－＠"
)


@given(
    genomes=st.dictionaries(words, st.text("ACGTNacgtn", max_size=200), min_size=1, max_size=5),
    newline=st.sampled_from(["\n", "\r\n"]),
    mark=st.booleans(),
)
def test_what_is_written_is_read_back(tmp_path_factory, genomes, newline, mark):
    text = io.StringIO()
    for accession, sequence in genomes.items():
        write_record(text, accession, sequence)
    path = tmp_path_factory.mktemp("fasta") / "any.fasta"
    encoding = "utf-8-sig" if mark else "utf-8"
    path.write_bytes(text.getvalue().replace("\n", newline).encode(encoding))
    assert list(records(path)) == list(genomes.items())


def test_gaps_of_an_alignment_are_no_letters_and_are_said(genomes, capsys):
    aligned = b">A1\n--ACGT..\n>A2\nAC--GTT-\n"
    (genomes / "X.fasta").write_bytes(aligned)
    taken(genomes, ("X",))
    assert "its 7 gaps, as of an alignment, are no letters" in capsys.readouterr().err
    plain = list(nucleotides(records(genomes / "X.fasta"), genomes / "X.fasta"))
    assert plain == [("A1", b"ACGT"), ("A2", b"ACGTT")]


CLASSES = ["COVID", "DENGUE", "EBOLA", "MERS", "SARS"]


def genomes_of(name: str, count: int, seed: int = 1) -> list[str]:
    made = simulate.simulate(name, count, seed, 0.5)
    return [letters.tobytes().decode() for _, letters in made]


def folder_of(tmp_path: Path, name: str, records: dict[str, int]) -> Path:
    source = {"type": "simulated", "seed": 1, "difficulty": 0.5, "records": records}
    acquire(source, list(records), tmp_path / name, tmp_path / f"{name}.tsv")
    return tmp_path / name


def genomes_job(source: dict, folder: Path, name: str) -> list[str]:
    """Return the job that acquires genomes into a folder of this name, and its files."""
    job = {"rule": "genomes", "source": source, "classes": [*source["records"]]}
    output = {"sequences": f"{folder}/{name}", "lock": f"{folder}/{name}.tsv"}
    partial = {"partial": f"{folder}/partial"}
    return [json.dumps(job | partial), json.dumps({"input": {"files": []}, "output": output})]


def test_the_same_seed_gives_the_same_bytes_in_any_process(tmp_path):
    source = {"type": "simulated", "seed": 3, "records": {"COVID": 3, "SARS": 2}}
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, ROOT / "scripts/step.py", *genomes_job(source, tmp_path, hash_seed)],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "COVID: 3 records" in done.stdout and "SARS: 2 records" in done.stdout
    for name in ("1/COVID.fasta", "1/SARS.fasta", "1/lineages.tsv", "1.tsv"):
        same = tmp_path / name.replace("1", "2", 1)
        assert (tmp_path / name).read_bytes() == same.read_bytes()
    assert genomes_of("COVID", 3, seed=3) != genomes_of("COVID", 3, seed=4)


def test_a_class_does_not_depend_on_the_others(tmp_path):
    alone = folder_of(tmp_path, "alone", {"SARS": 5})
    among = folder_of(tmp_path, "among", {"other": 2, "COVID": 3, "SARS": 5})
    assert (among / "SARS.fasta").read_bytes() == (alone / "SARS.fasta").read_bytes()


def test_files_hold_records_named_by_class_with_their_lineage(tmp_path):
    folder = folder_of(tmp_path, "made", {"DENGUE": 30, "MERS": 2})
    with open(folder / "DENGUE.fasta") as handle:
        accessions = [header for header, _ in SimpleFastaParser(handle)]
    assert accessions == [f"SIM_DENGUE_{n:06d}" for n in range(1, 31)]
    rows = pd.read_csv(folder / "lineages.tsv", sep="\t").groupby("class")
    assert rows.get_group("DENGUE")["accession"].tolist() == accessions
    lineages = {name: set(group["lineage"]) for name, group in rows}
    assert lineages == {"DENGUE": {"DENGUE.1", "DENGUE.2"}, "MERS": {"MERS.1", "MERS.2"}}


@pytest.mark.parametrize("name", [*CLASSES, "unheard-of"])
def test_roots_have_the_length_and_composition_of_their_class(name):
    profile = simulate.PROFILES.get(name, simulate.GENERIC)
    for difficulty in (0, 0.5, 1):
        root = simulate.root(name, 1, simulate.Difficulty.at(difficulty))
        assert len(root) == profile.length
        fractions = np.bincount(root, minlength=4) / len(root)
        assert fractions == pytest.approx(profile.composition, abs=0.015)


def test_sars_is_about_a_fifth_away_from_covid_and_far_from_the_rest():
    for difficulty, low, high in ((0, 0.21, 0.27), (0.5, 0.17, 0.23), (1, 0.13, 0.19)):
        level = simulate.Difficulty.at(difficulty)
        roots = {name: simulate.root(name, 1, level)[:10_000] for name in CLASSES}
        from_sars = {name: np.mean(roots[name] != roots["SARS"]) for name in CLASSES[:4]}
        assert low < from_sars.pop("COVID") < high
        assert min(from_sars.values()) > high + 0.05


def test_genomes_of_one_lineage_are_closer_than_those_of_two():
    found = []
    for lineage, letters in simulate.simulate("DENGUE", 30, 1, 0.5):
        text = letters.tobytes().decode().upper()
        found.append((lineage, {text[i : i + 16] for i in range(len(text) - 15)}))
    within, between = [], []
    for (one, a), (other, b) in itertools.combinations(found, 2):
        (within if one == other else between).append(len(a & b) / min(len(a), len(b)))
    assert np.mean(within) > np.mean(between) + 0.1
    assert np.quantile(within, 0.05) > np.median(between)


def test_genomes_look_as_if_a_sequencer_had_made_them():
    made = genomes_of("COVID", 60)
    letters = set("".join(made))
    assert set("acgtACGT") < letters <= set("acgtnrymkswACGTNRYMKSW")
    assert letters & set("RYMKSW")
    assert any("N" * 20 in genome for genome in made)
    # A tenth are in lower case, and of a twentieth a part is.
    lower, upper = (sum(map(case, made)) for case in (str.islower, str.isupper))
    assert upper > 40 and lower > 0 and lower + upper < 60
    assert len({len(genome) for genome in made}) > 30


@given(
    count=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
    difficulty=st.floats(0, 1),
    name=st.sampled_from(["DENGUE", "any-other_1"]),
)
@settings(max_examples=15, deadline=None)
def test_any_setting_gives_the_records_asked_for_in_whole_lineages(count, seed, difficulty, name):
    made = list(simulate.simulate(name, count, seed, difficulty))
    lineages = [lineage for lineage, _ in made]
    assert len(made) == count
    assert lineages == sorted(lineages)
    assert set(lineages) == set(range(lineages[-1] + 1))
    shortest = 0.3 * simulate.PROFILES.get(name, simulate.GENERIC).length
    assert all(len(letters) > shortest for _, letters in made)


def accessions(path: Path) -> set[str]:
    return {line[1:].strip() for line in path.read_text().splitlines() if line.startswith(">")}


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


def test_downloads_from_ncbi_take_turns(ncbi, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("ESCALA_EUTILS_URL", "")
    code = (
        "from escala.data.genomes.acquire.eutils import Client\n"
        "with Client('a@b.c').ncbi_lock(): print('in', flush=True); input()\n"
    )
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, **pipes, cwd=ROOT) as first:
        assert first.stdout.readline() == b"in\n"
        with subprocess.Popen(command, **pipes, cwd=ROOT) as second:
            assert b"waiting for another download" in second.stderr.readline()
            first.communicate(b"\n")
            assert second.stdout.readline() == b"in\n"
            second.communicate(b"\n")


def test_what_is_kept_is_believed_only_if_it_is_what_was_written(ncbi, tmp_path):
    ncbi.plan = {"fetch": [None, None, *["503"] * 99]}
    with pytest.raises(InputError, match="verified records are kept"):
        fetched(tmp_path)
    first, second = sorted((tmp_path / "partial").iterdir())
    damaged, whole = accessions(first), accessions(second)
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


def script(tmp_path: Path, **changes: object) -> subprocess.Popen:
    job = {
        "rule": "genomes",
        "source": SOURCE | changes,
        "classes": ["FLU", "COLD"],
        "partial": f"{tmp_path}/partial",
    }
    output = {"sequences": f"{tmp_path}/sequences", "lock": f"{tmp_path}/lock.tsv"}
    files = {"input": {"files": []}, "output": output}
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.step", json.dumps(job), json.dumps(files)],
        cwd=ROOT,
        env=os.environ | {"ESCALA_STORE": str(tmp_path / "store")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_download_that_is_stopped_goes_on_where_it_was(ncbi, tmp_path, end):
    ncbi.genomes[FLU] = made("FL", 1100)
    ncbi.hold_at = 4
    process = script(tmp_path)
    assert ncbi.held.wait(60)
    process.send_signal(end)
    process.communicate(timeout=60)
    assert process.returncode
    assert not (tmp_path / "lock.tsv").exists()
    verified = set().union(*map(accessions, (tmp_path / "partial").glob("*.fasta")))
    assert len(verified) > 590
    ncbi.released.set()
    ncbi.hold_at, ncbi.requests = None, []
    process = script(tmp_path)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "FLU: 1100 records" in output
    assert set(ncbi.asked_for()) == (ncbi.genomes[FLU] | ncbi.genomes[COLD]).keys() - verified
    assert not (tmp_path / "partial").exists()
    with open(tmp_path / "sequences" / "FLU.fasta") as handle:
        assert dict(SimpleFastaParser(handle)) == ncbi.genomes[FLU]


def test_the_key_is_shown_and_written_nowhere(ncbi, tmp_path):
    """While a real process downloads, fails, and is done."""
    secret = KEY.partition("+")[2]
    ncbi.hold_at = 1
    process = script(tmp_path)
    assert ncbi.held.wait(60)
    line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert b"scripts.step" in line and secret.encode() not in line
    ncbi.released.set()
    said = [process.communicate(timeout=60)]
    assert process.returncode == 0
    ncbi.plan, ncbi.requests = {"fetch": ["rate limit under 200", "reset", *["429"] * 99]}, []
    process = script(tmp_path, max_records={"FLU": 4})
    said.append(process.communicate(timeout=60))
    assert process.returncode == 2 and "HTTP 429" in said[1][1]
    assert {r["api_key"] for r in ncbi.requests} == {KEY}
    assert not any(secret in text for texts in said for text in texts)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("store" in path.parts for path in files)
    assert not any(secret.encode() in path.read_bytes() for path in files)


HEAD = "class\taccession\tlength\tsha256\n"
DIGEST = hashlib.sha256(b"ACGT").hexdigest()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not the head of a lock file"),
        ("class,accession,length,sha256\n", "is not the head of a lock file"),
        (HEAD, "the class has no row"),
        (f"{HEAD}Y\tA1\t4\t{DIGEST}\n", "the class has no row"),
        (f"{HEAD}X\tA1\t4\t{DIGEST}\nX\tA1\t4\t{DIGEST}\n", "'A1': is twice"),
        (f"{HEAD}X\tA1\t4\n", "'line 2': is not class, accession"),
        (f"{HEAD}X\t\t4\t{DIGEST}\n", "'line 2': is not class, accession"),
        (f"{HEAD}X\tA1\tfour\t{DIGEST}\n", "'line 2': is not class, accession"),
        (f"{HEAD}X\tA1\t4\t{DIGEST[1:]}\n", "'line 2': is not class, accession"),
    ],
)
def test_what_is_no_lock_file_is_refused(tmp_path, text, reason):
    path = tmp_path / "lock.tsv"
    path.write_text(text)
    with pytest.raises(InputError, match=reason):
        read_lock(path, ["X"])


@pytest.mark.parametrize(
    ("encoding", "reason"),
    [("utf-8-sig", None), ("utf-16", "'line 1'.*UTF-16"), ("latin1", "'line 3, column 2'.*LATIN1")],
)
def test_a_lock_of_another_editor_is_read_or_its_encoding_is_named(tmp_path, encoding, reason):
    path = tmp_path / "lock.tsv"
    path.write_bytes(f"{HEAD}X\tA1\t4\t{DIGEST}\nY\xe9\tA2\t4\t{DIGEST}\n".encode(encoding))
    if reason is None:
        assert [row.accession for row in read_lock(path, ["X"])["X"]] == ["A1"]
        return
    with pytest.raises(InputError, match=reason):
        read_lock(path, ["X"])


@pytest.fixture
def locked_genomes(tmp_path: Path) -> Path:
    folder = tmp_path / "genomes"
    folder.mkdir()
    (folder / "X.fasta").write_text(">A1 first\nACGT\n>A2\nacgtn\n")
    return folder


def test_files_must_be_those_of_the_lock(locked_genomes, monkeypatch):
    monkeypatch.setenv("MY_LOCKS", str(locked_genomes.parent))
    source = {"type": "files", "folder": str(locked_genomes)}
    output, lock = locked_genomes.parent / "out", locked_genomes.parent / "kept.tsv"
    acquire(source, ["X"], output, lock)
    source["lock"] = "$MY_LOCKS/kept.tsv"
    assert inputs(source, ["X"]) == [locked_genomes / "X.fasta", lock]
    acquire(source, ["X"], output, locked_genomes.parent / "lock.tsv")
    assert (locked_genomes.parent / "lock.tsv").read_bytes() == lock.read_bytes()
    before = (output / "X.fasta").read_bytes()
    for text, reason in (
        (">A1 first\nACGA\n>A2\nacgtn\n", "A1: of another length or digest"),
        (">A1 first\nACGT\n", "A2: missing"),
        (">A1 first\nACGT\n>A2\nacgtn\n>A3\nACGT\n", "A3: not in the lock"),
        (">A2\nacgtn\n>A1 first\nACGT\n", "'A1': A2 is in its place"),
    ):
        (locked_genomes / "X.fasta").write_text(text)
        with pytest.raises(InputError, match=reason):
            acquire(source, ["X"], output, locked_genomes.parent / "lock.tsv")
        assert (output / "X.fasta").read_bytes() == before


def test_a_lock_holds_no_sequence(locked_genomes):
    (locked_genomes / "X.fasta").write_text(">A1 a description\nACGTTGCAACGT\n")
    lock = locked_genomes.parent / "lock.tsv"
    acquire(
        {"type": "files", "folder": str(locked_genomes)}, ["X"], locked_genomes.parent / "out", lock
    )
    assert lock.read_text() == HEAD + "\t".join(
        ["X", "A1", "12", hashlib.sha256(b"ACGTTGCAACGT").hexdigest() + "\n"]
    )
