"""The diagnosis of a timeline is what a simulated Horovod did."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import timeline_text
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.analysis.traces.horovod import (
    COPIES,
    NEGOTIATION,
    TRANSFER,
    UNSPLIT,
    Timeline,
    diagnose,
    lines,
)
from escala.core.errors import InputError

CYCLE, UPDATE = 1e-3, 2e-3
TENSORS = {"output": 2560, "kernel": 2**21, "embedding": 160}


@dataclass
class Horovod:
    """Some ranks and the background thread of rank 0, which writes the timeline.

    Each step computes; tensor after tensor becomes known at a fraction of it. In every cycle the
    thread sees what each rank knows, and performs what all ranks know as one operation. The first
    rank to request a tensor begins its negotiation. `slower` are factors on the computing of ranks,
    `ticks` says when each was ready, and `parts` splits operations.
    """

    ready: dict[str, float]
    computing: float = 0.02
    per_byte: float = 2e-9
    slower: tuple[float, ...] = (1.0, 1.0)
    ticks: bool = True
    parts: bool = True
    named: bool = True
    events: list[dict] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def run(self, steps: int = 6) -> Horovod:
        for number, name in enumerate(TENSORS, 1):
            if self.named:
                self._add("M", None, number, name="process_name", args={"name": f"gradient/{name}"})
        now, cycle = 0.1, 0.1
        for _ in range(steps):
            now, cycle = self._step(now, cycle)
        self.events.sort(key=lambda event: event.get("ts", 0))
        return self

    def _step(self, begins: float, cycle: float) -> tuple[float, float]:
        known = [
            {
                name: begins + fraction * self.computing * factor
                for name, fraction in self.ready.items()
            }
            for factor in self.slower
        ]
        requested: dict[str, set[int]] = {name: set() for name in TENSORS}
        waiting = set(TENSORS)
        while waiting:
            for name in sorted(waiting):
                for rank, own in enumerate(known):
                    if own[name] <= cycle and rank not in requested[name]:
                        self._requested(name, cycle, rank, first=not requested[name])
                        requested[name].add(rank)
            agreed = [name for name in sorted(waiting) if len(requested[name]) == len(known)]
            now = cycle
            if agreed:
                now = self._operation(agreed, cycle)
                waiting -= set(agreed)
            cycle = max(cycle + CYCLE, now)
        self.exposed.append(now - max(known[0].values()))
        self.ends.append(now)
        return now + UPDATE, cycle

    def _requested(self, name: str, moment: float, rank: int, first: bool) -> None:
        number = list(TENSORS).index(name) + 1
        if first:
            self._add("B", moment, number, name="NEGOTIATE_ALLREDUCE")
        if self.ticks:
            self._add("X", moment, number, name=str(rank), dur=0)

    def _operation(self, names: list[str], begins: float) -> float:
        ends = begins + 2e-4 + self.per_byte * sum(TENSORS[name] for name in names)
        for name in names:
            number = list(TENSORS).index(name) + 1
            self._add("E", begins, number)
            self._add("B", begins, number, name="ALLREDUCE")
            if self.parts:
                self._add("B", begins, number, name="MEMCPY_IN_FUSION_BUFFER")
                self._add("E", begins + 1e-4, number)
                self._add("B", begins + 1e-4, number, name="MPI_ALLREDUCE")
                self._add("E", ends, number)
            shape = f"[{TENSORS[name] // 4}]"
            self._add("E", ends, number, args={"dtype": "float32", "shape": shape})
        return ends

    def _add(self, kind: str, moment: float | None, number: int, **more: object) -> None:
        when = {} if moment is None else {"ts": moment * 1e6}
        self.events.append({"ph": kind, "pid": number} | when | more)


def only(path) -> Timeline:
    """Return the one timeline of a file."""
    [found] = diagnose(path).timelines
    return found


def written(tmp_path, run: Horovod, closed: bool = True):
    path = tmp_path / "timeline.json"
    text = "[\n" + ",\n".join(map(json.dumps, run.events))
    path.write_text(text + "\n]\n" if closed else text + ",\n{")
    return path


FRACTIONS = st.fixed_dictionaries({name: st.floats(0, 1) for name in TENSORS})
EARLY_TO_LATE = {"output": 0.1, "kernel": 0.4, "embedding": 1.0}


@settings(deadline=None, max_examples=30)
@given(
    FRACTIONS,
    st.floats(0, 8e-9),
    st.tuples(st.floats(1, 2), st.floats(1, 2), st.floats(1, 2)),
    st.booleans(),
)
def test_the_exposed_part_lies_between_the_bounds(tmp_path_factory, ready, per_byte, slower, ticks):
    run = Horovod(ready, per_byte=per_byte, slower=slower, ticks=ticks).run(5)
    found = only(written(tmp_path_factory.mktemp("timeline"), run)).steps
    assert len(found) == 4
    truth = np.array(run.exposed[1:])
    assert (found["exposed_high"] >= truth - 1e-6).all()
    assert (found["exposed_low"] <= truth + 1e-6).all()
    if ticks:
        # What is not known is at most the operations of one cycle, and the cycle itself.
        longest = 3 * 2e-4 + per_byte * sum(TENSORS.values()) + CYCLE
        assert (found["exposed_high"] - found["exposed_low"] <= 2 * longest).all()
    np.testing.assert_allclose(found["step_seconds"], np.diff(run.ends), rtol=1e-6)


def test_what_follows_rank_0_is_not_what_follows_the_first_rank(tmp_path):
    """Eleven ranks wait for rank 0: the exchange after it is short, the negotiation is long."""
    run = Horovod(EARLY_TO_LATE, computing=0.1, slower=(1.0, *[0.3] * 11)).run()
    found = only(written(tmp_path, run))
    fraction = found.steps["exposed_high"] / found.steps["step_seconds"]
    assert (fraction < 0.1).all() and (found.steps["waited"] == 0).all()
    assert (found.waits["last"] == 0).all()
    without = Horovod(EARLY_TO_LATE, computing=0.1, slower=run.slower, ticks=False).run()
    hidden = only(written(tmp_path, without)).steps
    assert (hidden["exposed_high"] > 0.5 * hidden["step_seconds"]).all()
    assert (hidden["exposed_low"] < 0.1 * hidden["step_seconds"]).all()


def test_the_parts_of_a_step_are_those_of_its_operations(tmp_path):
    path = written(tmp_path, Horovod(EARLY_TO_LATE).run())
    split = only(path)
    per_step = split.steps.median()
    transfer = sum(TENSORS.values()) * 2e-9 + 3 * 1e-4
    expected = {"operations": 3, TRANSFER: transfer, COPIES: 3 * 1e-4, NEGOTIATION: 0, UNSPLIT: 0}
    assert per_step[[*expected]].to_dict() == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert split.operations["bytes"].max() == TENSORS["kernel"]
    assert diagnose(path).closed and not split.unfinished
    text = list(lines(diagnose(path)))
    assert "5 steps" in text[0] and any("2.0 MiB" in line for line in text)
    whole = only(written(tmp_path, Horovod(EARLY_TO_LATE, parts=False).run())).steps
    np.testing.assert_allclose(whole[UNSPLIT], split.steps[TRANSFER] + split.steps[COPIES])
    np.testing.assert_allclose(whole["unexplained"], split.steps["unexplained"], rtol=1e-6)
    nameless = only(written(tmp_path, Horovod(EARLY_TO_LATE, named=False).run()))
    pd.testing.assert_frame_equal(split.steps, nameless.steps)
    # Tensors that are fused are one operation.
    fused = only(written(tmp_path, Horovod(dict.fromkeys(TENSORS, 1.0)).run(4)))
    assert (fused.steps["operations"] == 1).all() and (fused.operations["tensors"] == 3).all()
    assert (fused.operations["bytes"] == sum(TENSORS.values())).all()
    # The timeline of a probe, and an object that holds the array.
    path.write_text(timeline_text(5))
    np.testing.assert_allclose(only(path).steps[TRANSFER], 4 * [0.002])
    path.write_text(f'{{"unit": "ms", "traceEvents": {timeline_text(5)}, "otherData": {{"a": 1}}}}')
    np.testing.assert_allclose(only(path).steps[TRANSFER], 4 * [0.002])
    assert diagnose(path).closed and diagnose(path).damage is None


def test_the_slowest_rank_and_the_wait_for_it_are_named(tmp_path):
    path = written(tmp_path, Horovod(EARLY_TO_LATE, slower=(1.0, 1.5)).run())
    slow = only(path)
    assert (slow.waits["last"] == 1).all()
    assert slow.waits["seconds"].max() == pytest.approx(0.01, abs=CYCLE)
    assert slow.steps[NEGOTIATION].median() > 0.005
    # The wait of rank 0 for slower ranks is a part of what follows it.
    np.testing.assert_allclose(slow.steps["waited"], 0.01, atol=CYCLE)
    assert (slow.steps["waited"] < slow.steps["exposed_low"]).all()
    assert any(line.startswith("Rank 1 is the last in 100%") for line in lines(diagnose(path)))
    for run, remedy in (
        (Horovod(EARLY_TO_LATE, ticks=False), "HOROVOD_CACHE_CAPACITY=0"),
        (Horovod(EARLY_TO_LATE, slower=(1.0,)), "one process"),
    ):
        text = "\n".join(lines(diagnose(written(tmp_path, run.run()))))
        assert remedy in text and "is the last" not in text


def test_a_rank_that_is_missing_at_the_end_is_named(tmp_path):
    """As the file of a run that was killed while rank 0 waited for rank 1."""
    run = Horovod(EARLY_TO_LATE, slower=(1.0, 3.0)).run()
    last = max(i for i, e in enumerate(run.events) if e["ph"] == "X" and e["name"] == "0")
    run.events = run.events[: last + 1]
    path = written(tmp_path, run, closed=False)
    found = only(path)
    assert not diagnose(path).closed and len(found.steps) == 4
    [waiting] = [each for each in found.unfinished if each.tensor == "gradient/embedding"]
    assert (waiting.phase, waiting.ready) == ("NEGOTIATE_ALLREDUCE", (0,))
    text = "\n".join(lines(diagnose(path)))
    assert "Horovod did not end the file" in text
    assert len(found.unfinished) == 2 and "rank 0 was ready, and 1 more." in text


def test_an_operation_that_hangs_is_named_with_the_time_since_it_began(tmp_path):
    run = Horovod(EARLY_TO_LATE).run()
    last = max(i for i, event in enumerate(run.events) if event.get("name") == "MPI_ALLREDUCE")
    hangs = run.events[last]
    # Something else happens a second later.
    later = {"ph": "i", "pid": 0, "name": "CYCLE_START", "ts": hangs["ts"] + 1e6}
    run.events = [*run.events[: last + 1], later]
    path = written(tmp_path, run, closed=False)
    [hanging] = only(path).unfinished
    assert hanging.tensor == f"gradient/{[*TENSORS][hangs['pid'] - 1]}"
    assert hanging.phase == "MPI_ALLREDUCE" and hanging.seconds == pytest.approx(1.0)
    assert f"At the end, {hanging.sentence()}." in lines(diagnose(path))


#: By its name, what becomes of a text around a place and the end of an event after it.
DAMAGES = {
    "letter": lambda text, at, end: text[: at + 3] + "\n" + text[at + 3 :],
    "event cut": lambda text, at, end: text[: end - 5] + text[end + 3 :],
    "NUL over events": lambda text, at, end: text[:at] + "\0" * 500 + text[at + 500 :],
}
INSERTED = {
    "NUL block": "\0" * 300_000, "no time": '{"ph": "B", "pid": 1}, ',
    "no tensor": '{"ph": "E", "ts": 1}, ', "not a number": '{"ph": "E", "ts": NaN, "pid": 1}, ',
    "text": "[1,0]<stderr>: warning {oops}\n", "not UTF-8": "\udcff\udcfe",
}  # fmt: skip
for _name, _added in INSERTED.items():
    DAMAGES[_name] = lambda text, at, end, added=_added: text[:at] + added + text[at:]


def _broken(text: str, damage: str) -> str:
    """Return a timeline with a damage near its middle."""
    middle = text.index("{", len(text) // 2)
    return DAMAGES[damage](text, middle, text.index("}", middle))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damage_ends_the_reading_and_its_place_is_named(tmp_path, damage):
    path = written(tmp_path, Horovod(EARLY_TO_LATE, slower=(1.0, 1.2)).run(20))
    whole, text = only(path).steps, path.read_text()
    broken = _broken(text, damage)
    path.write_bytes(broken.encode(errors="surrogateescape"))
    found = diagnose(path)
    intact = next(i for i, (was, now) in enumerate(zip(text, broken, strict=False)) if was != now)
    first, last, line = map(int, re.findall(r"\d+", found.damage))
    assert first <= intact + 1 and intact <= last
    assert line == broken.count("\n", 0, first) + 1
    assert f"The file was not read to its end: {found.damage}." in lines(found)
    steps = only(path).steps
    assert 8 <= len(steps) <= 10
    pd.testing.assert_frame_equal(steps[:-1], whole[: len(steps) - 1])


def test_of_two_joined_timelines_both_are_diagnosed(tmp_path):
    texts = [
        written(tmp_path, Horovod(EARLY_TO_LATE, computing=computing).run(steps)).read_text()
        for computing, steps in ((0.02, 6), (0.04, 9))
    ]
    path = tmp_path / "timeline.json"
    path.write_text("".join(texts))
    found = diagnose(path)
    assert [len(each.steps) for each in found.timelines] == [5, 8]
    first, second = (each.steps["step_seconds"].median() for each in found.timelines)
    assert second > first + 0.015
    assert not any("too few steps" in each for each in lines(found))
    brief = written(tmp_path, Horovod(EARLY_TO_LATE).run(1)).read_text()
    path.write_text("".join([*texts, brief]))
    assert "1 timeline of the file had too few steps." in lines(diagnose(path))
    foreign = json.dumps([{"ph": "X", "name": "aten::add", "pid": 7, "ts": 1, "dur": 2}])
    path.write_text("".join([*texts, brief, foreign]))
    assert diagnose(path).short == 1


@pytest.mark.parametrize("opener", [gzip.open, bz2.open, lzma.open])
def test_a_compressed_timeline_is_read_also_if_it_is_cut(tmp_path, opener):
    plain = written(tmp_path, Horovod(EARLY_TO_LATE).run(200))
    packed = tmp_path / "packed"
    with opener(packed, "wb") as file:
        file.write(plain.read_bytes())
    pd.testing.assert_frame_equal(only(packed).steps, only(plain).steps)
    packed.write_bytes(packed.read_bytes()[: packed.stat().st_size * 2 // 3])
    try:
        found = diagnose(packed)
    except InputError as error:  # bzip2 has blocks of 900 kB.
        assert "decompressed" in str(error)
    else:
        assert found.damage and "decompressed" in "\n".join(lines(found))


@pytest.mark.parametrize(
    ("text", "reason", "remedy"),
    [
        (b"PK\3\4" + bytes(100), "unpack it", ""),
        (b"(\xb5/\xfd" + bytes(100), "unpack it", ""),
        ("", "holds no operation yet", "rank 0"),
        ("[", "holds no operation yet", "rank 0"),
        ('[{"name": "process_na', "holds no operation yet", "rank 0"),
        (timeline_text(0)[:300], "holds no operation yet", "rank 0"),
        ("no JSON", "holds no trace", "HOROVOD_TIMELINE"),
        ("[{}]", "holds no trace", "HOROVOD_TIMELINE"),
        ('{"a": [1]}', "holds no trace", "HOROVOD_TIMELINE"),
        ('{"traceEvents": 3}', "holds no trace", "HOROVOD_TIMELINE"),
        (json.dumps({"traceEvents": [
            {"ph": "X", "name": "aten::add", "pid": 7, "tid": 7, "ts": 1, "dur": 2},
            *({"ph": "BE"[i % 2], "name": "step", "pid": 7, "tid": 7, "ts": i} for i in range(20)),
        ]}), "holds 21 events, and none is of PyTorch", "HOROVOD_TIMELINE"),
        (timeline_text(0), "1 broadcast", "three steps"),
        (timeline_text(2), "too few steps", "three steps"),
        (timeline_text(2)[:-400], "too few steps.*had begun", "three steps"),
        (json.dumps([
            event for pid in range(27) for event in (
                {"ph": "M", "name": "process_name", "pid": pid,
                 "args": {"name": f"a.noname.{pid}"}},
                {"ph": "B", "name": "ALLREDUCE", "ts": 1000 * (pid // 3) + 10 * pid, "pid": pid},
                {"ph": "E", "ts": 1000 * (pid // 3) + 10 * pid + 5, "pid": pid},
            )
        ]), "another one at each step", "hvd.allreduce"),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_a_refusal_has_the_remedy_for_what_the_file_holds(tmp_path, text, reason, remedy):
    path = tmp_path / "timeline.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=reason) as refused:
        diagnose(path)
    assert remedy in (refused.value.remedy or "")
