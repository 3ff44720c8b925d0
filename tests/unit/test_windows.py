"""Rows as pieces of genomes: where they come from, how many there are, and either strand."""

from __future__ import annotations

import numpy as np
import pytest
from Bio.Seq import Seq
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.data.genomes.windows import blocks, random_windows, windows
from escala.data.nucleotides import encode, letters

LENGTH = 8
START = {"method": "start", "reverse_complement": False}
texts = st.lists(st.text(alphabet="ACGTN", min_size=1, max_size=40), min_size=1, max_size=6)


class Genomes:
    """Genomes as text, and as the one array of codes that rows are cut from."""

    def __init__(self, texts: list[str]):
        self.texts = texts
        self.letters = np.array([len(text) for text in texts])
        self.offsets = np.concatenate([[0], np.cumsum(self.letters)[:-1]])
        self.codes = np.frombuffer(encode(letters("".join(texts))), np.uint8)
        self.numbers = np.arange(len(texts))

    def cut(self, rows: np.ndarray, block_bytes: int = 3 * LENGTH) -> np.ndarray:
        cut = blocks(self.codes, self.offsets, self.letters, rows, LENGTH, block_bytes)
        return np.concatenate(list(cut))


def row_of(text: str, begin: int, reverse: bool = False) -> bytes:
    piece = text[begin : begin + LENGTH]
    piece = str(Seq(piece).reverse_complement()) if reverse else piece
    return encode(letters(piece)).ljust(LENGTH, b"\0")


@settings(deadline=None)
@given(texts, st.integers(1, 12))
def test_tiles_cover_every_letter_and_no_tile_hangs_over_the_end(sequences, stride):
    genomes = Genomes(sequences)
    tiles = {"method": "tiles", "stride": stride, "reverse_complement": False}
    rows = windows(genomes.numbers, genomes.letters, LENGTH, tiles, 0)
    for number, text in enumerate(sequences):
        begins = rows["begin"][rows["genome"] == number].tolist()
        last = max(len(text) - LENGTH, 0)
        assert begins == sorted({*range(0, last + 1, stride), last})
        if stride <= LENGTH:
            covered = {i for begin in begins for i in range(begin, begin + LENGTH)}
            assert covered >= set(range(len(text)))
    assert [bytes(row) for row in genomes.cut(rows)] == [
        row_of(sequences[genome], begin) for genome, begin, _ in rows.tolist()
    ]


@settings(deadline=None)
@given(texts, st.sampled_from(["start", "random", "tiles"]), st.integers(0, 50))
def test_both_strands_are_a_row_and_its_reverse_complement(sequences, method, seed):
    genomes = Genomes(sequences)
    setting = {"method": method, "per_genome": 2, "stride": 3, "reverse_complement": True}
    rows = windows(genomes.numbers, genomes.letters, LENGTH, setting, seed)
    one = setting | {"reverse_complement": False}
    alone = windows(genomes.numbers, genomes.letters, LENGTH, one, seed)
    assert (rows[::2] == alone).all()
    assert rows["reverse"][1::2].all()
    last = np.maximum(genomes.letters - LENGTH, 0) * (method != "start")
    assert (rows["begin"] <= last[rows["genome"]]).all()
    assert method != "random" or (np.bincount(alone["genome"]) == 2).all()
    assert [bytes(row) for row in genomes.cut(rows)] == [
        row_of(sequences[g], b, r) for g, b, r in rows.tolist()
    ]


@pytest.mark.parametrize(("within", "begins"), [(4, range(5)), (None, range(13))])
def test_windows_to_balance_with_begin_within_the_letters_given(within, begins):
    genomes = Genomes(["ACGT" * 5] * 4)
    rows = windows(genomes.numbers, genomes.letters, LENGTH, START, 0)
    added, again, other = (
        random_windows(rows, genomes.letters, LENGTH, 201, within, seed) for seed in (1, 1, 2)
    )
    assert set(added["begin"]) == set(begins)
    assert sorted(np.bincount(added["genome"])) == [50, 50, 50, 51], "genomes take turns"
    assert (added == again).all()
    assert (added != other).any()
    assert not added["reverse"].any()
    rows["reverse"][0] = True
    strands = random_windows(rows, genomes.letters, LENGTH, 201, within, 1)["reverse"]
    assert 50 < strands.sum() < 150, "both strands, where the rows hold both"
