"""Traces of profilers are divided as the simulated ranks spent their time."""

from __future__ import annotations

import gzip
import json
import random
import re
from dataclasses import dataclass, field

import numpy as np
import pytest

from escala.analysis.intervals import subtract
from escala.analysis.traces import explain, spans
from escala.core.errors import InputError
from escala.probes import timeline

MAIN, OTHER, GPU = 7, 8, 70
PARTS = ["input", "compute", "skew", "transfer", "copies", "unexplained", "overlap", "whole"]


@dataclass
class Rank:
    """The trace of a rank as Kineto writes it, in microseconds of its own clock."""

    rank: int
    clock: float = 0.0
    world: int = 1
    events: list[dict] = field(default_factory=list)

    def span(self, category, name, begin, end, thread=MAIN, process=1, **arguments):
        moment = (begin + self.clock) * 1e6
        event = {"ph": "X", "cat": category, "name": name, "ts": moment, "dur": (end - begin) * 1e6}
        self.events.append(event | {"pid": process, "tid": thread, "args": arguments})

    def write(self, path, head=True, world=2):
        group = {"backend": "gloo", "pg": [{"x": 1}], "rank": self.rank, "world_size": world}
        about = {"distributedInfo": group}
        content = (about if head else {}) | {"schemaVersion": 1, "traceEvents": self.events}
        path.write_bytes(gzip.compress(json.dumps(content).encode()))
        return path


def on_processor(rank: Rank, slower: float, steps: int = 5) -> None:
    """Steps of 100 ms: 10 of input, 50 of computing (more if slower), 5 of Python, then a sum.

    The first bucket is summed beside computing, and begins last on the rank that is not slower.
    """
    for number in range(steps):
        at = 0.1 * number
        first = at + (0.045 if slower else 0.046)
        rank.span("user_annotation", f"ProfilerStep#{number}", at, at + 0.1)
        rank.span("user_annotation", "enumerate(DataLoader)#_Single.__next__", at, at + 0.01)
        rank.span("cpu_op", "aten::stack", at + 0.002, at + 0.008)
        rank.span("cpu_op", "aten::linear", at + 0.015, at + 0.04)
        rank.span("cpu_op", "aten::addmm", at + 0.02, at + 0.03)
        rank.span("cpu_op", "aten::mul", at + 0.04, at + 0.065 + slower)
        rank.span("cpu_op", "aten::mul", at + 0.02, at + 0.09, thread=OTHER)
        rank.span("cpu_op", "c10d::allreduce_", at + 0.08, at + 0.1)
        rank.span("user_annotation", "gloo:all_reduce", first, at + 0.065, thread=OTHER)
        rank.span("user_annotation", "gloo:all_reduce", at + 0.065 + slower, at + 0.1, thread=OTHER)


def test_steps_of_a_processor_are_divided_and_the_slowest_rank_is_named(tmp_path):
    ranks = [Rank(0), Rank(1, clock=1234.5)]
    for rank, slower in zip(ranks, (0.0, 0.015), strict=True):
        on_processor(rank, slower)
    found = spans.divide([spans.read(rank.write(tmp_path / f"{rank.rank}")) for rank in ranks])
    expected = {
        0: [0.01, 0.05, 0.015, 0.02, 0.0, 0.005, 0.019, 0.1],
        1: [0.01, 0.065, 0.0, 0.02, 0.0, 0.005, 0.02, 0.1],
    }
    for rank, values in expected.items():
        assert found.ranks.loc[rank, PARTS].to_list() == pytest.approx(values, abs=1e-6)
    assert set(found.ranks["steps"]) == {4}, "the first step is left out"
    assert found.last.to_dict() == pytest.approx({0: 0.5, 1: 0.5})
    text = "\n".join(spans.lines(found))
    assert "15.0 (15%)" in text and "35 ms make the step longer" in text
    # Input is a tenth of a step, but for an error of rounding.
    gains = re.findall(r"To save at most (\S+) ms of a step: (\w+)", text)
    assert gains[:2] == [("20", "exchange"), ("15", "give")]
    parallel, balance, communication, serialisation, transfer = map(
        int, re.findall(r"(\d+)%", text.partition("Parallel efficiency ")[2].partition("\n")[0])
    )
    assert (parallel, balance, transfer) == (72, 91, 80)
    assert balance * communication == pytest.approx(100 * parallel, abs=100)
    assert serialisation * transfer == pytest.approx(100 * communication, abs=100)
    assert "load balance 91%" in text


