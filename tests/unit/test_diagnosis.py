"""The diagnosis of a timeline is what a simulated Horovod did."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import timeline_text
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.analysis.diagnosis import diagnose, lines
from escala.core.errors import InputError

CYCLE, UPDATE = 1e-3, 2e-3
TENSORS = {"output": 2560, "kernel": 2**21, "embedding": 160}


@dataclass
class Horovod:
    """Some ranks and the background thread of rank 0, which writes the timeline.

    Each step computes; tensor after tensor becomes known at a share of it. In every cycle the
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
            {name: begins + share * self.computing * factor for name, share in self.ready.items()}
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


def written(tmp_path, run: Horovod, closed: bool = True):
    path = tmp_path / "timeline.json"
    text = "[\n" + ",\n".join(map(json.dumps, run.events))
    path.write_text(text + "\n]\n" if closed else text + ",\n{")
    return path


SHARES = st.fixed_dictionaries({name: st.floats(0, 1) for name in TENSORS})
EARLY_TO_LATE = {"output": 0.1, "kernel": 0.4, "embedding": 1.0}


@settings(deadline=None, max_examples=30)
@given(
    SHARES,
    st.floats(0, 8e-9),
    st.tuples(st.floats(1, 2), st.floats(1, 2), st.floats(1, 2)),
    st.booleans(),
)
def test_the_exposed_part_lies_between_the_bounds(tmp_path_factory, ready, per_byte, slower, ticks):
    run = Horovod(ready, per_byte=per_byte, slower=slower, ticks=ticks).run(5)
    found = diagnose(written(tmp_path_factory.mktemp("timeline"), run)).steps
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
    found = diagnose(written(tmp_path, run))
    share = found.steps["exposed_high"] / found.steps["step_seconds"]
    assert (share < 0.1).all()
    assert (found.waits["last"] == 0).all()
    without = Horovod(EARLY_TO_LATE, computing=0.1, slower=run.slower, ticks=False).run(6)
    hidden = diagnose(written(tmp_path, without)).steps
    assert (hidden["exposed_high"] > 0.5 * hidden["step_seconds"]).all()
    assert (hidden["exposed_low"] < 0.1 * hidden["step_seconds"]).all()


def test_the_parts_of_a_step_are_those_of_its_operations(tmp_path):
    found = diagnose(written(tmp_path, Horovod(EARLY_TO_LATE).run(6)))
    sent = sum(TENSORS.values()) * 2e-9 + 3 * 1e-4
    expected = {"operations": 3, "transfer": sent, "copies": 3e-4, "negotiation": 0, "unsplit": 0}
    assert found.steps.median()[[*expected]].to_dict() == pytest.approx(
        expected, rel=1e-3, abs=1e-6
    )
    assert found.operations["bytes"].max() == TENSORS["kernel"]
    assert not found.ends
    unsplit = diagnose(written(tmp_path, Horovod(EARLY_TO_LATE, parts=False).run(6))).steps
    whole = found.steps["transfer"] + found.steps["copies"]
    np.testing.assert_allclose(unsplit["unsplit"], whole, rtol=1e-6)
    np.testing.assert_allclose(unsplit["unexplained"], found.steps["unexplained"], rtol=1e-6)


def test_tensors_that_are_fused_are_one_operation(tmp_path):
    found = diagnose(written(tmp_path, Horovod(dict.fromkeys(TENSORS, 1.0)).run(4)))
    assert (found.steps["operations"] == 1).all()
    assert (found.operations["tensors"] == 3).all()
    assert (found.operations["bytes"] == sum(TENSORS.values())).all()


def test_the_slowest_rank_and_the_wait_for_it_are_named(tmp_path):
    found = diagnose(written(tmp_path, Horovod(EARLY_TO_LATE, slower=(1.0, 1.5)).run(6)))
    assert (found.waits["last"] == 1).all()
    assert found.waits["seconds"].max() == pytest.approx(0.01, abs=CYCLE)
    assert found.steps["negotiation"].median() > 0.005
    assert any(line.startswith("Rank 1 is the last in 100%") for line in lines(found))
    path = written(tmp_path, Horovod(EARLY_TO_LATE, ticks=False).run(6))
    assert any("HOROVOD_CACHE_CAPACITY=0" in each for each in lines(diagnose(path)))


def test_other_forms_of_the_file_are_read_as_the_usual_one(tmp_path):
    """Tensors without names, an object that holds the array, and a compressed file."""
    path = written(tmp_path, Horovod(EARLY_TO_LATE).run(6))
    usual, events = diagnose(path), path.read_text()
    nameless = written(tmp_path, Horovod(EARLY_TO_LATE, named=False).run(6))
    pd.testing.assert_frame_equal(diagnose(nameless).steps, usual.steps)
    path.write_text(
        f'{{"displayTimeUnit": "ms", "traceEvents": {events}, "otherData": {{"a": 1}}}}'
    )
    found = diagnose(path)
    pd.testing.assert_frame_equal(found.steps, usual.steps)
    assert not found.ends
    path.write_bytes(gzip.compress(events.encode()))
    pd.testing.assert_frame_equal(diagnose(path).steps, usual.steps)


def test_a_rank_that_is_missing_at_the_end_is_named(tmp_path):
    """As the file of a run that was killed while rank 0 waited for rank 1."""
    run = Horovod(EARLY_TO_LATE, slower=(1.0, 1.5)).run(6)
    last = max(i for i, e in enumerate(run.events) if e["ph"] == "X" and e["name"] == "0")
    run.events = run.events[: last + 1]
    path = written(tmp_path, run, closed=False)
    found = diagnose(path)
    assert len(found.steps) == 4
    text = "\n".join(lines(found))
    assert "Horovod did not end the file" in text
    assert "NEGOTIATE_ALLREDUCE of gradient/embedding had begun" in text


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000))
def test_a_file_that_ends_anywhere_gives_the_steps_before_its_end(tmp_path_factory, per_mille):
    path = written(tmp_path_factory.mktemp("timeline"), Horovod(EARLY_TO_LATE).run(6))
    whole, text = diagnose(path).steps, path.read_text()
    path.write_text(text[: len(text) * per_mille // 1000])
    try:
        found = diagnose(path).steps
    except InputError as error:
        assert "holds" in str(error)
        return
    assert len(found) >= 2
    np.testing.assert_allclose(found["step_seconds"], whole["step_seconds"][: len(found)])


@pytest.mark.parametrize("text", ["no JSON", "[{}]", timeline_text(2)])
def test_a_file_without_enough_steps_is_refused_with_a_remedy(tmp_path, text):
    path = tmp_path / "timeline.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"fewer than 2 whole steps.*HOROVOD_TIMELINE"):
        diagnose(path)


def test_a_damaged_file_is_read_up_to_the_damage(tmp_path):
    path = written(tmp_path, Horovod(EARLY_TO_LATE).run(20))
    whole, text = diagnose(path).steps, path.read_text()
    middle = text.index("{", len(text) // 2)
    path.write_text(text[: middle + 3] + "\n" + text[middle + 3 :])
    found = diagnose(path)
    pd.testing.assert_frame_equal(found.steps, whole[: len(found.steps)])
    assert 8 <= len(found.steps) < 11 and "damaged" in "\n".join(lines(found))
