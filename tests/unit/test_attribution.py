"""A step split into parts: the arithmetic, and hand-made clocks and timelines."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import (
    FakeExperiment,
    changed,
    clocked,
    clocks_of_rank,
    horovod_events,
    program,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import table_of, tabled
from sentences import check

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
from escala.analysis.traces.spans import SOURCE
from escala.core.files import read_json, write_json
from escala.probes import timeline
from escala.probes.clocks import COLUMNS
from escala.report import tables
from escala.report.findings import why, write
from escala.report.findings.context import Report

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
    found[["start_seconds", "end_seconds"]] += timeline.start_seconds(horovod_events())
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
    typical = attribution.typical_step(clocks, phases())
    assert typical[["epoch", "step"]].drop_duplicates().to_numpy().tolist() == [[1, 2]]
    for rank, begins in ((0, 0.0), (1, 0.001)):
        rows = typical[typical["rank"] == rank]
        starts, ends = rows["start_seconds"].to_numpy(), rows["end_seconds"].to_numpy()
        assert (starts[0], ends[-1]) == pytest.approx((begins, begins + 0.109), abs=1e-6)
        assert (starts[1:] == ends[:-1]).all()
    rank_0 = typical[typical["rank"] == 0]
    assert rank_0["part"].tolist()[:4] == ["input", "dispatch", "compute", "skew"]
    lengths = 1000 * (rank_0["end_seconds"] - rank_0["start_seconds"])
    sums = lengths.groupby(rank_0["part"]).sum()
    assert sums["skew"] == pytest.approx(21, abs=1e-3), "it waits a millisecond longer"
    assert sums["compute"] == pytest.approx(two_ranks.loc[0]["compute"].mean(), abs=1e-3)
    # The shorter of two steps in the middle is typical.
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
    # Without a whole forward pass, it is computed in one part.
    clocks = rank_clocks(0)
    parts = attribution.per_step(clocks[clocks["moment"] != "forward_ends"], None)
    assert not {*PASSES} & {*parts}
    assert 1000 * parts["compute"].item() == pytest.approx(37, abs=1e-3)
    apart = attribution.run_attribution(tmp_path / "run.json", alone=False, one_clock=False)
    kinds = apart.groupby("part")["kind"].first()
    assert (kinds[["compute", *PASSES, "optimiser"]] == "measured").all()
    assert (kinds[["skew", "transfer", "copies", OVERLAP, UNEXPLAINED]] == "unavailable").all()


def test_a_run_that_ended_ok_without_clocks_is_a_row_with_its_reason(tmp_path):
    """The parts of the other runs are those that they have by themselves."""
    experiment, runs = clocked(tmp_path)
    whole = tabled(experiment, probe_files=runs)
    [lost] = [path for path in runs if "/horovod-mpi/" in str(path)]
    for path in lost.parent.glob("ranks/*.clocks.csv"):
        path.unlink()
    rest = tabled(experiment, probe_files=runs)
    for name in ("attribution", "step"):
        [row] = rest[name].query("strategy == 'horovod-mpi'").to_dict("records")
        assert (row["status"], row["kind"]) == ("ok", "unavailable") and pd.isna(row["part"])
        assert "left no ranks/rank*.clocks.csv" in row["reason"]
        single, before = (each[name].query("strategy == 'single'") for each in (rest, whole))
        assert single["part"].tolist() == before["part"].tolist() and single["part"].notna().all()
        assert (single["kind"] == "measured").all()


def write_traces(folder: Path, ranks: int, seconds: float) -> None:
    """Write the trace of each rank of a program: steps of these seconds, half of it computing."""
    folder.mkdir(parents=True)
    for rank in range(ranks):
        events = [
            {"ph": "X", "pid": 1, "tid": 1, "ts": 1e6 * seconds * step, "dur": 1e6 * part} | about
            for step in range(5)
            for part, about in (
                (seconds, {"cat": "user_annotation", "name": f"ProfilerStep#{step}"}),
                (seconds / 2, {"cat": "cpu_op", "name": "aten::linear"}),
            )
        ]
        content = {"distributedInfo": {"rank": rank}, "traceEvents": events}
        packed = gzip.compress(json.dumps(content).encode())
        (folder / f"rank{rank}.trace.json.gz").write_bytes(packed)


def traced(root: Path) -> tuple[FakeExperiment, list[Path]]:
    """Return a program, and runs with traces of one process and of two, with their operations."""
    experiment = program(root)
    probe_runs = []
    for strategy, seconds in (("single", 0.08), ("torch-ddp", 0.1)):
        [timed] = [p for p in experiment.runs if f"/{strategy}/" in str(p) and "rep1" in p.parts]
        for repeat in (1, 2, 3):
            path = timed.parent.with_name(f"torch-trace.rep{repeat}") / "run.json"
            ranks = 1 if strategy == "single" else 2
            write_traces(path.parent / "ranks", ranks, seconds)
            for rank in range(ranks):
                counted = {"step": 3e9, "matrix_products_per_second": 1e11}
                write_json(path.parent / f"ranks/operations{rank}.json", counted)
            write_json(path, read_json(timed) | {"instrument": "torch-trace", "repeat": repeat})
            probe_runs.append(path)
    return experiment, probe_runs


def test_operations_of_steps_are_compared_with_matrix_products(tmp_path):
    experiment, probe_runs = traced(tmp_path)
    tables = tabled(experiment, probe_files=probe_runs)
    found = tables["efficiencies"].query("source == 'core time'").set_index("strategy")
    for strategy, ranks in (("single", 1), ("torch-ddp", 2)):
        times = tables["runs"].query(f"strategy == '{strategy}'")["train_seconds_per_epoch"]
        [path, *_] = [path for path in probe_runs if f"/{strategy}/" in str(path)]
        step = times.median() / read_json(path)["epochs"][0]["steps"]
        row = found.loc[strategy]
        assert row["operations_per_second"] == pytest.approx(ranks * 3e9 / step)
        assert row["product_operations_per_second"] == ranks * 1e11
        assert row["operations_fraction"] == pytest.approx(0.03 / step)
    report = Report(tables)
    sentences = list(write(why.operations, report, report))
    check(sentences)
    assert len(sentences) == 2 and "billion" in sentences[0].text
    (probe_runs[-1].parent / "ranks/operations1.json").unlink()
    for path in probe_runs[3:5]:
        (path.parent / "ranks/operations0.json").unlink()
    some = table_of("efficiencies", experiment, probe_files=probe_runs).set_index("strategy")
    assert some.loc["torch-ddp", "operations_per_second"].isna().all(), "a rank lacks"


@pytest.mark.parametrize("fault", [None, "a rank lacks", "a file is cut"])
def test_traces_divide_the_steps_of_a_program(fault, tmp_path):
    experiment, probe_runs = traced(tmp_path)
    last = probe_runs[-1].parent / "ranks/rank1.trace.json.gz"
    if fault == "a rank lacks":
        last.unlink()
    elif fault:
        last.write_bytes(b"")
    table = table_of("attribution", experiment, probe_files=probe_runs)
    left_out = table[table["part"].isna()]
    reasons = {"a rank lacks": "of 2 ranks, 1 left a trace", "a file is cut": "holds 0 spans"}
    assert len(left_out) == (fault is not None)
    assert left_out["reason"].str.contains(reasons.get(fault, "")).all()
    known = table.dropna(subset="part").set_index(["strategy", "rank", "part"])
    two = known.loc["torch-ddp"]
    assert two["runs"].eq(3 - (fault is not None)).all() and {*two["source"].dropna()} == {SOURCE}
    assert two.loc[(1, "compute"), "seconds"] == pytest.approx(0.05)
    assert two.loc[(1, "unexplained"), "seconds"] == pytest.approx(0.05)
    # A step of two ranks is compared with as many steps of one as it makes in an epoch.
    one, both = (read_json(probe_runs[place])["epochs"][-1]["steps"] for place in (0, 3))
    assert two["reference_steps"].eq(one / both).all() and one > both
    for part, seconds, alone in ((WHOLE, 0.1, 0.08), ("compute", 0.05, 0.04)):
        expected = seconds - one / both * alone
        assert two.loc[(0, part), "difference_seconds"] == pytest.approx(expected)


@pytest.fixture(scope="module")
def clock_tables(tmp_path_factory):
    experiment, runs = clocked(tmp_path_factory.mktemp("clocked"))
    return tabled(experiment, probe_files=runs)


def test_the_tables_have_each_part_of_each_rank_and_what_is_estimated(clock_tables, tmp_path):
    steps = clock_tables["step"]
    two = steps[steps["strategy"] == "horovod-mpi"]
    kinds = two.groupby(["rank", "part"])["kind"].unique().map(list)
    assert kinds[0, "transfer"] == kinds[1, "compute"] == ["measured"]
    assert kinds[1, "transfer"] == ["estimated"]
    assert (steps[steps["strategy"] == "single"]["kind"] == "measured").all()
    table = clock_tables["attribution"]
    for each in (steps, table):
        assert each[each["part"].isna()]["strategy"].tolist() == ["horovod-gloo"]
    tables.write(clock_tables, tmp_path)
    assert tables.read(tmp_path)["attribution"]["part"].equals(table["part"])
    known = table.dropna(subset=["part"]).set_index(["strategy", "rank", "part"])
    assert len(known) == 3 * (len(PARTS) + 4)
    kinds = known["kind"]["horovod-mpi"]
    assert kinds[0, "transfer"] == kinds[1, "skew"] == "measured"
    assert kinds[1, "transfer"] == "estimated"
    assert known["seconds"]["single", 0, "transfer"] == 0
    seconds = known["seconds"]
    parts = seconds.drop([OVERLAP, WHOLE], level="part").groupby(["strategy", "rank"]).sum()
    assert parts.to_list() == pytest.approx(seconds.xs(WHOLE, level="part").to_list())


def test_three_runs_have_a_range_and_pairs_of_runs_an_interval_of_their_difference(tmp_path):
    """Two processes compute 0, 4 and 300 ms longer in the three runs, and one process 0, 1, 2."""
    experiment, first = clocked(tmp_path)
    runs = [path for path in first if read_json(path)["status"] == "ok"]
    for path in list(runs):
        delays = (0.004, 0.3) if "horovod-mpi" in path.parts else (0.001, 0.002)
        for repeat, delay in zip((2, 3), delays, strict=True):
            copy = path.parent.with_name(f"clocks.rep{repeat}")
            shutil.copytree(path.parent, copy)
            changed([copy / "run.json"], repeat=repeat)
            runs.append(copy / "run.json")
            for file in copy.glob("ranks/*.clocks.csv"):
                clocks = pd.read_csv(file)
                late = ~clocks["moment"].isin(["gather_begins", "gather_ends", "step_begins"])
                late &= clocks["moment"] != "entered"
                clocks.loc[late, ["seconds", "core_seconds"]] += delay
                clocks.to_csv(file, index=False)
            if (copy / "timeline.json").exists():
                (copy / "timeline.json").unlink()
    table = table_of("attribution", experiment, probe_files=runs).set_index(
        ["strategy", "rank", "part"]
    )
    table = table.sort_index()
    two = table.loc["horovod-mpi", 0]
    assert two["runs"].eq(3).all() and two["matches"].eq(3).all()
    assert two["steps"].eq(9).all()
    of_runs = [0.050, 0.054, 0.350]
    columns = ["seconds", "low_seconds", "high_seconds"]
    expected = [np.mean(of_runs), min(of_runs), max(of_runs)]
    assert two.loc["compute", columns].tolist() == pytest.approx(expected, abs=1e-5)
    assert mean_interval(of_runs).low < 0 <= two["low_seconds"].min(), "no time is negative"
    steps = two["reference_steps"].iloc[0]
    pairs = [mine - steps * one for mine, one in zip(of_runs, (0.050, 0.051, 0.052), strict=True)]

    columns = [f"difference{end}_seconds" for end in ("", "_low", "_high")]
    found = two.loc["compute", columns].tolist()
    assert found == pytest.approx([*mean_interval(pairs)], abs=1e-5)
    assert table.loc["single", "difference_seconds"].isna().all()


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
    # Such ranks share no axis.
    experiment, runs = clocked(tmp_path / "other")
    for path in runs:
        changed([path], ranks=read_json(path)["ranks"] | {"one_clock": False})
    table = table_of("step", experiment, probe_files=runs)
    assert (table["kind"] == "unavailable").all() and len(table) == 3
    assert table["reason"].str.contains("clocks differ").sum() == 2


WINDOWS = (("gather_begins", "entered"), ("entered", "computed"), ("summed", "returned"))
#: Of a moment and tensor: when it was, and core, queue and idle seconds, None where not sampled.
Moments = Mapping[tuple[str, str], tuple[float, float | None, float | None, float | None]]


def by_hand(steps: Mapping[int, Moments]) -> dict[int, dict[str, float]]:
    """Return the seconds of the parts of a step of each rank, by subtraction of moments."""
    all_ready = max(_last(moments, "gradient_ready") for moments in steps.values())
    return {rank: _step(moments, all_ready) for rank, moments in steps.items()}


def _last(moments: Moments, name: str) -> float:
    return max(at for (moment, tensor), (at, *_) in moments.items() if moment == name and tensor)


def _lost(moments: Moments, first: str, last: str) -> float:
    (start, used, queued, _), (end, used_then, queued_then, _) = (
        moments[name, ""] for name in (first, last)
    )
    return max(0.0, min(queued_then - queued, end - start - (used_then - used)))


def _step(moments: Moments, all_ready: float) -> dict[str, float]:
    (start, *first), (end, *last) = (moments[name, ""] for name in ("gather_begins", "returned"))
    by_others = end - start - (last[0] - first[0]) - (last[2] - first[2])
    wanted = sum(_lost(moments, *window) for window in WINDOWS)
    share = min(1.0, max(0.0, by_others) / wanted) if wanted else 0.0
    begins, gathered, entered, returned = (
        moments[name, ""][0] for name in ("gather_begins", "gather_ends", "step_begins", "returned")
    )
    ready, arrived, updated = (
        _last(moments, name) for name in ("gradient_ready", "exchanged", "updated")
    )
    exchange_begins = min(all_ready, arrived)
    works = (
        {"input": gathered - begins, "entering": entered - gathered},
        {"compute": ready - entered},
        {"optimiser": updated - arrived, "leaving": returned - updated},
    )
    lost, parts = 0.0, {}
    for window, work in zip(WINDOWS, works, strict=True):
        fraction = min(1.0, share * _lost(moments, *window) / sum(work.values()))
        for part, seconds in work.items():
            lost += fraction * seconds
            parts[part] = seconds - fraction * seconds
    return {
        "input": parts["input"],
        "dispatch": parts["entering"] + parts["leaving"],
        "compute": parts["compute"],
        "optimiser": parts["optimiser"],
        "skew": exchange_begins - ready,
        "exchange": arrived - exchange_begins,
        "off the core": lost,
        "whole": returned - begins,
    }


NAMES = ("input", "dispatch", "compute", "optimiser", "skew", OFF_CORE, WHOLE)


def row(step: int, moment: str, tensor: str, *numbers: int | None, rank: int = 0) -> tuple:
    """Return a row of clocks, from milliseconds."""
    seconds = [None if each is None else each / 1e3 for each in numbers]
    return (1, step, moment, tensor, 1000 + seconds[0], *(seconds[1:] or [None] * 3), rank)


milliseconds = st.integers(1, 200)


@st.composite
def steps_of_ranks(draw) -> tuple[pd.DataFrame, dict[int, float]]:
    """Moments of one step of two ranks with two tensors, whose sums do not arrive together.

    The second return value is when each rank has its last gradient, in ms.
    """
    rows, ready = [], {rank: draw(st.integers(20, 300)) for rank in (0, 1)}
    sent = max(ready.values()) + draw(milliseconds)
    first_arrival = draw(st.integers(max(ready.values()) + 1, sent))
    for rank, last in ready.items():
        updated = sent + draw(milliseconds)
        returned = updated + draw(milliseconds)
        # Of each of the three times with work, how long threads waited and cores did not run them.
        lengths = 3, last - 3, returned - sent
        queued, missing = ([draw(st.integers(0, each)) for each in lengths] for _ in range(2))
        idle = draw(st.integers(0, sum(missing)))
        used = [length - each for length, each in zip(lengths, missing, strict=True)]
        at = [
            ("gather_begins", "", 0, 0, 0, 0), ("gather_ends", "", 2),
            ("step_begins", "", 3), ("entered", "", 3, used[0], queued[0], None),
            ("gradient_ready", "a", draw(st.integers(4, last))), ("gradient_ready", "b", last),
            ("computed", "", last, sum(used[:2]), sum(queued[:2]), None),
            ("exchanged", "a", first_arrival), ("exchanged", "b", sent),
            # The rank is as busy in its wait as it can be.
            ("summed", "", sent, sum(used[:2]) + sent - last, sum(queued[:2]), None),
            ("updated", "a", draw(st.integers(sent, updated))), ("updated", "b", updated),
            ("returned", "", returned, sum(used) + sent - last, sum(queued), idle),
        ]  # fmt: skip
        rows += [row(1, moment, tensor, *numbers, rank=rank) for moment, tensor, *numbers in at]
    return pd.DataFrame(rows, columns=[*COLUMNS, "rank"]), ready


@settings(max_examples=40)
@given(steps_of_ranks())
def test_the_parts_are_those_by_hand_and_add_up(drawn):
    clocks, ready = drawn
    steps = attribution.per_step(clocks, None)
    moments: dict[int, dict] = {0: {}, 1: {}}
    for row in clocks.itertuples():
        used = [None if pd.isna(each) else each for each in row[6:9]]
        moments[row.rank][row.moment, row.tensor] = (row.seconds, *used)
    hand = by_hand(moments)
    for rank in (0, 1):
        parts = steps.loc[rank].iloc[0]
        assert parts[[*PARTS, OFF_CORE, UNEXPLAINED]].sum() == pytest.approx(parts[WHOLE])
        for name in NAMES:
            assert parts[name] == pytest.approx(hand[rank][name], abs=1e-5), name
        rest = parts[["transfer", "copies", "negotiation", UNEXPLAINED]].sum()
        assert rest == pytest.approx(hand[rank]["exchange"], abs=1e-5)
        assert parts["skew"] == pytest.approx((max(ready.values()) - ready[rank]) / 1e3, abs=1e-5)


def test_what_was_not_sampled_is_unavailable_and_not_0():
    step = [
        ("gather_begins", "", 0), ("gather_ends", "", 1), ("step_begins", "", 2),
        ("gradient_ready", "a", 50), ("exchanged", "a", 50), ("updated", "a", 60),
        ("returned", "", 61),
    ]  # fmt: skip
    clocks = pd.DataFrame([row(1, *each) for each in step], columns=[*COLUMNS, "rank"])
    steps = attribution.per_step(clocks, None)
    table = attribution.summary(steps, True, attribution.SOURCES).set_index("part")
    assert table.loc[OFF_CORE, "kind"] == "unavailable"
    assert pd.isna(table.loc[OFF_CORE, "seconds"])
    assert 1e3 * table.loc["compute", "seconds"] == pytest.approx(48)