def summing(*times: tuple[float, float, float], marks: str = "user_annotation") -> list[Rank]:
    """Return ranks with steps of 0.1 s: each computes so long, and sums from then until then."""
    ranks = [Rank(number) for number in range(len(times))]
    for rank, (computes, begin, end) in zip(ranks, times, strict=True):
        for step in range(4):
            at = 0.1 * step
            rank.span(marks, f"ProfilerStep#{step}", at, at + 0.1)
            rank.span("cpu_op", "aten::mul", at, at + computes)
            rank.span("user_annotation", "gloo:all_reduce", at + begin, at + end, thread=OTHER)
            rank.span("cpu_op", "c10d::allreduce_", at + begin, at + begin, thread=OTHER,
                      **{"Input Dims": [[[1_000_000]]]})  # fmt: skip
    return ranks


def test_a_change_is_advised_for_the_rank_that_waits_most(tmp_path):
    """The second rank waits for the first one. Steps are operators, as in old traces."""
    ranks = summing((0.09, 0.09, 0.1), (0.05, 0.05, 0.1), marks="cpu_op")
    files = [rank.write(tmp_path / f"{rank.rank}") for rank in ranks]
    text = "\n".join(explain(files))
    assert "2 ranks, 3 steps. A step of rank 0 takes 100 ms" in text
    assert "To save at most 40 ms of a step: give all ranks equal batches" in text
    # No loader tells of its batches.
    assert "input" not in text
    # Without the end of a file, events of any step may be missing.
    content = gzip.decompress(files[0].read_bytes())
    files[0].write_bytes(gzip.compress(content[: len(content) * 3 // 4]))
    text = "\n".join(explain(files))
    assert "not read to its end" in text and "To save" not in text and "Gbit" not in text
    with pytest.raises(InputError, match="has no end"):
        spans.attribution(files)
    with pytest.raises(InputError, match="does not tell its rank"):
        [*explain([ranks[0].write(tmp_path / "none", head=False), files[1]])]


def test_a_rank_alone_does_not_tell_whom_it_waits_for(tmp_path):
    on_processor(rank := Rank(3), 0.0)
    found = spans.divide([spans.read(rank.write(tmp_path / "3"))])
    row = found.ranks.loc[3]
    assert np.isnan(row["skew"]) and row["transfer"] == pytest.approx(0.035)
    assert found.last.empty and "not known" in "\n".join(spans.lines(found))
    parts = spans.attribution([tmp_path / "3"]).set_index("part")
    assert parts.loc["skew", "kind"] == "unavailable"
    # A training of one rank waits for no other.
    single = spans.divide([spans.read(rank.write(tmp_path / "single", world=1))])
    assert single.ranks.loc[3, "skew"] == 0 and "not known" not in "\n".join(spans.lines(single))
    assert parts.loc["transfer", "seconds"] == row["transfer"]


def test_steps_of_a_gpu_are_those_of_its_kernels(tmp_path):
    """The order of precedence, by an independent count of each microsecond of a step."""
    drawn, rank = random.Random(0), Rank(0)
    covers = {part: np.zeros(3000, bool) for part in ("compute", "transfer", "copies", "input")}
    kinds = {
        "compute": ("kernel", "void gemm<float>(int)"),
        "transfer": ("kernel", "ncclDevKernel_AllReduce_Sum_f32"),
        "copies": ("gpu_memcpy", "Memcpy HtoD"),
        "input": ("user_annotation", "enumerate(DataLoader)#_Multi.__next__"),
    }
    for step in range(3):
        rank.span("user_annotation", f"ProfilerStep#{step}", step * 1e-3, (step + 1) * 1e-3)
    for part, (category, name) in kinds.items():
        for _ in range(20):
            begin, length = drawn.randrange(2900), drawn.randrange(1, 60)
            covers[part][begin : begin + length] = True
            where = {"thread": MAIN} if part == "input" else {"thread": GPU, "process": 0}
            rank.span(category, name, begin * 1e-6, (begin + length) * 1e-6, **where)
    rank.span("cpu_op", "aten::linear", 0, 3e-3)
    row = spans.divide([spans.read(rank.write(tmp_path / "0"))]).ranks.loc[0]
    free = np.ones(3000, bool)
    for part, covered in covers.items():
        expected = (covered & free)[1000:].sum() / 2 * 1e-6
        assert row[part] == pytest.approx(expected, abs=1e-8), part
        free &= ~covered
    assert row["unexplained"] == pytest.approx(free[1000:].sum() / 2 * 1e-6, abs=1e-8)
    hidden = (covers["transfer"] & covers["compute"])[1000:].sum() / 2 * 1e-6
    assert row["overlap"] == pytest.approx(hidden, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "kind", "bytes_moved"),
    [
        # Of four ranks with 30 million numbers, by the bus bandwidth of NCCL Tests.
        ("allreduce", "Half", 2 * 3 / 4 * 60e6),
        ("_allgather_base", "Float", 3 / 4 * 120e6),
        ("reduce_scatter_tensor", "Double", 3 / 4 * 240e6),
        ("all_to_allv", "Float8_e5m2", 3 / 4 * 30e6),
        ("broadcast", "Long", 240e6),
        ("allreduce", "Unheard", None),
    ],
)
@pytest.mark.parametrize("exchange", [0.03, 0.08])
def test_what_collectives_move_tells_the_rate_of_an_exchange(
    name, kind, bytes_moved, exchange, tmp_path
):
    """A step computes for 60 ms, and exchanges for a shorter or longer time, half of it beside."""
    rank, numbers = Rank(0), {"In msg nelems": 30_000_000, "dtype": kind, "Group size": 4}
    for step in range(3):
        at = step * 0.2
        begin = at + 0.06 - exchange / 2
        rank.span("user_annotation", f"ProfilerStep#{step}", at, at + 0.2)
        rank.span("kernel", "gemm", at, at + 0.06)
        rank.span("kernel", "ncclDevKernel", begin, begin + exchange,
                  **numbers, **{"Collective name": name})  # fmt: skip
        # The operator that begins it tells of the same numbers.
        rank.span("cpu_op", "c10d::allreduce_", at, at + 0.01, **{"Input Dims": [[[30_000_000]]]})
    found = spans.divide([spans.read(rank.write(tmp_path / "gpu", world=1))])
    row, text = found.ranks.loc[0], "\n".join(spans.lines(found))
    if bytes_moved is None:
        assert row[["bytes", "rate", "needed"]].isna().all() and "Gbit" not in text
        return
    assert row["bytes"] == pytest.approx(bytes_moved)
    assert row["rate"] == pytest.approx(8e-9 * bytes_moved / exchange)
    assert row["needed"] == pytest.approx(8e-9 * bytes_moved / 0.06)
    rate, needed = (f"{float(f'{row[name]:.3g}'):g}" for name in ("rate", "needed"))
    assert f"at {rate} Gbit/s" in text and f"need {needed} Gbit/s" in text
    if exchange / 2 >= spans.WORTH * row["whole"]:
        assert ("smaller buckets" in text) == (exchange < 0.06)
        assert ("exchange less often" in text) == (exchange > 0.06)


def test_waiting_for_another_rank_does_not_slow_the_rate_of_an_exchange(tmp_path):
    """The second rank begins 10 ms later, while the first one computes beside the collective."""
    ranks = summing((0.06, 0.04, 0.07), (0.06, 0.05, 0.07))
    found = spans.divide([spans.read(rank.write(tmp_path / f"{rank.rank}")) for rank in ranks])
    assert found.ranks["rate"].to_list() == pytest.approx([8e-9 * 4e6 / 0.02] * 2)
    # Of one rank alone, it is not known how long it waits.
    alone = spans.divide([spans.read(ranks[0].write(tmp_path / "alone"))])
    assert np.isnan(alone.ranks.loc[0, "rate"]) and alone.ranks.loc[0, "needed"] > 0


def test_collectives_of_gloo_tell_what_they_move_by_their_shapes(tmp_path):
    ranks = [Rank(0), Rank(1)]
    for rank in ranks:
        on_processor(rank, 0.0)
        for step in range(5):
            at = 0.1 * step
            for name, dims in (
                ("allreduce_", [[[1000, 250]], []]),
                ("allreduce_", [[[250]]]),
                ("_allgather_base_", [[750], [250]]),
                ("broadcast_", [[[40], [10]]]),
                ("barrier", [[[]], []]),
            ):
                rank.span("cpu_op", f"c10d::{name}", at + 0.08, at + 0.1, **{"Input Dims": dims})
    files = [rank.write(tmp_path / f"{rank.rank}") for rank in ranks]
    found = spans.divide([*map(spans.read, files)])
    moved = 4 * ((2 * 250_250 + 750) / 2 + 50)
    assert found.ranks["bytes"].to_list() == pytest.approx([moved, moved])
    parts = spans.attribution(files).set_index(["rank", "part"])["bytes"]
    assert parts[1, "transfer"] == pytest.approx(moved)
    assert parts.drop("transfer", level=1).isna().all()
    # What lists of lists of tensors hold is not in a trace.
    ranks[0].span("cpu_op", "c10d::allgather_", 0.25, 0.26, **{"Input Dims": [[], [[250]]]})
    unknown = spans.divide([spans.read(ranks[0].write(tmp_path / "unknown"))])
    assert np.isnan(unknown.ranks.loc[0, "bytes"])


def test_steps_of_jax_are_those_of_the_operations_of_xla(tmp_path):
    """Steps of 10 ms: 6 of computing, or 7 of the slower rank, and then a sum."""
    paths = []
    for number, late in enumerate((0.0, 0.001)):
        rank = Rank(number, clock=5.0 * number)
        for step in range(4):
            at = 0.01 * step
            rank.span("", "train", at, at + 0.01, step_num=step)
            rank.span("", "dot.1", at + 0.001, at + 0.007 + late, OTHER, hlo_op="dot.1")
            rank.span("", "end: dot.1", at + 0.007, at + 0.0071, OTHER)
            rank.span("", "while.3", at + 0.001, at + 0.01, OTHER, hlo_op="while.3")
            rank.span("", "all-reduce", at + 0.007 + late, at + 0.01, OTHER, hlo_op="all-reduce")
        rank.events.append({})
        paths.append(rank.write(tmp_path / str(number), head=False))
    found = spans.divide([*map(spans.read, paths)])
    expected = {0: [0.006, 0.001, 0.002, 0.001], 1: [0.007, 0.0, 0.002, 0.001]}
    for rank, values in expected.items():
        shown = found.ranks.loc[rank, ["compute", "skew", "transfer", "unexplained"]]
        assert shown.to_list() == pytest.approx(values, abs=1e-8)
    assert found.last.to_dict() == {1: 1.0}
    assert found.notes == [
        "Files do not tell their ranks: they are taken for those of ranks 0, 1, …"
    ]
    assert next(explain(paths)).startswith("2 ranks, 3 steps. A step of rank")


def test_a_trace_that_is_cut_without_steps_or_of_something_else_is_told(tmp_path, capsys):
    rank = Rank(0)
    on_processor(rank, 0.0)
    rank.events = [event for event in rank.events if "Step" not in event["name"]]
    path = rank.write(tmp_path / "whole.json.gz", head=False)
    assert "marks no steps" in "\n".join(explain([path]))
    cut = tmp_path / "cut.json"
    cut.write_bytes(gzip.decompress(path.read_bytes())[:-40])
    assert "not read to its end: it has no end" in "\n".join(explain([cut]))
    on_processor(rank, 0.0, steps=300)
    damaged = rank.write(tmp_path / "damaged.json.gz")
    damaged.write_bytes(damaged.read_bytes()[:-30])
    assert "not read to its end" in "\n".join(explain([damaged]))
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"traceEvents": [{"ph": "X", "cat": "kernel"}]}))
    with pytest.raises(InputError):
        list(explain([other]))


