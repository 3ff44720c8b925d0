"""When the answer of the repeats so far is told, and how long the runs after them take."""

from __future__ import annotations

import pytest

from escala.experiment import Run
from escala.experiment.runs import Declared
from escala.measure import estimate
from escala.measure.plan import Plan, PlannedRun
from escala.report import forming
from escala.report.forming import Forming
from escala.workloads import WORKLOADS

REPEATS, STRATEGIES = range(1, 8), ("single", "horovod-mpi")


def run(strategy: str, repeat: int, **more: str) -> Run:
    layout = "1x1" if strategy == "single" else "1x2"
    names = ("small", "data", "virus-cnn", strategy, layout, "tuned", "native")
    return Run(*names, repeat, **more, declared=Declared(WORKLOADS["virus-cnn"], None, {}, {}))


EVERY = [run(strategy, repeat) for repeat in REPEATS for strategy in STRATEGIES]


class Told:
    """A call of which each run took 10 s, and each repeat 30 s."""

    def __init__(self, capsys):
        self.now, self._capsys = 0.0, capsys
        self._forming = Forming(clock=lambda: self.now)

    def after(self, *done: Run, more: tuple[Run, ...] = (), pilot=None) -> list[str]:
        every = [PlannedRun(each.names, "", 0, None, (), 0, each) for each in (*EVERY, *more)]
        plan = Plan("small", (), pilot, tuple((each,) for each in every))
        self._forming.tell(plan, [each for each in every if each.run not in done])
        return self._capsys.readouterr().err.splitlines()


@pytest.fixture
def told(monkeypatch, capsys) -> Told:
    seconds = {"single": 10.0, "horovod-mpi": 10.0}
    monkeypatch.setattr(estimate, "medians", lambda runs: (
        lambda run: None if run.instrument else seconds[run.strategy]
    ))  # fmt: skip
    monkeypatch.setattr(forming, "answer", lambda files, *_: (
        ["one takes 0.63–0.71", "two takes 0.9–1.1"] if len(files) > 2 else []
    ))  # fmt: skip
    return Told(capsys)


def test_a_repeat_is_told_when_its_last_run_has_ended(told):
    one, other, *rest = EVERY
    assert told.after() == told.after(one) == []
    told.now = 30.0
    # At this pace, 12 runs of 10 s take 180 s.
    first = "escala: small, after 1 of 7 repeats: about 3 min 0 s of runs left"
    assert told.after(one, other) == [first]
    assert told.after(one, other, rest[0]) == []
    told.now = 60.0
    assert told.after(one, other, *rest[:2]) == [
        "escala: small, after 2 of 7 repeats, provisional: one takes 0.63–0.71",
        "escala: small, after 2 of 7 repeats, provisional: two takes 0.9–1.1; about 2 min 30 s of "
        "runs left",
    ]
    assert told.after(*EVERY)[-1].endswith("two takes 0.9–1.1; no run is left")


def test_what_was_measured_before_the_call_is_not_told(told):
    assert told.after(*EVERY[:8]) == []
    assert told.after(*EVERY[:9]) == []
    assert len(told.after(*EVERY[:10])) == 2


def test_runs_of_unknown_time_and_a_pilot_are_said(told):
    probe = (run("single", 1, instrument="clocks"),)
    assert told.after(more=probe) == []
    [line] = told.after(*EVERY[:2], more=probe, pilot={"repeats": 7})
    assert "after 1 of at least 7 repeats: about" in line
    assert line.endswith("of runs left, and 1 more run of unknown time")
    last = told.after(*EVERY, more=probe)[-1]
    assert last.endswith("; 1 more run, of unknown time")


def test_an_answer_that_cannot_be_given_ends_nothing(told, monkeypatch):
    def damaged(*_):
        raise OSError("run.json is damaged")

    monkeypatch.setattr(forming, "answer", damaged)
    assert told.after() == []
    one, other = told.after(*EVERY[:4])
    assert one == "escala: small: no answer so far: run.json is damaged"
    assert other.startswith("escala: small, after 2 of 7 repeats: about ")
