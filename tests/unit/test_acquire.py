"""Genomes are acquired: NCBI and whatever goes wrong in its answers, files, simulation, locks."""

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
import time
import tracemalloc
from collections import Counter
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from Bio import SeqIO
from Bio.SeqIO.FastaIO import SimpleFastaParser
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.core.errors import InputError
from escala.data import nucleotides as fasta
from escala.data.genomes.acquire import QUERIES, acquire, download, entrez, eutils, inputs, simulate
from escala.data.genomes.acquire.files import digest, match_records, read_lock
from escala.data.nucleotides import records, write_record
from tests.conftest import ROOT
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
    misbehaving,
)
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
        "12345": "is a GI number",
        "6T0V": "name the chain",
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
        ("CO000000.1\n\ngb|co000000.1|\n", r"'gb\|co000000\.1\|' \(line 3\) is listed twice"),
    ],
)
def test_a_list_of_accessions_that_cannot_be_meant_is_refused(ncbi, tmp_path, lines, reason):
    (tmp_path / "cold.txt").write_text(lines)
    with pytest.raises(InputError, match=reason):
        fetched(tmp_path, accessions={"COLD": str(tmp_path / "cold.txt")})


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


def taken(genomes: Path, classes: tuple[str, ...] = ("X", "Y"), **source: str) -> Path:
    output = genomes.parent / "sequences"
    source = {"type": "files", "folder": str(genomes)} | source
    acquire(source, list(classes), output, genomes.parent / "lock.tsv")
    return output


@pytest.mark.parametrize(
    ("suffix", "packed"),
    [
        *((".fasta", bytes), (".ffn", bytes)),
        *((".fa.gz", gzip.compress), (".FASTA.bz2", bz2.compress), (".Fsa.XZ", lzma.compress)),
    ],
)
def test_every_permitted_name_is_read(genomes, monkeypatch, suffix, packed):
    (genomes / "X.fasta").unlink()
    (genomes / "._X.fasta").write_bytes(b"\0\5\x16\7Mac OS X")
    (genomes / f"X{suffix}").write_bytes(packed(TWO_LINES))
    monkeypatch.setenv("SOME_GENOMES", str(genomes.parent))
    output = taken(genomes, ("X",), folder="${SOME_GENOMES}/genomes")
    assert [path.name for path in output.iterdir()] == ["X.fasta"]
    assert list(records(output / "X.fasta")) == [("A1 first", "ACGT"), ("A2", "acgtn")]


def test_a_class_without_a_file_or_with_several_is_refused(genomes, monkeypatch):
    monkeypatch.setenv("NO_GENOMES", "")
    (genomes / "Y.fna.gz").write_bytes(gzip.compress(TWO_LINES))
    for classes, folder, reason in (
        (("X", "Z"), genomes, "holds no file for the class Z"),
        (("X", "Y"), genomes, r"Y\.fa.*Y\.fna\.gz.*several files for the class Y"),
        (("X",), "$NO_GENOMES", r"source\.folder.*NO_GENOMES is not set"),
    ):
        with pytest.raises(InputError, match=reason):
            taken(genomes, classes, folder=str(folder))


def test_files_must_be_those_of_the_lock(genomes, monkeypatch):
    monkeypatch.setenv("MY_LOCKS", str(genomes.parent))
    output = taken(genomes, ("X",))
    lock = (genomes.parent / "lock.tsv").rename(genomes.parent / "kept.tsv")
    assert f"X\tA1\t4\t{DIGEST}\n" in lock.read_text()
    source = {"type": "files", "folder": str(genomes), "lock": "$MY_LOCKS/kept.tsv"}
    assert inputs(source, ["X"]) == [genomes / "X.fasta", lock]
    taken(genomes, ("X",), lock=source["lock"])
    assert (genomes.parent / "lock.tsv").read_bytes() == lock.read_bytes()
    before = (output / "X.fasta").read_bytes()
    for text, reason in (
        (">A1 first\nACGA\n>A2\nacgtn\n", "A1: of another length or digest"),
        (">A1 first\nACGT\n", "A2: missing"),
        (">A1 first\nACGT\n>A2\nacgtn\n>A3\nACGT\n", "A3: not in the lock"),
        (">A2\nacgtn\n>A1 first\nACGT\n", "'A1': A2 is in its place"),
    ):
        (genomes / "X.fasta").write_text(text)
        with pytest.raises(InputError, match=reason):
            taken(genomes, ("X",), lock=source["lock"])
        assert (output / "X.fasta").read_bytes() == before


