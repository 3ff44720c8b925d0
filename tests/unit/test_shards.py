"""Shards: disjoint, together complete, and what one rank would take."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.parallel.shards import batches, epoch_order, evaluation_rows, steps_per_epoch

rows = st.integers(0, 200)
ranks = st.integers(1, 9)


@settings(deadline=None)
@given(rows, st.integers(1, 64), ranks, st.integers(0, 2**31 - 1))
def test_ranks_share_every_step_of_one_rank(rows, global_batch, ranks, seed):
    order = epoch_order(rows, seed, 1)
    alone = [order[start : start + global_batch].tolist() for start in range(0, rows, global_batch)]
    shards = [list(batches(order, global_batch, rank, ranks)) for rank in range(ranks)]
    assert {len(shard) for shard in shards} == {len(alone)}
    assert len(alone) == steps_per_epoch(rows, global_batch) == math.ceil(rows / global_batch)
    for step, expected in enumerate(alone):
        parts = [shard[step][0].tolist() for shard in shards]
        assert [row for part in parts for row in part] == expected
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert {shard[step][1] for shard in shards} == {len(expected)}
    seen = [row for shard in shards for part, _ in shard for row in part]
    assert sorted(seen) == list(range(rows))


def test_the_last_step_may_be_uneven_and_leave_ranks_empty():
    shards = [list(batches(np.arange(11), 4, rank, 4)) for rank in range(4)]
    assert [len(shard[-1][0]) for shard in shards] == [1, 1, 1, 0]
    assert [shard[-1][1] for shard in shards] == [3] * 4


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
