"""Step times summarised: a table of two ranks by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from escala.record import collect

COLUMNS = ["epoch", "step", "rows", "input_seconds", "step_seconds", "loss_sum", "correct"]
ROWS = [
    [(1, 1, 4, 0.1, 0.2, 2.0, 3), (1, 2, 4, 0.0, 0.4, 4.0, 3), (2, 1, 4, 0.1, 0.4, 1.0, 3)],
    [(1, 1, 2, 0.0, 0.5, 1.0, 1), (1, 2, 0, 0.1, 0.1, 0.0, 0), (2, 1, 2, 0.1, 0.2, 2.0, 1)],
]


@pytest.fixture
def table(tmp_path) -> pd.DataFrame:
    for rank, rows in enumerate(ROWS):
        file = tmp_path / f"rank{rank}.steps.csv"
        pd.DataFrame(rows, columns=COLUMNS).to_csv(file, index=False)
    with pytest.raises(FileNotFoundError):
        collect.read_steps(tmp_path, 3)
    return collect.read_steps(tmp_path, 2)


def test_every_rank_is_read_under_its_number(table):
    assert list(table.columns) == [*COLUMNS, "rank"]
    assert table["rank"].tolist() == [0, 0, 0, 1, 1, 1]


def test_a_step_lasts_as_long_as_its_slowest_rank(table):
    found = collect.summarize_steps(table.sample(frac=1, random_state=1))
    # The slowest rank takes 0.5, 0.4 and 0.5 s.
    assert found["count"] == 3
    assert (found["median"], found["p90"]) == (pytest.approx(0.5), pytest.approx(0.5))
    assert [entry["rank"] for entry in found["per_rank"]] == [0, 1]
    medians = [entry["median"] for entry in found["per_rank"]]
    assert medians == [pytest.approx(0.4), pytest.approx(0.3)]
    assert found["per_rank"][0]["p90"] == pytest.approx(0.48)
