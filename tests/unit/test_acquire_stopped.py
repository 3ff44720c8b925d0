"""Downloads that keep NCBI's rate, are stopped and go on, and show no key."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from Bio import Entrez
from Bio.SeqIO.FastaIO import SimpleFastaParser

from escala.core.errors import InputError
from escala.data.genomes.acquire import acquire, eutils
from tests.conftest import ROOT
from tests.eutils import genomes
from tests.ncbi import COLD, FLU, KEY, SOURCE, fetched, misbehaving

ncbi = pytest.fixture(misbehaving)


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
    ncbi.genomes[FLU] = genomes("FL", 1100)
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
