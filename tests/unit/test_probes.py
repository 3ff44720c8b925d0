"""What probes record: clocks, timelines, traces, collectives, and moments where a clock is set."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import timeline_text
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.core.errors import InputError, Unavailable
from escala.core.files import read_json
from escala.engines.base import Group, MadeStep
from escala.probes import PROBES, collectives, timeline, with_probe_settings
from escala.probes._sampler import announce
from escala.probes.clocks import RETURNED, STEP_BEGINS, clock_offset
from escala.probes.collectives import Collectives
from escala.probes.resources import Rank
from escala.probes.torch_trace import TorchTrace
from escala.programs.program import HOOK
from escala.record import run
from escala.strategies.base import TRACE
from escala.training import process
from tests.calls import python

RANKS, BLOCK = 2, 3
#: Seconds of a step that exchanges, of one beside that of the other rank, and of one by itself.
EXCHANGING, TOGETHER, ALONE = 9.0, 3.0, 2.0
VALUES = {"sizes": [8, 16, 1024], "rounds": 2, "seconds": 48.0, "steps": 18, "block": BLOCK}


class Shared:
    def __init__(self):
        self.barrier, self.given = threading.Barrier(RANKS), {}
        #: The ranks whose steps are made without an exchange after so many meetings.
        self.stepped = defaultdict(list)


class Ranks(Group):
    """A call takes the first rank three times as long; of 1 KiB, too long."""

    def __init__(self, rank: int, shared: Shared):
        self.place = SimpleNamespace(process=rank, processes=RANKS, ranks=[rank])
        self._shared, self.met = shared, 0

    def start(self):
        return [self.place.process], RANKS

    def total(self, values):
        self._shared.given[self.place.process] = values
        self._shared.barrier.wait()
        found = sum(self._shared.given.values())
        self._shared.barrier.wait()
        return found

    def meet(self):
        self.met += 1
        super().meet()

    def collective(self, operation, size):
        seconds = size / 8 * (3 if self.place.process == 0 else 1)
        return lambda: seconds


class Steps:
    """An engine whose steps without an exchange know what the other rank does meanwhile."""

    def __init__(self, rank: int, shared: Shared, steps_alone: bool, clock: threading.local):
        self.plan = {"strategy": "horovod-mpi", "knobs": {"cores_per_process": 2}}
        self.group, self.steps_alone = Ranks(rank, shared), steps_alone
        self.place, self._shared, self._clock = self.group.place, shared, clock

    def make_steps(self, steps, gather):
        yield MadeStep([], (1.0, 2.0, 1.0 + EXCHANGING), 0.0, 0.0)

    def step_alone(self, inputs):
        assert inputs == "rows"
        self._shared.stepped[self.group.met].append(self.place.process)
        # The rounds begin after as many meetings as there are sums: then come a block with an
        # exchange, one at the same time, and two turns.
        together = (self.group.met - 4) % 5 == 2
        self._clock.now += TOGETHER if together else ALONE


def measured(monkeypatch, tmp_path, steps_alone: bool = True) -> tuple[dict, Shared]:
    shared, clock = Shared(), threading.local()
    monkeypatch.setattr(collectives.time, "perf_counter", lambda: clock.now)

    def work(seconds: float) -> None:
        clock.now += seconds

    pieces = {"copy": partial(work, 0.5), "product": partial(work, 0.25)}
    monkeypatch.setattr(collectives.escala_collectives, "pieces", lambda: pieces)

    def rank(number: int) -> None:
        clock.now = 0.0
        engine = Steps(number, shared, steps_alone, clock)
        Collectives(VALUES, tmp_path).measure(engine, "step", lambda steps, ranks: ["rows"])

    with ThreadPoolExecutor(RANKS) as pool:
        for each in [pool.submit(rank, number) for number in range(RANKS)]:
            each.result(timeout=60)
    found = read_json(tmp_path / "collectives.json")
    assert Collectives(VALUES, tmp_path).read([]) == found
    return found, shared


def test_rates_contention_and_exchange_are_those_of_the_steps_of_a_round(monkeypatch, tmp_path):
    found, shared = measured(monkeypatch, tmp_path)
    assert found["contention"] == pytest.approx([TOGETHER / ALONE] * 2)
    assert found["exchange_seconds"] == pytest.approx([EXCHANGING - TOGETHER] * 2)
    assert found["alone_seconds"] == pytest.approx([ALONE] * 2)
    assert found["library"] == "mpi"
    # A block has a step that is left out. In its turn a rank steps alone.
    warm, *rounds = shared.stepped.values()
    assert sorted(warm) == [0, 1]
    blocks = [sorted(each) for each in rounds]
    assert blocks == 2 * [sorted([0, 1] * (BLOCK + 1)), [0] * (BLOCK + 1), [1] * (BLOCK + 1)]
    # The shortest time of each rank. A call of the largest takes more than four times its part.
    assert found["times"] == [
        {"operation": "allreduce", "bytes": 8, "seconds": [1.0, 1.0]},
        {"operation": "allreduce", "bytes": 16, "seconds": [2.0, 2.0]},
    ]
    # Of one core.
    np.testing.assert_allclose(found["core"]["bytes_per_second"], 2 * [2**25 / 0.5])
    np.testing.assert_allclose(found["core"]["operations_per_second"], 2 * [2 * 512**3 / 0.25 / 2])


def test_ranks_that_need_each_other_have_no_rounds(monkeypatch, tmp_path):
    found, shared = measured(monkeypatch, tmp_path, steps_alone=False)
    assert found["contention"] == found["exchange_seconds"] == found["alone_seconds"] == []
    assert not shared.stepped and found["times"]


HOUR = 3600.0


@pytest.fixture
def set_clock(monkeypatch):
    real = time.time
    return lambda seconds: monkeypatch.setattr(time, "time", lambda: real() + seconds)


def test_durations_do_not_follow_the_time_of_day(set_clock, tmp_path):
    announce(tmp_path, 0, 0)
    announced = json.loads((tmp_path / "rank0.pid").read_text())
    words = ["ps", "-o", "etimes=", "-p", str(os.getpid())]
    for step in (-HOUR, 0, HOUR):
        set_clock(step)
        age = int(subprocess.run(words, capture_output=True, check=True).stdout)
        assert process.startup_seconds(0, 1) == pytest.approx(age, abs=5)
        before = time.monotonic()
        row = Rank(0, announced["pid"], announced["started"]).row("lo")
        assert before - 1e-3 <= float(row["seconds"]) <= time.monotonic()


@pytest.mark.parametrize(("step", "within"), [(-HOUR, True), (HOUR, False)])
def test_moments_of_steps_go_on_where_the_clock_is_set(set_clock, tmp_path, step, within):
    tf = pytest.importorskip("tensorflow")
    from escala.engines.tensorflow.record_clocks import Recorder

    kernel = tf.Variable([1.0], name="kernel")
    clocks = Recorder(tmp_path / "clocks.csv", [kernel], reads_clock=True)
    before = time.time()
    for number in (1, 2, 3):
        if number == 2 and not within:
            set_clock(step)
        began = gathered = time.perf_counter()
        stamps = [time.time()]
        if number == 2 and within:
            set_clock(step)
        stamps += [time.time() for _ in range(3)]
        clocks._stamps.assign(stamps)
        clocks.note(1, number, began, gathered, time.perf_counter())
    clocks.write()
    with open(tmp_path / "clocks.csv") as handle:
        rows = list(csv.DictReader(handle))
    moments = [float(row["seconds"]) for row in rows]
    assert before - 1 <= min(moments) <= max(moments) <= before + 60
    for number in ("1", "2", "3"):
        moment_seconds = {
            row["moment"]: float(row["seconds"]) for row in rows if row["step"] == number
        }
        assert (
            moment_seconds[STEP_BEGINS]
            <= moment_seconds["updated"]
            <= moment_seconds[RETURNED] + 1e-3
        )


def test_a_process_that_loses_its_core_between_two_readings_knows_the_time_of_day(monkeypatch):
    """Of the pairs of readings, the first and the third are 4 ms apart."""
    readings = iter([1000.0, 10.004, 1000.01, 10.01, 1000.02, 10.024])
    monkeypatch.setattr(time, "time", lambda: next(readings))
    monkeypatch.setattr(time, "perf_counter", lambda: next(readings))
    assert clock_offset() == pytest.approx(990, abs=1e-6)


def test_a_rank_that_is_made_slow_does_not_sleep_for_a_step_of_the_clock(set_clock, monkeypatch):
    tf = pytest.importorskip("tensorflow")
    from escala.engines.tensorflow import step

    slept = []
    monkeypatch.setattr(step.time, "sleep", slept.append)

    def compute(value):
        set_clock(HOUR)
        return value + 1.0

    assert step.slow_down(compute, 2.0)(tf.constant(1.0)).numpy() == 2.0
    assert 0 < sum(slept) < 60


def test_a_result_that_is_not_valid_is_a_failed_run_and_kept(
    small_split, request_for, tmp_path, monkeypatch
):
    collect = run.collect

    def wrong(plan, data, folder):
        outcome = collect(plan, data, folder)
        outcome.measured["seconds"] |= {"startup": -3.0, "loading": float("nan")}
        return outcome

    monkeypatch.setattr(run, "collect", wrong)
    request = request_for("single", "1x1", workload="majority")
    outcome = run.measure(request, small_split, tmp_path / "run.json", 300)
    assert outcome.status == "failed"
    assert "run.invalid.json holds what was measured" in outcome.reason
    result = json.loads((tmp_path / "run.json").read_text())
    assert (result["status"], result["reason"]) == ("failed", outcome.reason)
    assert result["evaluation"] is result["seconds"] is None
    kept = json.loads((tmp_path / "run.invalid.json").read_text())
    assert kept["evaluation"]["rows"] == 69
    assert (tmp_path / "predictions.npy").exists()


KERNEL = "DistributedGradientTape_Allreduce/dense/kernel"
WHOLE = timeline_text(steps=2)


@pytest.fixture(scope="module")
def repair(tmp_path_factory):
    file = tmp_path_factory.mktemp("timeline") / "raw"
    return lambda text: (file.write_text(text), timeline.read_events(file))[1]


@settings(deadline=None)
@given(st.integers(0, len(WHOLE)))
def test_what_is_complete_before_the_break_is_kept(repair, length):
    events = repair(WHOLE[:length])
    assert events == json.loads(WHOLE)[: len(events)]
    assert len(events) >= WHOLE[:length].count("}}") - 1


def test_an_unterminated_array_holds_as_much_as_a_closed_one_and_nothing_is_none(repair):
    assert repair(timeline_text(2, closed=False)) == json.loads(WHOLE)
    assert [repair(text) for text in ("", "[", "[\n", "no JSON", "\0\0")] == [[]] * 5


def test_phases_have_names_times_depth_and_bytes(repair):
    phases = timeline.intervals(repair(WHOLE))
    kernel = phases[phases["tensor"] == KERNEL].head(5)
    assert list(kernel["phase"]) == [
        "NEGOTIATE_ALLREDUCE", "ALLREDUCE", "MEMCPY_IN_FUSION_BUFFER", "MPI_ALLREDUCE",
        "MEMCPY_OUT_FUSION_BUFFER",
    ]  # fmt: skip
    np.testing.assert_allclose(kernel["start_seconds"], [0.010, 0.011, 0.011, 0.012, 0.014])
    np.testing.assert_allclose(kernel["end_seconds"], [0.011, 0.014602, 0.012, 0.014, 0.0145])
    assert list(kernel["depth"]) == [0, 0, 1, 1, 1]
    assert kernel["bytes"].dropna().tolist() == [4000]
    # One that did not end is left out, and an end without a beginning is none.
    cut = timeline.intervals(repair(WHOLE[: WHOLE.rindex('{"ph": "E"')]))
    lost = pd.concat([phases, cut]).drop_duplicates(keep=False)
    assert lost[["phase", "depth"]].to_numpy().tolist() == [["ALLREDUCE", 0]]
    assert timeline.intervals([{"ph": "E", "ts": 5, "pid": 1}]).empty


def test_the_files_are_the_timeline_and_a_trace(tmp_path):
    raw = tmp_path / "raw"
    raw.write_text(timeline_text(2, closed=False)[:-40])
    timeline.write_products(raw, tmp_path / "timeline.json", tmp_path / "trace.json")
    events = json.loads((tmp_path / "timeline.json").read_text())
    assert events == timeline.read_events(raw)
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in trace} == {0}
    threads = {e["tid"]: e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    assert threads == {0: "cycles", **timeline.tensors(events)}
    assert [e["args"]["name"] for e in trace if e["name"] == "process_name"] == ["rank 0"]
    cycles = [e for e in trace if e["name"] == "CYCLE_START"]
    assert [(e["ph"], e["tid"], e["ts"]) for e in cycles] == [("i", 0, 100), ("i", 0, 900)]
    complete = {(e["tid"], e["name"], e["ts"], e["dur"]) for e in trace if e["ph"] == "X"}
    phases = timeline.intervals(events)
    number = {name: thread for thread, name in threads.items()}
    assert complete == {
        (
            number[row.tensor],
            row.phase,
            round(row.start_seconds * 1e6),
            round((row.end_seconds - row.start_seconds) * 1e6),
        )
        for row in phases.itertuples()
    }
    assert not [e for e in trace if e["ph"] in "BE"]


#: In place of PyTorch: a profiler whose trace is the steps that it saw.
TORCH = """
import gzip, json
steps = []
class distributed:
    is_available = staticmethod(lambda: True)
    is_initialized = staticmethod(lambda: {group} is not None)
    get_rank = staticmethod(lambda: {group})
