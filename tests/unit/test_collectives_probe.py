"""What ranks of known times give the probe of collectives."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from escala.core.files import read_json
from escala.engines.base import Group, MadeStep
from escala.probes import collectives
from escala.probes.collectives import Collectives

RANKS, BLOCK = 2, 3
#: Seconds of a step that exchanges, of one beside that of the other rank, and of one by itself.
EXCHANGING, TOGETHER, ALONE = 9.0, 3.0, 2.0
VALUES = {"sizes": [8, 16, 1024], "rounds": 2, "seconds": 48.0, "steps": 18, "block": BLOCK}


class Shared:
    """What two ranks, which are threads, have in common."""

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
    """Return what the probe finds, and what the ranks did."""
    shared, clock = Shared(), threading.local()
    monkeypatch.setattr(collectives.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(
        collectives.program, "pieces", lambda: {"copy": "copy", "product": "product"}
    )
    monkeypatch.setattr(collectives, "_median", {"copy": 0.5, "product": 0.25}.get)

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


def test_contention_and_exchange_are_those_of_the_steps_of_a_round(monkeypatch, tmp_path):
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


def test_ranks_that_need_each_other_have_no_rounds(monkeypatch, tmp_path):
    found, shared = measured(monkeypatch, tmp_path, steps_alone=False)
    assert found["contention"] == found["exchange_seconds"] == found["alone_seconds"] == []
    assert not shared.stepped and found["times"]


def test_a_collective_takes_the_shortest_time_of_all_ranks(monkeypatch, tmp_path):
    """The largest size is left out: a call of it takes more than four times its part."""
    found, _ = measured(monkeypatch, tmp_path)
    assert found["times"] == [
        {"operation": "allreduce", "bytes": 8, "seconds": [1.0, 1.0]},
        {"operation": "allreduce", "bytes": 16, "seconds": [2.0, 2.0]},
    ]


def test_rates_are_those_of_one_core(monkeypatch, tmp_path):
    found, _ = measured(monkeypatch, tmp_path)
    np.testing.assert_allclose(found["core"]["bytes_per_second"], 2 * [2**25 / 0.5])
    np.testing.assert_allclose(found["core"]["operations_per_second"], 2 * [2 * 512**3 / 0.25 / 2])