def test_collectives_of_a_gpu_that_is_not_recorded_are_unknown(tmp_path):
    rank = Rank(0)
    rank.span("user_annotation", "nccl:all_reduce", 0.01, 0.02)
    rank.span("cpu_op", "aten::linear", 0.0, 0.01)
    found = spans.divide([spans.read(rank.write(tmp_path / "0"))])
    assert found.ranks.loc[0, ["skew", "transfer", "overlap"]].isna().all()
    assert "ProfilerActivity.CUDA" in "\n".join(spans.lines(found))


def test_two_traces_of_one_rank_are_refused(tmp_path):
    paths = []
    for name in ("one", "other"):
        on_processor(rank := Rank(0), 0.0)
        paths.append(rank.write(tmp_path / name))
    with pytest.raises(InputError, match=r"is of rank 0, and so is .*one"):
        list(explain(paths))
    with pytest.raises(InputError, match="is of rank 0"):
        list(explain([paths[0], paths[0]]))


def two_ranks(folder, change) -> spans.Breakdown:
    """Divide the traces of two ranks, of which the second is slower and was changed."""
    for number, slower in ((0, 0.0), (1, 0.015)):
        on_processor(rank := Rank(number), slower)
        change(rank)
        rank.write(folder / str(number), world=rank.world)
    return spans.divide([spans.read(folder / str(number)) for number in range(2)])


