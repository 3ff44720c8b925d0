"""Step times summarised, against plain loops over small tables."""

from __future__ import annotations

import statistics

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.record import steps

COLUMNS = ["epoch", "step", "rows", "input_seconds", "step_seconds", "loss_sum", "correct"]


def table(ranks: int, epochs: int, per_epoch: int, seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        [
            {
                "epoch": epoch,
                "step": step,
                "rows": int(random.integers(0, 5)) + (rank == 0),
                "input_seconds": random.exponential(0.1),
                "step_seconds": random.exponential(1.0),
                "loss_sum": random.exponential(2.0),
                "correct": 0,
                "rank": rank,
            }
            for rank in range(ranks)
            for epoch in range(1, epochs + 1)
            for step in range(1, per_epoch + 1)
        ]
    )


def test_every_rank_is_read_under_its_number(tmp_path):
    for rank in range(3):
        rows = [(1, step, 4, 0.1, 0.2 + rank, 1.0, 3) for step in (1, 2)]
        file = tmp_path / f"rank{rank}.steps.csv"
        pd.DataFrame(rows, columns=COLUMNS).to_csv(file, index=False)
    read = steps.read(tmp_path, 3)
    assert list(read.columns) == [*COLUMNS, "rank"]
    assert read["rank"].tolist() == [0, 0, 1, 1, 2, 2]
    assert read["step_seconds"].tolist() == pytest.approx([0.2, 0.2, 1.2, 1.2, 2.2, 2.2])
    with pytest.raises(FileNotFoundError):
        steps.read(tmp_path, 4)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(0, 999))
def test_a_step_lasts_as_long_as_its_slowest_rank(ranks, epochs, per_epoch, seed):
    data = table(ranks, epochs, per_epoch, seed)
    longest: dict[tuple[int, int], float] = {}
    own: dict[int, list[float]] = {rank: [] for rank in range(ranks)}
    for row in data.itertuples():
        seconds = row.input_seconds + row.step_seconds
        key = (row.epoch, row.step)
        longest[key] = max(longest.get(key, 0.0), seconds)
        own[row.rank].append(seconds)
    found = steps.summary(data.sample(frac=1, random_state=seed))
    assert found["count"] == len(longest) == epochs * per_epoch
    assert found["median"] == pytest.approx(statistics.median(longest.values()))
    assert found["p90"] == pytest.approx(np.percentile(list(longest.values()), 90))
    assert [entry["rank"] for entry in found["per_rank"]] == list(range(ranks))
    for entry in found["per_rank"]:
        assert entry["median"] == pytest.approx(statistics.median(own[entry["rank"]]))
        assert entry["p90"] == pytest.approx(np.percentile(own[entry["rank"]], 90))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(0, 999))
def test_a_row_counts_the_same_on_every_rank(ranks, epochs, per_epoch, seed):
    data = table(ranks, epochs, per_epoch, seed)
    found = steps.loss_per_step(data)
    assert len(found) == epochs * per_epoch
    for step in found.itertuples():
        alike = [r for r in data.itertuples() if (r.epoch, r.step) == (step.epoch, step.step)]
        assert step.rows == sum(r.rows for r in alike)
        assert step.loss == pytest.approx(sum(r.loss_sum for r in alike) / step.rows)