PACKED = gzip.compress(b"".join(b">A%d\nACGT\n" % n for n in range(99)), mtime=0)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("X.fasta", b"accession,sequence\nA1,ACGT\n>A2\nACGT\n", "is not FASTA"),
        ("X.fa.gz", PACKED[:-8] + b"\0\0\0\0" + PACKED[-4:], "packed, and damaged or truncated"),
        ("X.fasta", TWO_LINES + b">A1\nACGT\n", "record 3 is the second with this accession\\. R"),
        ("X.fasta", TWO_LINES + b">A3\n--..-\n", "holds gaps only"),
        ("X.fasta", TWO_LINES + b">=cmd|x!A1\nACGT\n", "begins with =: a spreadsheet"),
        ("X.fasta", TWO_LINES + b">P1\nMKVLAAGLLALLAACEEF\n", "not nucleotides"),
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
        (lambda: b"".join(b">A%d\nAC\n" % n for n in range(5000)), "1001': is one more than the"),
    ],
    ids=["line", "records"],
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


def job(folder: Path, source: dict, classes: list[str], name: str = "") -> list[str]:
    """Return the job that acquires genomes into a folder, and its files."""
    words = {"rule": "genomes", "source": source, "classes": classes}
    output = {"sequences": f"{folder}/{name}sequences", "lock": f"{folder}/{name}lock.tsv"}
    words |= {"partial": f"{folder}/partial"}
    return [json.dumps(words), json.dumps({"input": {"files": []}, "output": output})]


def test_the_same_seed_gives_the_same_bytes_in_any_process_and_beside_any_class(tmp_path):
    source = {"type": "simulated", "seed": 3, "records": {"DENGUE": 30, "SARS": 2}}
    for seed in ("1", "2"):
        words = job(tmp_path, source, ["DENGUE", "SARS"], seed)
        done = subprocess.run(
            [sys.executable, ROOT / "scripts/step.py", *words],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "DENGUE: 30 records" in done.stdout and "SARS: 2 records" in done.stdout
    alone = source | {"records": {"SARS": 2}, "difficulty": 0.5}
    acquire(alone, ["SARS"], tmp_path / "2alone", tmp_path / "alone.tsv")
    for name in (
        "sequences/DENGUE.fasta",
        "sequences/SARS.fasta",
        "sequences/lineages.tsv",
        "lock.tsv",
    ):
        assert (tmp_path / f"1{name}").read_bytes() == (tmp_path / f"2{name}").read_bytes()
    sars = (tmp_path / "2alone" / "SARS.fasta").read_bytes()
    assert sars == (tmp_path / "1sequences" / "SARS.fasta").read_bytes()
    accessions = [f"SIM_DENGUE_{n:06d}" for n in range(1, 31)]
    rows = pd.read_csv(tmp_path / "1sequences/lineages.tsv", sep="\t").groupby("class")
    assert rows.get_group("DENGUE")["accession"].tolist() == accessions
    lineages = {name: set(group["lineage"]) for name, group in rows}
    assert lineages == {"DENGUE": {"DENGUE.1", "DENGUE.2"}, "SARS": {"SARS.1", "SARS.2"}}


@pytest.mark.parametrize("name", ["COVID", "EBOLA", "unheard-of"])
def test_roots_have_the_length_and_composition_of_their_class(name):
    profile = simulate.PROFILES.get(name, simulate.GENERIC)
    for difficulty in (0, 0.5, 1):
        root = simulate.root(name, 1, simulate.Difficulty.at(difficulty))
        assert len(root) == profile.length
        fractions = np.bincount(root, minlength=4) / len(root)
        assert fractions == pytest.approx(profile.composition, abs=0.015)


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

    def noting(*request, timeout):
        slots.append(time.monotonic())
        return opened(*request, timeout=timeout)

    monkeypatch.setattr(eutils, "urlopen", noting)
    ncbi.plan = {"search": ["429", "500", "reset", None]}
    client.with_retries(lambda: client.ask("esearch", term=FLU, retmode="json"))
    assert len(slots) == 4
    # The client looks at its clock a moment before a request is sent.
    assert all(later - earlier > least - 0.02 for earlier, later in itertools.pairwise(slots))


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
    # What is of no download is refused, and left alone.
    kept = tmp_path / "partial" / "thesis" / "chapter.tex"
    kept.parent.mkdir(parents=True)
    kept.write_text("years of work")
    with pytest.raises(InputError, match=r"partial: 'thesis': is not of a download"):
        fetched(tmp_path)
    assert kept.read_text() == "years of work"


def script(tmp_path: Path, **changes: object) -> subprocess.Popen:
    words = job(tmp_path, SOURCE | changes, ["FLU", "COLD"])
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.step", *words],
        cwd=ROOT, env=os.environ | {"ESCALA_STORE": str(tmp_path / "store")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "end", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.sweep)]
)
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


