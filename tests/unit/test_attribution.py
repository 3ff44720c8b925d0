"""A step split into parts: the arithmetic, and hand-made clocks and timelines."""

from __future__ import annotations

import shutil
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import changed, clocked, clocks_of_rank, horovod_events
from hypothesis import given
from hypothesis import strategies as st
from pages import tabled

from escala.analysis import attribution
from escala.analysis.attribution import (
    OFF_CORE,
    OVERLAP,
    PARTS,
    PASSES,
    UNEXPLAINED,
    WHOLE,
    seconds_within,
    segments,
)
from escala.analysis.statistics import mean_interval
from escala.core.files import read_json
from escala.probes import timeline
from escala.probes.clocks import COLUMNS
from escala.report import tables
from escala.report.summary import summary

pytestmark = pytest.mark.usefixtures("few_resamples")

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
    assert seconds_within(parts, begins, ends) == pytest.approx(expected)
    part_seconds = dict.fromkeys([*parts, UNEXPLAINED], 0)
    found = segments(parts, begins, ends)
    for name, start, end in found:
        assert end > start
        part_seconds[name] += end - start
    assert part_seconds == pytest.approx({name: expected[name] for name in part_seconds})
    edges = [(one[2], other[1]) for one, other in pairwise(found)]
    assert all(one == other for one, other in edges)
    assert all(one[0] != other[0] for one, other in pairwise(found))
    assert not found or (found[0][1], found[-1][2]) == (begins, ends)


def phases() -> pd.DataFrame:
    found = timeline.intervals(horovod_events())
    found[["start_seconds", "end_seconds"]] += timeline.started(horovod_events())
    return found


@pytest.fixture
def two_ranks() -> pd.DataFrame:
    clocks = [clocks_of_rank(rank).assign(rank=rank) for rank in (0, 1)]
    return 1000 * attribution.per_step(pd.concat(clocks), phases())


def test_the_faster_rank_waits_for_the_slower_which_waits_for_none(two_ranks):
    """Until 73 ms rank 0 waits for b, though a is exchanged meanwhile: that costs nothing."""
    expected = {
        "input": 2, "dispatch": 2, "compute": 50, "optimiser": 10, "skew": 20, "transfer": 18,
        "copies": 2, "negotiation": 2, OFF_CORE: 0, OVERLAP: 5, UNEXPLAINED: 3, WHOLE: 109,
    }  # fmt: skip
    assert two_ranks.loc[0].mean().to_dict() == pytest.approx(expected, abs=1e-3)
    slower = two_ranks.loc[1].mean()
    assert slower[["compute", "skew", OVERLAP]].tolist() == pytest.approx([70, 0, 5], abs=1e-3)


def test_the_segments_of_a_step_follow_each_other_on_one_axis_for_all_ranks(two_ranks):
    late = clocks_of_rank(1).assign(rank=1, seconds=lambda moments: moments["seconds"] + 0.001)
    clocks = pd.concat([clocks_of_rank(0).assign(rank=0), late])
    found = attribution.typical_step(clocks, phases())
    assert found[["epoch", "step"]].drop_duplicates().to_numpy().tolist() == [[1, 2]]
    for rank, begins in ((0, 0.0), (1, 0.001)):
        own = found[found["rank"] == rank]
        starts, ends = own["start_seconds"].to_numpy(), own["end_seconds"].to_numpy()
        assert starts[0] == pytest.approx(begins, abs=1e-6)
        assert ends[-1] == pytest.approx(begins + 0.109, abs=1e-6)
        assert (starts[1:] == ends[:-1]).all()
    rank_0 = found[found["rank"] == 0]
    assert rank_0["part"].tolist()[:4] == ["input", "dispatch", "compute", "skew"]
    fractions = found.assign(seconds=1000 * (found["end_seconds"] - found["start_seconds"]))
    rank_0 = fractions[fractions["rank"] == 0].groupby("part")["seconds"].sum()
    assert rank_0["skew"] == pytest.approx(21, abs=1e-3), "it waits a millisecond longer"
    assert rank_0["compute"] == pytest.approx(two_ranks.loc[0]["compute"].mean(), abs=1e-3)


def test_the_shorter_of_two_steps_in_the_middle_is_typical():
    clocks = clocks_of_rank(0, steps=2).assign(rank=0)
    clocks.loc[(clocks["step"] == 1) & (clocks["moment"] == "returned"), "seconds"] += 0.01
    assert set(attribution.typical_step(clocks, None)["step"]) == {2}


