"""Ranks must have trained on the planned rows: their steps name each of them."""

from __future__ import annotations

import pytest

from escala.record.invariants import plan_epochs
from escala.training.shards import Shards

ROWS, EPOCHS = 21, 3


@pytest.mark.parametrize("shard", [True, False, "leading"])
@pytest.mark.parametrize("fractions", [[1.0], [0.5, 0.5], [0.75, 0.25, 0.0]])
@pytest.mark.parametrize("steps", [2, 99])
def test_planned_epochs_hold_the_rows_of_all_steps(shard, fractions, steps):
    plan = {
        "seed": 5, "train_rows": ROWS, "global_batch": 8,
        "knobs": {"shard": shard},
    }  # fmt: skip
    rank = {"fractions": fractions, "epochs": [{"steps": steps}] * EPOCHS}
    found = plan_epochs(plan, rank)
    assert len(found) == EPOCHS
    for number, epoch in enumerate(found, start=1):
        planned_steps = list(Shards.planned(plan, fractions).epoch_batches(number))[:steps]
        taken = [int(row) for step in planned_steps for rows in step for row in rows]
        assert (epoch.rows, epoch.distinct) == (len(taken), len(set(taken)))
        assert epoch.moments == [sum(taken), sum(row**2 for row in taken)]
    if shard is True and steps > ROWS:
        assert {(epoch.rows, epoch.distinct) for epoch in found} == {(ROWS, ROWS)}


def test_a_fit_takes_every_row_once():
    rank = {"fractions": [1.0], "epochs": [{"steps": 1}]}
    plan = {"seed": None, "train_rows": ROWS, "global_batch": ROWS, "knobs": {"shard": True}}
    [epoch] = plan_epochs(plan, rank)
    assert (epoch.rows, epoch.distinct) == (ROWS, ROWS)
