"""Windows that begin later: where they come from and how many there are."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.prepare.windows import add_windows

CLASSES = ["A", "B"]


@settings(deadline=None)
@given(
    counts=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    rows=st.one_of(st.none(), st.fixed_dictionaries({"A": st.integers(1, 20)})),
    margin=st.integers(0, 5),
    seed=st.integers(0, 100),
)
def test_windows_are_pieces_of_genomes_of_their_class(counts, rows, margin, seed):
    length = 8
    labels = np.repeat([0, 1], counts)
    codes = np.random.default_rng(seed).integers(0, 5, (len(labels), length + margin), np.uint8)
    windows, new_labels = add_windows(codes, labels, CLASSES, length=length, rows=rows, seed=seed)
    assert (windows[: len(labels)] == codes[:, :length]).all()
    assert (new_labels[: len(labels)] == labels).all()
    possible = {
        label: {
            genome[begin : begin + length].tobytes()
            for genome in codes[labels == label]
            for begin in range(margin + 1)
        }
        for label in (0, 1)
    }
    for window, label in zip(windows, new_labels, strict=True):
        assert window.tobytes() in possible[label]
    wanted = dict.fromkeys(CLASSES, max(counts)) if rows is None else rows
    for label, name in enumerate(CLASSES):
        assert (new_labels == label).sum() == max(counts[label], wanted.get(name, 0))


def test_every_genome_gives_its_share_and_the_seed_decides():
    codes = np.arange(4, dtype=np.uint8)[:, None].repeat(12, axis=1)
    labels = np.zeros(4, int)
    windows, _ = add_windows(codes, labels, ["A"], length=8, rows={"A": 22}, seed=1)
    assert sorted(np.bincount(windows[:, 0])) == [5, 5, 6, 6]
    shifting = np.tile(np.arange(12, dtype=np.uint8), (4, 1))
    first, second, other = (
        add_windows(shifting, labels, ["A"], length=8, rows={"A": 22}, seed=seed)[0]
        for seed in (1, 1, 2)
    )
    assert (first == second).all() and (first != other).any()
    assert set(first[4:, 0]) == set(range(5)), "windows begin anywhere within the margin"