def missing_ranks(rank: Rank) -> None:
    rank.world = 4


def other_steps(rank: Rank) -> None:
    for event in rank.events:
        if rank.rank and event["name"].startswith("ProfilerStep"):
            event["name"] += "0"


def other_ends(rank: Rank) -> None:
    """The sums of rank 1 end at other moments, as in another run."""
    drawn = random.Random(rank.rank)
    for event in rank.events:
        if rank.rank and event["name"] == "gloo:all_reduce":
            event["ts"] += drawn.uniform(0, 1e5)


def fewer_collectives(rank: Rank) -> None:
    if rank.rank:
        rank.events.pop()


@pytest.mark.parametrize("change", [missing_ranks, other_steps, other_ends, fewer_collectives])
def test_waiting_is_unknown_if_collectives_of_all_ranks_are_not_known_to_be_equal(change, tmp_path):
    assert two_ranks(tmp_path / "", lambda rank: None).ranks["skew"].notna().all()
    found = two_ranks(tmp_path, change)
    assert found.ranks["skew"].isna().all() and found.last.empty
    assert "efficiency" not in "\n".join(spans.lines(found))


def test_steps_that_hold_an_evaluation_or_are_cut_do_not_count(tmp_path):
    rank = Rank(0)
    on_processor(rank, 0.0, steps=6)
    rank.span("user_annotation", "ProfilerStep#6", 0.6, 0.9)
    rank.span("cpu_op", "aten::linear", 0.6, 0.9)
    rank.span("user_annotation", "ProfilerStep#7", 0.9, 0.9001)
    rank.span("user_annotation", "ProfilerStep#7", 0.301, 0.302)  # Within another one.
    for lasts in (-0.1, 1e9):
        rank.span("cpu_op", "aten::linear", 0.1, 0.1 + lasts)
    row = spans.divide([spans.read(rank.write(tmp_path / "0"))]).ranks.loc[0]
    assert row["steps"] == 5 and row["whole"] == pytest.approx(0.1)
    assert row["compute"] == pytest.approx(0.05)


