"""The diagnosis of a timeline is what a simulated Horovod did."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import tracemalloc
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import timeline_text
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.analysis.diagnosis import (
    COPIES,
    NEGOTIATION,
    TRANSFER,
    UNSPLIT,
    Timeline,
    diagnose,
    lines,
)
from escala.core.errors import InputError
from escala.probes import timeline

CYCLE, UPDATE = 1e-3, 2e-3
TENSORS = {"output": 2560, "kernel": 2**21, "embedding": 160}


@dataclass
class Horovod:
    """Some ranks and the background thread of rank 0, which writes the timeline.

    Each step computes; tensor after tensor becomes known at a fraction of it. In every cycle the
    thread sees what each rank knows, and performs what all ranks know as one operation. The first
    rank to request a tensor begins its negotiation.

    Attributes
    ----------
    per_byte : seconds of an operation for each byte.
    slower : factors on the computing of each rank.
    ticks : whether the timeline says when each rank was ready.
    parts : whether it splits operations.
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

    def run(self, steps: int) -> Horovod:
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
    run = Horovod(EARLY_TO_LATE, computing=0.1, slower=(1.0, *[0.3] * 11)).run(6)
    found = only(written(tmp_path, run))
    fraction = found.steps["exposed_high"] / found.steps["step_seconds"]
    assert (fraction < 0.1).all() and (found.steps["waited"] == 0).all()
    assert (found.waits["last"] == 0).all()
    without = Horovod(EARLY_TO_LATE, computing=0.1, slower=run.slower, ticks=False).run(6)
    hidden = only(written(tmp_path, without)).steps
    assert (hidden["exposed_high"] > 0.5 * hidden["step_seconds"]).all()
    assert (hidden["exposed_low"] < 0.1 * hidden["step_seconds"]).all()
    assert "contains the time until the slowest rank was ready" in "\n".join(
        lines(diagnose(tmp_path / "timeline.json"))
    )


def test_the_wait_of_rank_0_for_slower_ranks_is_a_part_of_what_follows_it(tmp_path):
    run = Horovod(EARLY_TO_LATE, slower=(1.0, 1.5)).run(6)
    steps = only(written(tmp_path, run)).steps
    np.testing.assert_allclose(steps["waited"], 0.01, atol=CYCLE)
    assert (steps["waited"] < steps["exposed_low"]).all()


def test_the_parts_of_a_step_are_those_of_its_operations(tmp_path):
    path = written(tmp_path, Horovod(EARLY_TO_LATE).run(6))
    found = only(path)
    per_step = found.steps.median()
    assert per_step["operations"] == 3
    sent = sum(TENSORS.values()) * 2e-9 + 3 * 1e-4
    assert per_step[TRANSFER] == pytest.approx(sent, rel=1e-3)
    assert per_step[COPIES] == pytest.approx(3 * 1e-4, rel=1e-3)
    assert per_step[NEGOTIATION] == pytest.approx(0, abs=1e-6)
    assert per_step[UNSPLIT] == pytest.approx(0, abs=1e-6)
    assert found.operations["bytes"].max() == TENSORS["kernel"]
    assert diagnose(path).closed and not found.unfinished
    assert "did not end" not in "\n".join(lines(diagnose(path)))


def test_an_operation_without_named_parts_counts_as_an_operation(tmp_path):
    steps, said = [], []
    for parts in (True, False):
        path = written(tmp_path, Horovod(EARLY_TO_LATE, parts=parts).run(6))
        steps.append(only(path).steps)
        said.append("that the timeline does not split" in "\n".join(lines(diagnose(path))))
    split, unsplit = steps
    assert said == [False, True]
    np.testing.assert_allclose(unsplit[UNSPLIT], split[TRANSFER] + split[COPIES], rtol=1e-6)
    np.testing.assert_allclose(unsplit["unexplained"], split["unexplained"], rtol=1e-6)


def test_waiting_for_data_is_named_where_there_is_some(tmp_path):
    run = Horovod(EARLY_TO_LATE).run(6)
    assert "waiting for data" not in "\n".join(lines(diagnose(written(tmp_path, run))))
    for event in run.events:
        if event.get("name") == "MEMCPY_IN_FUSION_BUFFER":
            event["name"] = "WAIT_FOR_DATA"
    assert "0.3 ms waiting for data" in "\n".join(lines(diagnose(written(tmp_path, run))))


def test_tensors_that_are_fused_are_one_operation(tmp_path):
    found = only(written(tmp_path, Horovod(dict.fromkeys(TENSORS, 1.0)).run(4)))
    assert (found.steps["operations"] == 1).all()
    assert (found.operations["tensors"] == 3).all()
    assert (found.operations["bytes"] == sum(TENSORS.values())).all()


