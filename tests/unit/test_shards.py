"""Shards: disjoint and together complete, or as their knob asks, and what one rank would take."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.training.shards import (
    Shards,
    balanced_fractions,
    epoch_order,
    evaluation_rows,
    row_moments,
    split_rows,
    total_moments,
)

rows = st.integers(0, 200)
ranks = st.integers(1, 9)


@given(rows, st.integers(1, 64), ranks, st.integers(0, 2**31 - 1))
def test_ranks_share_every_step_of_one_rank(rows, global_batch, ranks, seed):
    order = epoch_order(rows, seed, 1)
    alone = [order[start : start + global_batch].tolist() for start in range(0, rows, global_batch)]
    shards = Shards(seed, rows, global_batch, [1 / ranks] * ranks)
    steps = [[part.tolist() for part in step] for step in shards.epoch_batches(1)]
    assert [[row for part in step for row in part] for step in steps] == alone
    assert len(steps) == shards.steps(None) == math.ceil(rows / global_batch)
    for step, expected in zip(steps, alone, strict=True):
        assert step == [part.tolist() for part in np.array_split(expected, ranks)]


def test_the_moments_of_all_ranks_are_those_of_their_rows_beyond_64_bits():
    """Eight rows near 2^31 have squares whose sum exceeds 2^64."""
    order = np.arange(2**31 - 8, 2**31)
    squares = sum(int(row) ** 2 for row in order)
    assert squares > 2**64
    assert row_moments(order) == [int(order.sum()), squares % 2**64]
    parts = [row_moments(part) for part in np.split(order, [4])]
    assert sum(second for _, second in parts) != squares % 2**64
    assert total_moments(parts) == row_moments(order)


@given(st.integers(0, 500), st.lists(st.floats(0.01, 1), min_size=1, max_size=8))
def test_parts_are_within_one_row_of_what_the_fractions_say(rows, weights):
    fractions = np.array(weights) / sum(weights)
    found = split_rows(rows, fractions)
    assert found.sum() == rows
    assert (np.abs(found - rows * fractions) < 1 + 1e-6).all()


@given(st.integers(1, 100), st.integers(1, 20), st.integers(1, 4), st.integers(0, 2**31 - 1))
def test_without_shards_every_rank_takes_every_row_in_an_order_of_its_own(rows, each, ranks, seed):
    shards = Shards(seed, rows, each * ranks, [1 / ranks] * ranks, shard=False)
    steps = list(shards.epoch_batches(1))
    assert len(steps) == shards.steps(None) == math.ceil(rows / each)
    taken = [np.concatenate([step[rank] for step in steps]).tolist() for rank in range(ranks)]
    assert all(sorted(rank_rows) == list(range(rows)) for rank_rows in taken)
    if rows > 20:
        assert len({tuple(rank_rows) for rank_rows in taken}) == ranks


@given(st.integers(1, 100), st.integers(3, 40), st.integers(2, 3), st.floats(0.1, 0.9))
def test_without_shards_ranks_of_unequal_parts_take_every_row_too(rows, batch, ranks, fraction):
    fractions = [fraction, *[(1 - fraction) / (ranks - 1)] * (ranks - 1)]
    shards = Shards(0, rows, batch, fractions, shard=False)
    steps = list(shards.epoch_batches(1))
    assert len(steps) == shards.steps(None)
    assert any(map(len, steps[-1]))
    for rank, size in enumerate(split_rows(batch, fractions)):
        taken = np.concatenate([step[rank] for step in steps]).tolist()
        assert sorted(taken) == list(range(rows if size else 0))


@given(rows, st.integers(1, 64), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_leading_ranks_take_the_first_rows_of_each_step(rows, batch, weights):
    fractions = np.array(weights) / sum(weights)
    divided, found = (Shards(3, rows, batch, fractions, shard) for shard in (True, "leading"))
    assert found.steps(None) == divided.steps(None)
    order = epoch_order(rows, 3, 2).tolist()
    steps = list(found.epoch_batches(2))
    for number, (rank_rows, instead_of) in enumerate(
        zip(steps, divided.epoch_batches(2), strict=True)
    ):
        for taken, own in zip(rank_rows, instead_of, strict=True):
            start = number * batch
            assert taken.tolist() == order[start : start + len(own)]


@given(
    st.lists(st.tuples(st.floats(0, 0.01), st.floats(1e-4, 1e-2)), min_size=1, max_size=6),
    st.integers(64, 512),
)
def test_fractions_by_speed_let_all_ranks_end_together(ranks, batch):
    """Against the definition: steps of a + b n seconds, and no rank works longer than another."""
    fixed, slope = np.array(ranks).T
    sizes = (8, 32)
    seconds = np.stack([fixed + slope * size for size in sizes], axis=1)
    fractions = balanced_fractions(sizes, seconds, batch)
    assert fractions.sum() == pytest.approx(1) and (fractions >= 0).all()
    ends = (fixed + slope * fractions * batch)[fractions > 0]
    assert ends == pytest.approx(ends[0], rel=1e-3)
    assert (fixed[fractions == 0] >= ends[0] * (1 - 1e-3)).all()


@settings(deadline=None)
@given(st.integers(0, 300), st.integers(0, 2**31 - 1), st.integers(1, 50))
def test_an_epochs_order_is_a_permutation_decided_by_seed_and_epoch(rows, seed, epoch):
    order = epoch_order(rows, seed, epoch)
    assert sorted(order.tolist()) == list(range(rows))
    assert order.tolist() == epoch_order(rows, seed, epoch).tolist()


def test_epochs_and_seeds_are_shuffled_differently():
    orders = {tuple(epoch_order(50, seed, epoch)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


@settings(deadline=None)
@given(rows, ranks)
def test_every_test_row_is_evaluated_once(rows, ranks):
    parts = [list(range(rows))[evaluation_rows(rows, rank, ranks)] for rank in range(ranks)]
    assert [row for part in parts for row in part] == list(range(rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_one_rank_evaluates_all_rows_if_they_are_not_divided():
    found = [list(range(7))[evaluation_rows(7, rank, 3, divided=False)] for rank in range(3)]
    assert found == [list(range(7)), [], []]