#: A header of NCBI Virus, GISAID and Nextstrain, and the name of its row's identifier in the table.
HEADERS = {
    "ncbi": ("NC_{0:06}.2 |Virus {0}, complete genome|2020-01-{1:02}", "NC_{0:06}"),
    "gisaid": ("hCoV-19/Hong Kong/{0}/2020|EPI_ISL_{0}|2020-01-{1:02}", "EPI_ISL_{0}"),
    "nextstrain": ("Wuhan/{0}/2020", "Wuhan/{0}/2020"),
}


@pytest.fixture
def labelled(tmp_path):
    """Return a function that writes a FASTA file and its table, and returns the source."""

    def make(form: str = "ncbi", packed=gzip.open, separator: str = ",", rows: int = 12) -> dict:
        random = np.random.default_rng(5)
        header, identifier = HEADERS[form]
        with packed(tmp_path / "all.fasta.packed", "wt") as file:
            for n in range(rows):
                letters = "".join(random.choice(list("ACGTN"), 90 + n))
                file.write(f">{header.format(n, n % 3 + 1)}\n{letters[:70]}\n{letters[70:]}\n")
        table = pd.DataFrame(
            {
                "date": [f"2020-01-{n % 3 + 1:02}" for n in range(rows)],
                "id": [identifier.format(n) for n in range(rows)],
                "host": ["Homo sapiens", "bat"] * (rows // 2),
            }
        )
        table.sample(frac=1, random_state=1).to_csv(tmp_path / "t", sep=separator, index=False)
        paths = {"file": str(tmp_path / "all.fasta.packed"), "labels": str(tmp_path / "t")}
        return {"type": "labelled", "label": "host", **paths}

    return make


@pytest.mark.parametrize(
    ("form", "packed", "separator"),
    [("ncbi", gzip.open, ","), ("gisaid", lzma.open, "\t"), ("nextstrain", open, ";")],
)
def test_a_table_labels_the_records_of_one_file(labelled, tmp_path, form, packed, separator):
    source = labelled(form, packed, separator)
    acquire(source, ["bat", "Homo-sapiens"], tmp_path / "made", tmp_path / "lock.tsv")
    table = pd.read_csv(source["labels"], sep=separator).set_index("id")
    with packed(source["file"], "rt") as file:
        every = list(SeqIO.parse(file, "fasta"))
    identifier = HEADERS[form][1]
    row_of = {str(record.seq): identifier.format(n) for n, record in enumerate(every)}
    for host, name in (("bat", "bat"), ("Homo sapiens", "Homo-sapiens")):
        made = list(SeqIO.parse(tmp_path / "made" / f"{name}.fasta", "fasta"))
        rows = [row_of[str(record.seq)] for record in made]
        assert [record.id for record in made] == rows
        assert sorted(rows) == sorted(table.index[table["host"] == host])
    assert inputs(source, ["bat"]) == [Path(source["file"]), Path(source["labels"])]


def test_only_records_of_the_classes_with_one_class_are_taken(labelled, tmp_path, capsys):
    source = labelled()
    path = Path(source["labels"])
    rows = pd.read_csv(path, dtype=str).sort_values("id", ignore_index=True)
    rows.loc[0, "host"], rows.loc[2, "host"] = None, "cat"
    rows.drop(index=4).to_csv(path, index=False)
    # The genome of record 5, a bat's, is also one of a human.
    with gzip.open(source["file"], "rt") as file:
        copied = list(SeqIO.parse(file, "fasta"))
    copied[6].seq = copied[5].seq.lower()
    with gzip.open(source["file"], "wt") as file:
        SeqIO.write(copied, file, "fasta")
    acquire(source, ["bat", "Homo-sapiens"], tmp_path / "made", tmp_path / "lock.tsv")
    made = {
        name: [int(record.id[3:9]) for record in SeqIO.parse(tmp_path / "made" / name, "fasta")]
        for name in ("bat.fasta", "Homo-sapiens.fasta")
    }
    assert made == {"bat.fasta": [1, 3, 7, 9, 11], "Homo-sapiens.fasta": [8, 10]}
    assert "several classes: NC_000005, NC_000006" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: rows.assign(id="x"), "no column holds an identifier of all.fasta.packed"),
        (lambda rows: pd.concat([rows, rows[:1]]), "several rows have the identifier"),
        (lambda rows: rows.drop(columns="host"), "'host': is not a column"),
        (lambda rows: rows.replace("bat", "Homo+sapiens"), "become the same class Homo-sapiens"),
        (lambda rows: rows.replace("bat", "cat"), "bat.*no record.*remove it from classes"),
    ],
)
def test_a_table_that_labels_no_records_is_refused(labelled, tmp_path, change, reason):
    source = labelled("nextstrain", open)
    change(pd.read_csv(source["labels"])).to_csv(source["labels"], index=False)
    with pytest.raises(InputError, match=reason):
        acquire(source, ["bat", "Homo-sapiens"], tmp_path / "made", tmp_path / "lock.tsv")
    assert not (tmp_path / "made").exists() and not (tmp_path / "lock.tsv").exists()


