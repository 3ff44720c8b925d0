"""A step split into parts: the arithmetic, and hand-made clocks and timelines."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import clocked, clocks_of_rank, horovod_events
from hypothesis import given
from hypothesis import strategies as st

from escala.analysis import attribution
from escala.analysis.attribution import OVERLAP, PARTS, UNEXPLAINED, WHOLE, covered
from escala.core.files import read_json, write_json
from escala.probes import timeline
from escala.report import tables
from escala.report.summary import summary

GRID = 40
spans = st.lists(st.tuples(st.integers(-5, GRID + 5), st.integers(-5, GRID + 5)), max_size=6)


@given(
    st.dictionaries(st.sampled_from(PARTS), spans, min_size=1),
    st.tuples(*[st.integers(0, GRID)] * 2),
)
def test_every_instant_counts_once_for_the_first_part_that_covers_it(parts, window):
    begins, ends = sorted(window)
    parts = {
        name: np.array([sorted(span) for span in parts[name]], float).reshape(-1, 2)
        for name in PARTS
        if name in parts
    }
    expected = dict.fromkeys([*parts, OVERLAP, UNEXPLAINED], 0)
    for cell in range(begins, ends):
        having = [n for n, i in parts.items() if any(a <= cell and cell + 1 <= b for a, b in i)]
        expected[having[0] if having else UNEXPLAINED] += 1
        expected[OVERLAP] += bool(
            having
            and having[0] not in attribution.EXCHANGE
            and set(having) & {*attribution.EXCHANGE}
        )
    assert covered(parts, begins, ends) == pytest.approx(expected)


def phases() -> pd.DataFrame:
    found = timeline.intervals(horovod_events())
    found[["start_seconds", "end_seconds"]] += timeline.started(horovod_events())
    return found


@pytest.fixture
def two_ranks() -> pd.DataFrame:
    clocks = [clocks_of_rank(rank).assign(rank=rank) for rank in (0, 1)]
    return 1000 * attribution.per_step(pd.concat(clocks), phases())


def test_the_faster_rank_waits_for_the_slower(two_ranks):
    """Until 73 ms rank 0 waits for b, though a is exchanged meanwhile: that costs nothing."""
    parts = two_ranks.loc[0].mean()
    expected = {
        "input": 2, "dispatch": 2, "compute": 50, "optimiser": 10, "skew": 20, "transfer": 18,
        "copies": 2, "negotiation": 2, OVERLAP: 5, UNEXPLAINED: 3, WHOLE: 109,
    }  # fmt: skip
    assert parts.to_dict() == pytest.approx(expected, abs=1e-3)


def test_the_slowest_rank_waits_for_none_and_hides_an_exchange(two_ranks):
    parts = two_ranks.loc[1].mean()
    assert parts[["compute", "skew", OVERLAP]].tolist() == pytest.approx([70, 0, 5], abs=1e-3)


def test_what_has_no_source_is_unavailable():
    clocks = pd.concat([clocks_of_rank(rank).assign(rank=rank) for rank in (0, 1)])
    steps = attribution.per_step(clocks, None)
    sources = {attribution.CLOCKS, attribution.ALL_CLOCKS}
    found = attribution.summary(steps, alone=False, sources=sources).set_index(["rank", "part"])
    for rank in (0, 1):
        kinds = found["kind"][rank]
        assert (kinds[["input", "compute", "skew", WHOLE]] == "measured").all()
        unknown = found.loc[rank].loc[["transfer", "copies", "negotiation", OVERLAP, UNEXPLAINED]]
        assert (unknown["kind"] == "unavailable").all()
        assert unknown["median_seconds"].isna().all() and unknown["source"].isna().all()


def test_the_table_has_a_row_for_each_part_of_each_rank_and_tells_what_is_estimated(tmp_path):
    experiment, runs = clocked(tmp_path)
    frames = tables.tables(
        experiment.runs, experiment.dataset_files, experiment.class_files, probe_files=runs
    )
    table = frames["attribution"]
    tables.write(frames, tmp_path)
    assert tables.read(tmp_path)["attribution"]["part"].equals(table["part"])
    known = table.dropna(subset=["part"]).set_index(["strategy", "rank", "part"])
    assert len(known) == 3 * (len(PARTS) + 3)
    assert known["kind"]["horovod-mpi", 0, "transfer"] == "measured"
    assert known["kind"]["horovod-mpi", 1, "transfer"] == "estimated"
    assert known["kind"]["horovod-mpi", 1, "skew"] == "measured"
    assert known["median_seconds"]["single", 0, "transfer"] == 0
    assert known["source"]["single", 0, UNEXPLAINED] == "clocks of the rank"
    failed = table[table["part"].isna()]
    assert failed["strategy"].tolist() == ["horovod-gloo"]
    timed = frames["runs"].query("strategy == 'single'")["step_median_seconds"].median()
    assert known["slowdown"]["single", 0, WHOLE] == pytest.approx(0.109 / timed)


def test_runs_of_another_session_are_not_compared(tmp_path):
    experiment, runs = clocked(tmp_path)
    for path in runs[1:]:
        write_json(path, read_json(path) | {"session": "20200101T000000Z-1"})
    frames = tables.tables(
        experiment.runs, experiment.dataset_files, experiment.class_files, probe_files=runs
    )
    slowdown = frames["attribution"].groupby("strategy")["slowdown"]
    assert slowdown.count().to_dict() == {"single": 11, "horovod-mpi": 0, "horovod-gloo": 0}
    text = summary(frames, "demo", "A title")
    assert "A step of `horovod-mpi 1x2` takes" in text and "longer than one of" not in text


def test_an_offset_between_the_clocks_of_machines_changes_nothing(tmp_path):
    _, runs = clocked(tmp_path)
    [run] = [path for path in runs if "/horovod-mpi/" in str(path)]

    def parts() -> pd.DataFrame:
        found = attribution.of_run(run, alone=False, one_clock=False)
        return found.set_index(["rank", "part"])

    before, clocks = parts(), run.with_name("ranks") / "rank1.clocks.csv"
    pd.read_csv(clocks).assign(seconds=lambda moments: moments["seconds"] + 0.04).to_csv(
        clocks, index=False
    )
    after = parts()
    assert after["median_seconds"].to_numpy() == pytest.approx(
        before["median_seconds"].to_numpy(), abs=1e-6, nan_ok=True
    )
    assert (before.xs("compute", level="part")["kind"] == "measured").all()
    assert (before.xs("skew", level="part")["kind"] == "unavailable").all()