class profiler:
    class ProfilerAction: RECORD = 1
    class profile:
        def __init__(self, schedule, record_shapes): self.spans = 0
        def step(self): self.spans += 1
        def start(self): self.first = len(steps)
        def stop(self): self.last = len(steps)
        def export_chrome_trace(self, path):
            with gzip.open(path, "wt") as file:
                json.dump(steps[self.first : self.last], file)
"""


TRAINING = """
import sys
from escala_steps import epoch, steps
if {imports}: import torch
for number in range(2):
    for batch in steps(range(5)):
        if {imports}: torch.steps.append((number, batch))
    epoch()
"""


@pytest.mark.parametrize(
    ("asked", "variables", "group", "imports", "rank"),
    [
        (4, {}, None, True, 0),
        # Fewer than asked for, at the end of the program.
        (40, {"RANK": "2"}, None, True, 2),
        (4, {"OMPI_COMM_WORLD_RANK": "1"}, None, True, 1),
        # The group that a process has joined counts.
        (4, {"RANK": "0"}, 3, True, 3),
        (4, {}, None, False, None),
    ],
)
def test_steps_after_the_first_are_recorded_in_each_rank(
    asked, variables, group, imports, rank, tmp_path
):
    (tmp_path / "torch.py").write_text(TORCH.format(group=group))
    folder = tmp_path / "a:b"
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": f"{HOOK}:{tmp_path}", "ESCALA_STEPS": str(tmp_path)}
    environment |= {"ESCALA_TRACE": f"3:{asked}:{folder}"} | variables
    program = [sys.executable, "-c", TRAINING.format(imports=imports)]
    subprocess.run(program, env=environment, check=True, timeout=60)
    trace = folder / f"rank{rank}.trace.json.gz"
    assert [*folder.iterdir()] == [trace] * (rank is not None)
    if rank is not None:
        made = [[epoch, step] for epoch in range(2) for step in range(5)]
        assert json.loads(gzip.decompress(trace.read_bytes())) == made[3 : 3 + asked]


@pytest.mark.parametrize(("process", "left"), [(0, True), (0, False), (1, False)])
def test_a_program_without_a_trace_is_told_by_its_first_process(process, left, tmp_path):
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    if left:
        (ranks / "rank0.trace.json.gz").write_bytes(gzip.compress(b"[]"))
    told = nullcontext()
    if process == 0 and not left:
        told = pytest.raises(Unavailable, match="no trace was left")
    with told, TorchTrace({"steps": 4}, ranks).around(process, node=0):
        pass
    assert (tmp_path / TRACE).exists() == left and (
        not left or (tmp_path / TRACE).read_text() == "[]"
    )


def test_a_probe_has_the_name_of_its_file_and_is_declared_without_libraries_of_the_ranks():
    assert {"clocks", "resources", "timeline"} <= set(PROBES)
    assert all(probe.name == name for name, probe in PROBES.items())
    code = """if True:
        import sys
        from escala.probes import PROBES
        assert all("enabled" in probe.settings["properties"] for probe in PROBES.values())
        print(*({"tensorflow", "pandas", "horovod"} & set(sys.modules)))"""
    assert python("-c", code, check=True).stdout == "\n"


def test_a_probe_cannot_take_the_key_of_something_else():
    assert with_probe_settings({"one": {}}, {"two": {"type": "null"}}) == {
        "one": {},
        "two": {"type": "null"},
    }
    with pytest.raises(InputError, match="one"):
        with_probe_settings({"one": {}}, {"one": {}})
