"""The diagnosis of a timeline is what a simulated Horovod did."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
from fixtures_runs import timeline_text
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.analysis.diagnosis import COPIES, NEGOTIATION, TRANSFER, diagnose, lines
from escala.core.errors import InputError

CYCLE, UPDATE = 1e-3, 2e-3
TENSORS = {"output": 2560, "kernel": 2**21, "embedding": 160}


@dataclass
class Horovod:
    """Two ranks and the background thread of rank 0, which writes the timeline.

    Each step computes; tensor after tensor becomes known at a share of it. In every cycle the
    thread requests what rank 0 knows, and performs what both ranks know as one operation.

    Attributes
    ----------
    per_byte : seconds of an operation for each byte.
    slower : factor on the computing of rank 1.
    """

    ready: dict[str, float]
    computing: float = 0.02
    per_byte: float = 2e-9
    slower: float = 1.0
    ticks: bool = True
    events: list[dict] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def run(self, steps: int) -> Horovod:
        for number, name in enumerate(TENSORS, 1):
            self._add("M", None, number, name="process_name", args={"name": f"gradient/{name}"})
        now, cycle = 0.1, 0.1
        for _ in range(steps):
            now, cycle = self._step(now, cycle)
        self.events.sort(key=lambda event: event.get("ts", 0))
        return self

    def _step(self, begins: float, cycle: float) -> tuple[float, float]:
        known = [
            {name: begins + share * self.computing * factor for name, share in self.ready.items()}
            for factor in (1.0, self.slower)
        ]
        requested: set[str] = set()
        waiting = set(TENSORS)
        while waiting:
            for name in waiting - requested:
                if known[0][name] <= cycle:
                    requested.add(name)
                    self._requested(name, cycle, known[1][name])
            both = [name for name in requested & waiting if known[1][name] <= cycle]
            now = cycle
            if both:
                now = self._operation(sorted(both), cycle)
                waiting -= set(both)
            cycle = max(cycle + CYCLE, now)
        self.exposed.append(now - max(known[0].values()))
        self.ends.append(now)
        return now + UPDATE, cycle

    def _requested(self, name: str, moment: float, other: float) -> None:
        number = list(TENSORS).index(name) + 1
        self._add("B", moment, number, name="NEGOTIATE_ALLREDUCE")
        if self.ticks:
            self._add("X", moment, number, name="0", dur=0)
            self._add("X", max(moment, other), number, name="1", dur=0)

    def _operation(self, names: list[str], begins: float) -> float:
        ends = begins + 2e-4 + self.per_byte * sum(TENSORS[name] for name in names)
        for name in names:
            number = list(TENSORS).index(name) + 1
            self._add("E", begins, number)
            self._add("B", begins, number, name="ALLREDUCE")
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


def written(tmp_path, run: Horovod, closed: bool = True):
    path = tmp_path / "timeline.json"
    text = "[\n" + ",\n".join(map(json.dumps, run.events))
    path.write_text(text + "\n]\n" if closed else text + ",\n{")
    return path


SHARES = st.fixed_dictionaries({name: st.floats(0, 1) for name in TENSORS})


@settings(deadline=None, max_examples=30)
@given(SHARES, st.floats(0, 8e-9), st.floats(1, 1.5))
def test_the_exposed_part_lies_between_the_bounds(tmp_path_factory, ready, per_byte, slower):
    run = Horovod(ready, per_byte=per_byte, slower=slower).run(5)
    found = diagnose(written(tmp_path_factory.mktemp("timeline"), run)).steps
    assert len(found) == 4
    truth = np.array(run.exposed[1:])
    assert (found["exposed_high"] >= truth - 1e-6).all()
    assert (found["exposed_low"] <= truth + 1e-6).all()
    # What is not known is at most the operations of one cycle, and the cycle itself.
    longest = 3 * 2e-4 + per_byte * sum(TENSORS.values()) + CYCLE
    assert (found["exposed_high"] - found["exposed_low"] <= 2 * longest).all()
    np.testing.assert_allclose(found["step_seconds"], np.diff(run.ends), rtol=1e-6)


def test_the_parts_of_a_step_are_those_of_its_operations(tmp_path):
    ready = {"output": 0.1, "kernel": 0.4, "embedding": 1.0}
    found = diagnose(written(tmp_path, Horovod(ready).run(6)))
    per_step = found.steps.median()
    assert per_step["operations"] == 3
    sent = sum(TENSORS.values()) * 2e-9 + 3 * 1e-4
    assert per_step[TRANSFER] == pytest.approx(sent, rel=1e-3)
    assert per_step[COPIES] == pytest.approx(3 * 1e-4, rel=1e-3)
    assert per_step[NEGOTIATION] == pytest.approx(0, abs=1e-6)
    assert found.operations["bytes"].max() == TENSORS["kernel"]
    assert found.closed and not found.unfinished


def test_tensors_that_are_fused_are_one_operation(tmp_path):
    found = diagnose(written(tmp_path, Horovod(dict.fromkeys(TENSORS, 1.0)).run(4)))
    assert (found.steps["operations"] == 1).all()
    assert (found.operations["tensors"] == 3).all()
    assert (found.operations["bytes"] == sum(TENSORS.values())).all()


def test_the_slowest_rank_and_the_wait_for_it_are_named(tmp_path):
    ready = {"output": 0.1, "kernel": 0.4, "embedding": 1.0}
    run = Horovod(ready, slower=1.5).run(6)
    found = diagnose(written(tmp_path, run))
    assert (found.waits["last"] == 1).mean() == 1
    assert found.waits["seconds"].max() == pytest.approx(0.01, abs=CYCLE)
    assert found.steps[NEGOTIATION].median() > 0.005
    assert any(line.startswith("Rank 1 is the last in 100%") for line in lines(found))
    run = Horovod(ready, ticks=False).run(6)
    assert any(
        "HOROVOD_CACHE_CAPACITY=0" in each for each in lines(diagnose(written(tmp_path, run)))
    )


def test_a_rank_that_is_missing_at_the_end_is_named(tmp_path):
    """As the file of a run that was killed while rank 0 waited for rank 1."""
    run = Horovod({"output": 0.1, "kernel": 0.4, "embedding": 1.0}, slower=1.5).run(6)
    last = max(i for i, e in enumerate(run.events) if e["ph"] == "X" and e["name"] == "0")
    run.events = run.events[: last + 1]
    found = diagnose(written(tmp_path, run, closed=False))
    assert not found.closed and len(found.steps) == 4
    [waiting] = [each for each in found.unfinished if each.tensor == "gradient/embedding"]
    assert (waiting.phase, waiting.ready) == ("NEGOTIATE_ALLREDUCE", (0,))
    text = "\n".join(lines(found))
    assert "Horovod did not end the file" in text and "rank 0 was ready" in text


def test_an_operation_that_hangs_is_named_with_the_time_since_it_began(tmp_path):
    run = Horovod({"output": 0.1, "kernel": 0.4, "embedding": 1.0}).run(6)
    last = max(i for i, event in enumerate(run.events) if event.get("name") == "MPI_ALLREDUCE")
    hangs = run.events[last]
    # Something else happens a second later.
    later = {"ph": "i", "pid": 0, "name": "CYCLE_START", "ts": hangs["ts"] + 1e6}
    run.events = [*run.events[: last + 1], later]
    names = {event["pid"]: event["args"]["name"] for event in run.events if event["ph"] == "M"}
    found = diagnose(written(tmp_path, run, closed=False))
    [hanging] = [each for each in found.unfinished if each.tensor == names[hangs["pid"]]]
    assert hanging.phase == "MPI_ALLREDUCE" and hanging.seconds == pytest.approx(1.0)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000))
def test_a_file_that_ends_anywhere_gives_the_steps_before_its_end(tmp_path_factory, per_mille):
    run = Horovod({"output": 0.1, "kernel": 0.4, "embedding": 1.0}).run(6)
    path = written(tmp_path_factory.mktemp("timeline"), run)
    whole, text = diagnose(path).steps, path.read_text()
    path.write_text(text[: len(text) * per_mille // 1000])
    try:
        found = diagnose(path).steps
    except InputError as error:
        assert "holds" in str(error)
        return
    assert len(found) >= 2
    np.testing.assert_allclose(found["step_seconds"], whole["step_seconds"][: len(found)])


def test_the_sentences_have_the_shares_of_the_step(tmp_path):
    run = Horovod({"output": 0.1, "kernel": 0.4, "embedding": 1.0}).run(6)
    found = list(lines(diagnose(written(tmp_path, run))))
    assert found[0].startswith("5 steps after the first; a step takes 22")
    assert any("2.0 MiB" in line for line in found)
    assert len(found) == 7


def test_the_timeline_of_a_probe_is_read_too(tmp_path):
    path = tmp_path / "timeline.json"
    path.write_text(timeline_text(5))
    found = diagnose(path)
    assert len(found.steps) == 4
    np.testing.assert_allclose(found.steps[TRANSFER], 0.002)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("", "no phase"),
        ("no JSON", "no phase"),
        ("[{}]", "no phase"),
        (timeline_text(2), "too few"),
    ],
)
def test_what_is_no_timeline_or_too_short_is_refused(tmp_path, text, phrase):
    path = tmp_path / "timeline.json"
    path.write_text(text)
    with pytest.raises(InputError, match=phrase):
        diagnose(path)