def test_the_slowest_rank_and_the_wait_for_it_are_named(tmp_path):
    path = written(tmp_path, Horovod(EARLY_TO_LATE, slower=(1.0, 1.5)).run(6))
    found = only(path)
    assert (found.waits["last"] == 1).mean() == 1
    assert found.waits["seconds"].max() == pytest.approx(0.01, abs=CYCLE)
    assert found.steps[NEGOTIATION].median() > 0.005
    assert any(line.startswith("Rank 1 is the last in 100%") for line in lines(diagnose(path)))
    path = written(tmp_path, Horovod(EARLY_TO_LATE, ticks=False).run(6))
    assert any("HOROVOD_CACHE_CAPACITY=0" in each for each in lines(diagnose(path)))


def test_of_one_process_no_slowest_rank_is_named(tmp_path):
    said = "\n".join(
        lines(diagnose(written(tmp_path, Horovod(EARLY_TO_LATE, slower=(1.0,)).run(6))))
    )
    assert "one process" in said and "is the last" not in said


def test_tensors_without_a_name_are_told_apart_by_their_number(tmp_path):
    named = only(written(tmp_path, Horovod(EARLY_TO_LATE).run(6)))
    nameless = only(written(tmp_path, Horovod(EARLY_TO_LATE, named=False).run(6)))
    pd.testing.assert_frame_equal(named.steps, nameless.steps)


def test_a_rank_that_is_missing_at_the_end_is_named(tmp_path):
    """As the file of a run that was killed while rank 0 waited for rank 1."""
    run = Horovod(EARLY_TO_LATE, slower=(1.0, 3.0)).run(6)
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
    run = Horovod(EARLY_TO_LATE).run(6)
    last = max(i for i, event in enumerate(run.events) if event.get("name") == "MPI_ALLREDUCE")
    hangs = run.events[last]
    # Something else happens a second later.
    later = {"ph": "i", "pid": 0, "name": "CYCLE_START", "ts": hangs["ts"] + 1e6}
    run.events = [*run.events[: last + 1], later]
    names = {event["pid"]: event["args"]["name"] for event in run.events if event["ph"] == "M"}
    path = written(tmp_path, run, closed=False)
    [hanging] = only(path).unfinished
    assert hanging.tensor == names[hangs["pid"]]
    assert hanging.phase == "MPI_ALLREDUCE" and hanging.seconds == pytest.approx(1.0)
    assert f"At the end, {hanging.sentence()}." in lines(diagnose(path))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000))