def test_the_version_of_an_accession_counts_if_the_table_has_it(tmp_path):
    (tmp_path / "a.fasta").write_text(">AB000001.1\nAC\n>AB000002.2\nGT\n>name.1\nTT\n")
    (tmp_path / "t.csv").write_text("id\nAB000001.2\nAB000001.1\nAB000002.1\nname.2\n")
    _, identifiers = match_records(tmp_path / "a.fasta", tmp_path / "t.csv")
    assert identifiers == {"AB000001.1": "AB000001.1", "AB000002.2": "AB000002.1", "name.1": ""}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a CSV or TSV file"),
        ("class\taccession\n", "is not the head of a lock file"),
        (f"{HEAD}Y\tA1\t4\t{DIGEST}\n", "the class has no row"),
        (f"{HEAD}X\tA1\t4\t{DIGEST}\nX\tA1\t4\t{DIGEST}\n", "'A1': is twice"),
        (f"{HEAD}X\tA1\t4\n", "'line 2': is not class, accession"),
        (f"{HEAD}X\tA1\t4\t{DIGEST[1:]}\n", "'line 2': is not class, accession"),
    ],
)
def test_what_is_no_lock_file_is_refused(tmp_path, text, reason):
    path = tmp_path / "lock.tsv"
    path.write_text(text)
    with pytest.raises(InputError, match=reason):
        read_lock(path, ["X"])