def test_an_operator_that_awaits_a_collective_does_not_compute(tmp_path):
    rank = Rank(0)
    for number in range(4):
        at = 0.1 * number
        rank.span("user_annotation", f"ProfilerStep#{number}", at, at + 0.1)
        rank.span("cpu_op", "autograd::engine", at, at + 0.09)
        rank.span("cpu_op", "_c10d_functional::wait_tensor", at + 0.05, at + 0.08)
        rank.span("user_annotation", "gloo:all_reduce", at + 0.04, at + 0.07, thread=OTHER)
        # The optimizer waits for 2 of its 8 ms.
        rank.span("user_annotation", "Optimizer.step#Zero.step", at + 0.091, at + 0.099)
        rank.span("user_annotation", "gloo:broadcast", at + 0.097, at + 0.1, thread=OTHER)
    row = spans.divide([spans.read(rank.write(tmp_path / "0"))]).ranks.loc[0]
    assert row["compute"] == pytest.approx(0.06 + 0.006)
    assert row["transfer"] == pytest.approx(0.02 + 0.003)
    assert row["unexplained"] == pytest.approx(0.01 + 0.001)
    assert row["overlap"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    "name", ["psum_invariant.7", "all-reduce-start.2", "ncclDevKernel_AllReduce"]
)
def test_work_outside_of_steps_and_collectives_of_jax_are_known(name, tmp_path):
    rank = Rank(0)
    for number in range(4):
        at = 0.01 * number
        rank.span("", "train", at, at + 0.0001, step_num=number)
        rank.span("", "dot.1", at, at + 0.006, OTHER, hlo_op="dot.1", device_ordinal="0")
        rank.span("", "dot.1", at, at + 0.006, GPU, hlo_op="dot.1", device_ordinal="1")
        rank.span("", name, at + 0.006, at + 0.01, OTHER, hlo_op="all-reduce-start")
    trace = spans.read(rank.write(tmp_path / "0"))
    assert sum(map(len, trace.collectives.values())) == 8
    notes = "\n".join(spans.divide([trace]).notes)
    assert "outside of its marked steps" in notes and "has 2 devices" in notes