def test_a_file_that_ends_anywhere_gives_the_steps_before_its_end(tmp_path_factory, per_mille):
    path = written(tmp_path_factory.mktemp("timeline"), Horovod(EARLY_TO_LATE).run(6))
    whole, text = only(path).steps, path.read_text()
    path.write_text(text[: len(text) * per_mille // 1000])
    try:
        found = only(path).steps
    except InputError as error:
        assert "holds" in str(error)
        return
    assert len(found) >= 2
    np.testing.assert_allclose(found["step_seconds"], whole["step_seconds"][: len(found)])


def _broken(text: str, damage: str) -> str:
    """Return a timeline with a damage near its middle."""
    middle = text.index("{", len(text) // 2)
    end = text.index("}", middle)
    return {
        "letter": text[: middle + 3] + "\n" + text[middle + 3 :],
        "event cut": text[: end - 5] + text[end + 3 :],
        "NUL block": text[:middle] + "\0" * 300_000 + text[middle:],
        "NUL over events": text[:middle] + "\0" * 500 + text[middle + 500 :],
        "no time": text[:middle] + '{"ph": "B", "pid": 1}, ' + text[middle:],
        "no tensor": text[:middle] + '{"ph": "E", "ts": 1}, ' + text[middle:],
        "not a number": text[:middle] + '{"ph": "E", "ts": NaN, "pid": 1}, ' + text[middle:],
        "text": text[:middle] + "[1,0]<stderr>: warning {oops}\n" + text[middle:],
        "not UTF-8": text[:middle] + "\udcff\udcfe" + text[middle:],
    }[damage]


@pytest.mark.parametrize(
    "damage",
    ["letter", "event cut", "NUL block", "NUL over events", "no time", "no tensor",
     "not a number", "text", "not UTF-8"],
)  # fmt: skip
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


def test_an_object_that_holds_the_array_is_read(tmp_path):
    path = written(tmp_path, Horovod(EARLY_TO_LATE).run(6))
    plain = only(path).steps
    events = path.read_text()
    path.write_text(
        f'{{"displayTimeUnit": "ms", "traceEvents": {events}, "otherData": {{"a": 1}}}}'
    )
    pd.testing.assert_frame_equal(only(path).steps, plain)
    assert diagnose(path).closed and diagnose(path).damage is None


@pytest.mark.parametrize("one_line", [False, True])
def test_blocks_of_any_size_give_the_same_events(tmp_path, monkeypatch, one_line):
    text = _broken(written(tmp_path, Horovod(EARLY_TO_LATE).run(20)).read_text(), "text")
    found = []
    for block in (1 << 20, 4096, 7):
        monkeypatch.setattr(timeline, "_BLOCK", block)
        content = text.replace("\n", " ") if one_line else text
        reader = timeline.Events(io.BytesIO(content.encode()))
        found.append(list(reader))
        assert reader.damage and not reader.closed
    assert len(found[0]) > 100 and found[0] == found[1] == found[2]


def test_the_sentences_have_the_fractions_of_the_step(tmp_path):
    found = list(lines(diagnose(written(tmp_path, Horovod(EARLY_TO_LATE).run(6)))))
    assert found[0].startswith("5 steps after the first; a step takes 22")
    assert any("2.0 MiB" in line for line in found)


def test_the_timeline_of_a_probe_is_read_too(tmp_path):
    path = tmp_path / "timeline.json"
    path.write_text(timeline_text(5))
    found = only(path)
    assert len(found.steps) == 4
    np.testing.assert_allclose(found.steps[TRANSFER], 0.002)


def _noname(steps: int) -> str:
    """Return the timeline of tensors that have another name at each step."""
    events = []
    for step in range(steps):
        for each in range(3):
            pid = 3 * step + each + 1
            name = {"name": f"allreduce.noname.{pid}"}
            begin = 1000 * step + 10 * each
            events += [
                {"ph": "M", "name": "process_name", "pid": pid, "args": name},
                {"ph": "B", "name": "ALLREDUCE", "ts": begin, "pid": pid},
                {"ph": "E", "ts": begin + 5, "pid": pid},
            ]
    return json.dumps(events)


PROFILE = json.dumps(
    {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0}],
        "traceEvents": [
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "aten::add",
                "pid": 7,
                "tid": 7,
                "ts": 1,
                "dur": 2,
            },
            *({"ph": "BE"[i % 2], "name": "step", "pid": 7, "tid": 7, "ts": i} for i in range(20)),
        ],
    }
)


@pytest.mark.parametrize(
    ("text", "reason", "remedy"),
    [
        ("", "holds no operation yet", "rank 0"),
        ("[", "holds no operation yet", "rank 0"),
        ('[{"name": "process_na', "holds no operation yet", "rank 0"),
        (timeline_text(0)[:300], "holds no operation yet", "rank 0"),
        ("no JSON", "holds no trace", "HOROVOD_TIMELINE"),
        ("[{}]", "holds no trace", "HOROVOD_TIMELINE"),
        ('{"a": [1]}', "holds no trace", "HOROVOD_TIMELINE"),
        ('{"traceEvents": 3}', "holds no trace", "HOROVOD_TIMELINE"),
        (PROFILE, "holds 21 events, and none is of Horovod", "HOROVOD_TIMELINE"),
        (timeline_text(0), "1 broadcast", "three steps"),
        (timeline_text(2), "too few steps", "three steps"),
        (timeline_text(2)[:-400], "too few steps.*had begun", "three steps"),
        (_noname(9), "another one at each step", "hvd.allreduce"),
    ],
)  # fmt: skip
def test_a_refusal_has_the_remedy_for_what_the_file_holds(tmp_path, text, reason, remedy):
    path = tmp_path / "timeline.json"
    path.write_text(text)
    with pytest.raises(InputError, match=reason) as refused:
        diagnose(path)
    assert remedy in refused.value.remedy


@pytest.mark.parametrize("magic", [b"PK\3\4", b"(\xb5/\xfd"])
def test_another_compression_is_refused(tmp_path, magic):
    path = tmp_path / "timeline.json"
    path.write_bytes(magic + bytes(100))
    with pytest.raises(InputError, match="unpack it"):
        diagnose(path)


def test_a_long_timeline_is_read_in_little_memory(tmp_path):
    """Kept are some 100 bytes for each operation on a tensor, besides blocks of the file."""
    steps = Horovod(EARLY_TO_LATE).run(20).events
    path = tmp_path / "timeline.json.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        size = file.write("[")
        for turn in range(200):
            later = [event | {"ts": event["ts"] + turn * 1e6} for event in steps if "ts" in event]
            size += file.write(json.dumps(later)[1:-1] + ",\n")
        file.write('{"ph": "i", "name": "CYCLE_START", "ts": 1e9}]')
    tracemalloc.start()
    found = only(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.steps) == 3999
    assert peak < 1.5 * size
