"""NCBI's client led to a server on loopback that misbehaves as NCBI, and what it downloads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from Bio.SeqIO.FastaIO import SimpleFastaParser

from escala.data.genomes.acquire import acquire, download
from tests.eutils import Eutils, genomes, serving

KEY = "0123456789abcdef+secret"
FLU, COLD = "flu[organism]", "cold[organism]"
SOURCE = {
    "type": "ncbi",
    "email": "someone@example.org",
    "queries": {"FLU": FLU, "COLD": COLD},
}


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