def rank_clocks(rank: int) -> pd.DataFrame:
    """Moments of a step of PyTorch, in ms: the second bucket is ready 20 ms later on rank 1."""
    late = 20 * rank
    moments = [
        ("gather_begins", "", 0), ("gather_ends", "", 2), ("step_begins", "", 3),
        ("forward_ends", "", 20),
        ("gradient_ready", "bucket 0", 30), ("exchanged", "bucket 0", 45),
        ("gradient_ready", "bucket 1", 40 + late), ("exchanged", "bucket 1", 70),
        ("backward_ends", "", 72), ("update_begins", "", 73), ("returned", "", 80),
        ("updated", "bucket 0", 79), ("updated", "bucket 1", 79),
        ("entered", "", 3), ("computed", "", 40 + late), ("summed", "", 73),
    ]  # fmt: skip
    # Nothing is lost of the cores.
    used = {"gather_begins": 0, "entered": 3, "computed": 40 + late, "summed": 60, "returned": 67}
    rows = [
        (1, 1, moment, tensor, 1000 + at / 1000, used.get(moment, np.nan) / 1000, 0.0, 0.0)
        for moment, tensor, at in moments
    ]
    return pd.DataFrame(rows, columns=COLUMNS).assign(rank=rank)


def test_a_step_of_several_calls_has_two_passes_and_buckets_that_each_rank_sees(tmp_path):
    """Bucket 0 is summed while rank 0 still computes, and then waits for bucket 1: an overlap."""
    (tmp_path / "ranks").mkdir()
    for rank in (0, 1):
        clocks = rank_clocks(rank).drop(columns="rank")
        clocks.to_csv(tmp_path / f"ranks/rank{rank}.clocks.csv", index=False)
    table = attribution.run_attribution(tmp_path / "run.json", alone=False, one_clock=True)
    assert (table["kind"] == "measured").all()
    expected = {
        "input": 2, "dispatch": 3, "forward": 17, "backward": 20, "compute": 37, "optimiser": 6,
        "skew": 20, "transfer": 10, "copies": 2, "negotiation": 0, OFF_CORE: 0, OVERLAP: 15,
        UNEXPLAINED: 0,
        WHOLE: 80,
    }  # fmt: skip
    slower = expected | {"backward": 40, "compute": 57, "skew": 0}
    for rank, parts in enumerate((expected, slower)):
        found = 1000 * table[table["rank"] == rank].set_index("part")["seconds"]
        assert found.to_dict() == pytest.approx(parts, abs=1e-3)
    step = attribution.typical_step(pd.concat([rank_clocks(0), rank_clocks(1)]), None)
    assert (step["kind"] == "measured").all()
    assert step[step["rank"] == 0]["part"].tolist() == [
        "input", "dispatch", "forward", "backward", "skew", "transfer", "copies", "dispatch",
        "optimiser", "dispatch",
    ]  # fmt: skip
    apart = attribution.run_attribution(tmp_path / "run.json", alone=False, one_clock=False)
    kinds = apart.groupby("part")["kind"].first()
    assert (kinds[["compute", *PASSES, "optimiser"]] == "measured").all()
    assert (kinds[["skew", "transfer", "copies", OVERLAP, UNEXPLAINED]] == "unavailable").all()


def test_without_a_whole_forward_pass_a_step_of_several_calls_is_computed_in_one_part():
    clocks = rank_clocks(0)
    parts = attribution.per_step(clocks[clocks["moment"] != "forward_ends"], None)
    assert not {*PASSES} & {*parts}
    assert 1000 * parts["compute"].item() == pytest.approx(37, abs=1e-3)


def test_ranks_with_clocks_of_their_own_share_no_axis(tmp_path):
    experiment, runs = clocked(tmp_path)
    for path in runs:
        changed([path], ranks=read_json(path)["ranks"] | {"one_clock": False})
    table = tabled(experiment, probe_files=runs)["step"]
    assert (table["kind"] == "unavailable").all() and len(table) == 3
    assert table["reason"].str.contains("clocks differ").sum() == 2


def test_a_run_that_ended_ok_without_clocks_is_a_row_with_its_reason(tmp_path):
    """The parts of the other runs are those that they have by themselves."""
    experiment, runs = clocked(tmp_path)
    whole = tabled(experiment, probe_files=runs)
    [lost] = [path for path in runs if "/horovod-mpi/" in str(path)]
    for path in lost.parent.glob("ranks/*.clocks.csv"):
        path.unlink()
    rest = tabled(experiment, probe_files=runs)
    for name in ("attribution", "step"):
        table = rest[name]
        [row] = table[table["strategy"] == "horovod-mpi"].to_dict("records")
        assert (row["status"], row["kind"]) == ("ok", "unavailable") and pd.isna(row["part"])
        assert "left no ranks/rank*.clocks.csv" in row["reason"]
        single, before = (each[each["strategy"] == "single"] for each in (table, whole[name]))
        assert single["part"].tolist() == before["part"].tolist() and single["part"].notna().all()
        assert (single["kind"] == "measured").all()


@pytest.fixture(scope="module")
def clock_tables(tmp_path_factory):
    experiment, runs = clocked(tmp_path_factory.mktemp("clocked"))
    return tabled(experiment, probe_files=runs)


def test_the_table_of_a_step_tells_what_is_estimated(clock_tables):
    table = clock_tables["step"]
    known = table.dropna(subset=["part"])
    two = known[known["strategy"] == "horovod-mpi"]
    kinds = two.groupby(["rank", "part"])["kind"].unique().map(list)
    assert kinds[0, "transfer"] == kinds[1, "compute"] == ["measured"]
    assert kinds[1, "transfer"] == ["estimated"]
    assert (known[known["strategy"] == "single"]["kind"] == "measured").all()
    assert table[table["part"].isna()]["strategy"].tolist() == ["horovod-gloo"]