def test_what_is_left_of_intervals_is_what_no_other_covers():
    drawn = np.random.default_rng(0)
    for _ in range(200):
        covers = []
        for _ in range(2):
            begins = drawn.integers(0, 90, drawn.integers(0, 8))
            spans_of = np.column_stack([begins, begins + drawn.integers(1, 20, len(begins))])
            covers.append(spans_of.astype(float))
        grid = np.arange(120) + 0.5
        inside = [((c[:, :1] < grid) & (grid < c[:, 1:])).any(axis=0) for c in covers]
        left = subtract(*covers)
        assert (left[1:, 0] >= left[:-1, 1]).all()
        found = ((left[:, :1] < grid) & (grid < left[:, 1:])).any(axis=0)
        assert (found == (inside[0] & ~inside[1])).all()
        assert np.diff(left).sum() == found.sum()


def test_ranks_that_files_do_not_tell_are_numbered_in_their_order(tmp_path):
    ranks = [Rank(0), Rank(0)]
    for rank in ranks:
        on_processor(rank, 0.0)
    paths = [
        rank.write(tmp_path / name, head=False) for rank, name in zip(ranks, "ab", strict=True)
    ]
    found = spans.divide([*map(spans.read, paths)])
    assert found.ranks.index.to_list() == [0, 1] and "do not tell their ranks" in found.notes[0]
    named = [
        path.rename(tmp_path / f"rank{rank}.json") for path, rank in zip(paths, "72", strict=True)
    ]
    found = spans.divide([*map(spans.read, named)])
    assert found.ranks.index.to_list() == [2, 7] and not any("ranks 0" in n for n in found.notes)


@pytest.mark.parametrize("before", range(0, 16, 3))
def test_events_are_found_wherever_a_file_is_divided_to_be_read(before, tmp_path):
    on_processor(rank := Rank(0), 0.0)
    content = json.dumps({"pad": "", "traceEvents": rank.events})
    pad = "x" * (timeline._BLOCK - before - content.index('"traceEvents"'))
    (tmp_path / "rank0.json").write_text(content.replace('""', f'"{pad}"', 1))
    text = "\n".join(explain([tmp_path / "rank0.json"]))
    assert "1 rank, 4 steps" in text and "not read" not in text
