"""Simulated genomes: reproducible, related as stated, and harder where asked."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from Bio.SeqIO.FastaIO import SimpleFastaParser
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.data.genomes.acquire import acquire, simulate

ROOT = Path(__file__).resolve().parents[2]
CLASSES = ["COVID", "DENGUE", "EBOLA", "MERS", "SARS"]


def genomes(name: str, count: int, seed: int = 1) -> list[str]:
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
    assert genomes("COVID", 3, seed=3) != genomes("COVID", 3, seed=4)


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
    made = genomes("COVID", 60)
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