def test_the_table_has_a_row_for_each_part_of_each_rank_and_tells_what_is_estimated(
    clock_tables, tmp_path
):
    table = clock_tables["attribution"]
    tables.write(clock_tables, tmp_path)
    assert tables.read(tmp_path)["attribution"]["part"].equals(table["part"])
    known = table.dropna(subset=["part"]).set_index(["strategy", "rank", "part"])
    assert len(known) == 3 * (len(PARTS) + 4)
    kinds = known["kind"]["horovod-mpi"]
    assert kinds[0, "transfer"] == kinds[1, "skew"] == "measured"
    assert kinds[1, "transfer"] == "estimated"
    assert known["seconds"]["single", 0, "transfer"] == 0
    assert known["source"]["single", 0, UNEXPLAINED] == "clocks of the rank"
    assert table[table["part"].isna()]["strategy"].tolist() == ["horovod-gloo"]
    parts = known["seconds"].drop([OVERLAP, WHOLE], level="part").groupby(["strategy", "rank"])
    assert parts.sum().to_list() == pytest.approx(
        known["seconds"].xs(WHOLE, level="part").to_list()
    )


def test_three_runs_have_an_interval_and_pairs_of_runs_one_of_their_difference(tmp_path):
    """Two processes compute 0, 4 and 8 ms longer in the three runs, and one process 0, 1 and 2."""
    experiment, first = clocked(tmp_path)
    runs = [path for path in first if read_json(path)["status"] == "ok"]
    for path in list(runs):
        per = 0.004 if "horovod-mpi" in path.parts else 0.001
        for repeat in (2, 3):
            copy = path.parent.with_name(f"clocks.rep{repeat}")
            shutil.copytree(path.parent, copy)
            changed([copy / "run.json"], repeat=repeat)
            runs.append(copy / "run.json")
            for file in copy.glob("ranks/*.clocks.csv"):
                clocks = pd.read_csv(file)
                late = ~clocks["moment"].isin(["gather_begins", "gather_ends", "step_begins"])
                late &= clocks["moment"] != "entered"
                clocks.loc[late, ["seconds", "core_seconds"]] += per * (repeat - 1)
                clocks.to_csv(file, index=False)
            if (copy / "timeline.json").exists():
                (copy / "timeline.json").unlink()
    table = tabled(experiment, probe_files=runs)["attribution"].set_index(
        ["strategy", "rank", "part"]
    )
    table = table.sort_index()
    two = table.loc["horovod-mpi", 0]
    assert two["runs"].eq(3).all() and two["matches"].eq(3).all()
    assert two["steps"].eq(9).all()
    expected = mean_interval([0.050, 0.054, 0.058])
    columns = ["seconds", "low_seconds", "high_seconds"]
    assert two.loc["compute", columns].tolist() == pytest.approx([*expected], abs=1e-5)
    steps = two["reference_steps"].iloc[0]
    pairs = [0.050 - steps * 0.050, 0.054 - steps * 0.051, 0.058 - steps * 0.052]
    columns = [f"difference{end}_seconds" for end in ("", "_low", "_high")]
    found = two.loc["compute", columns].tolist()
    assert found == pytest.approx([*mean_interval(pairs)], abs=1e-5)
    assert table.loc["single", "difference_seconds"].isna().all()


def test_runs_of_another_session_are_not_compared(tmp_path):
    experiment, runs = clocked(tmp_path)
    changed(runs[1:], session="20200101T000000Z-1")
    frames = tabled(experiment, probe_files=runs)
    slowdown = frames["attribution"].groupby("strategy")["slowdown"]
    assert slowdown.count().to_dict() == {"single": 12, "horovod-mpi": 0, "horovod-gloo": 0}
    text = summary(frames, "demo", "A title")
    assert "A step of `horovod-mpi 1x2` takes" in text and "than a step of" not in text
    assert "`horovod-mpi 1x2`, 5.0 ms of exchange go on alongside other parts, and" in text


def test_an_offset_between_the_clocks_of_machines_changes_nothing(tmp_path):
    _, runs = clocked(tmp_path)
    [run] = [path for path in runs if "/horovod-mpi/" in str(path)]

    def parts() -> pd.DataFrame:
        found = attribution.run_attribution(run, alone=False, one_clock=False)
        return found.set_index(["rank", "part"])

    before, clocks = parts(), run.with_name("ranks") / "rank1.clocks.csv"
    pd.read_csv(clocks).assign(seconds=lambda moments: moments["seconds"] + 0.04).to_csv(
        clocks, index=False
    )
    after = parts()
    assert after["seconds"].to_numpy() == pytest.approx(
        before["seconds"].to_numpy(), abs=1e-6, nan_ok=True
    )
    assert (before.xs("compute", level="part")["kind"] == "measured").all()
    assert (before.xs("skew", level="part")["kind"] == "unavailable").all()