def test_every_record_arrives_once_sorted_and_named_by_accession(ncbi, tmp_path, monkeypatch):
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
    # The address may come from the environment, and without a key none is sent.
    ncbi.requests.clear()
    monkeypatch.delenv("NCBI_API_KEY")
    monkeypatch.setenv("MY_ADDRESS", "me@example.org")
    fetched(tmp_path, email="$MY_ADDRESS")
    assert all("api_key" not in r and r["email"] == "me@example.org" for r in ncbi.requests)
    monkeypatch.setenv("ESCALA_EUTILS_URL", "localhost:8000")
    with pytest.raises(InputError, match=r"^ESCALA_EUTILS_URL: .*is not an HTTP address"):
        fetched(tmp_path)


def test_no_record_is_lost_whatever_goes_wrong_in_one_download(ncbi, tmp_path, capsys):
    prefixes = ["FA", "FB", "FC", "FD"]
    ncbi.genomes = {f"query {prefix}": made(prefix, 105) for prefix in prefixes}
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


@pytest.mark.parametrize(
    ("kind", "fault", "message"),
    [
        ("fetch", "429", r"source\.queries\.FLU.*HTTP 429.*0 verified"),
        # No record is called absent.
        ("fetch", "unknown error under 400", r"no usable answer \(the server answers HTTP 400: No"),
    ],
)
def test_a_lasting_failure_ends_after_bounded_tries(ncbi, tmp_path, capfd, kind, fault, message):
    ncbi.plan = {kind: [fault] * 99}
    with pytest.raises(InputError, match=message) as refused:
        fetched(tmp_path)
    assert len(ncbi.of(kind)) == eutils.MAX_TRIES
    assert KEY not in str(refused.value) + "".join(capfd.readouterr())
    ncbi.plan, ncbi.requests = {kind: [fault]}, []
    assert fetched(tmp_path)["FLU"] == ncbi.genomes[FLU]
    with pytest.raises(InputError, match=r"source\.queries\.COLD: 'mumps'.*no record matches"):
        fetched(tmp_path, queries={"FLU": FLU, "COLD": "mumps"})


@pytest.mark.parametrize("refuse", [True, False])
def test_records_that_do_not_exist_are_named_and_all_others_fetched(ncbi, tmp_path, refuse):
    ncbi.gone = gone = {"FL000007.1", "FL000019.1"}
    ncbi.refuse_gone = refuse
    with pytest.raises(InputError, match=r"FL000007\.1, FL000019\.1: NCBI has no such record"):
        fetched(tmp_path)
    ncbi.gone, ncbi.requests = set(), []
    assert fetched(tmp_path)["FLU"] == ncbi.genomes[FLU]
    assert {one for one in ncbi.asked_for() if one.startswith("FL")} == gone


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
    ncbi.genomes[FLU] = made("FL", 25)
    with pytest.raises(InputError, match="25 records of one day and length match"):
        fetched(tmp_path)


def test_classes_without_a_query_have_the_one_that_comes_with_escala(ncbi, tmp_path, monkeypatch):
    ncbi.genomes = {QUERIES["MERS"]: made("ME", 2), "mine": made("SA", 2)}
    source = {"type": "ncbi", "email": "someone@example.org", "queries": {"SARS": "mine"}}
    acquire(source, ["MERS", "SARS"], tmp_path / "out", tmp_path / "lock.tsv")
    assert (tmp_path / "out" / "MERS.fasta").read_text().count(">ME") == 2
    assert (tmp_path / "out" / "SARS.fasta").read_text().count(">SA") == 2
    requests = len(ncbi.requests)
    with pytest.raises(InputError, match=r"source\.queries\.MUMPS.*neither a query nor"):
        acquire(source, ["MERS", "MUMPS"], tmp_path / "out", tmp_path / "lock.tsv")
    assert len(ncbi.requests) == requests
