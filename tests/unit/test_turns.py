"""Ranks in turns compute one at a time, and what they lose by each other is recovered."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escala.probes import _cores
from escala.probes._turns import (
    EXCHANGING,
    IN_TURNS,
    KINDS,
    LIBRARY,
    TOGETHER,
    Blocks,
    Turns,
    exchanges,
    library_fractions,
    slowdowns,
)

#: An epoch has seven blocks, so its first block is of another kind than that of the epoch before.
EPOCHS, STEPS, LENGTH, ROUNDS = 3, 29, 4, 7


@given(st.integers(0, 400), st.integers(1, 50), st.integers(1, 4))
def test_blocks_of_equal_length_alternate_over_the_epochs(steps, length, epochs):
    blocks = Blocks.of(steps, length)
    per_epoch = blocks.per_epoch if blocks.length else 0
    numbers = [(epoch, step) for epoch in range(1, epochs + 1) for step in range(1, steps + 1)]
    kinds = [blocks.kind(*number) for number in numbers]
    found = [kind for kind in kinds if kind is not None]
    expected = [KINDS[number % len(KINDS)] for number in range(epochs * per_epoch)]
    assert found == [kind for kind in expected for _ in range(blocks.length)]
    # Besides the first step of an epoch, what is left is shorter than one step in each block.
    assert len(kinds) - len(found) <= epochs * max(per_epoch, 1)
    assert blocks.length <= 2 * length
    assert blocks.length == 0 or blocks.length >= length / 2 or per_epoch == 1
    for kind in KINDS:
        begins = [at for at, number in enumerate(numbers) if blocks.begins(*number, kind)]
        ends = [at for at, number in enumerate(numbers) if blocks.ends(*number, kind)]
        assert len(begins) == len(ends) == expected.count(kind)
        for first, last in zip(begins, ends, strict=True):
            assert kinds[first : last + 1] == [kind] * blocks.length


@given(st.integers(0, 100), st.integers(1, 12), st.integers(1, 4), st.integers(1, 4))
def test_all_ranks_meet_as_often_within_every_epoch(steps, length, ranks, epochs):
    """So no rank waits for one that goes on to the exchange at the end of the epoch."""
    met = set()
    for rank in range(ranks):
        calls, counts = [], []
        turns = Turns(rank, ranks, Blocks.of(steps, length), partial(calls.append, 1), float)
        for epoch in range(1, epochs + 1):
            for step in range(1, steps + 1):
                turns.wait(epoch, step)
            counts.append(len(calls))
        met.add(tuple(counts))
    assert len(met) == 1


def test_what_is_compared_leaves_the_first_step_of_a_block_out():
    def round_times(*seconds: list[float]) -> dict:
        return dict(zip(KINDS, seconds, strict=True))

    ranks = [
        [round_times([9.0, 5.0, 5.0], [9.0, 2.0, 4.0], [8.0, 2.0, 2.0])],
        [round_times([0.5, 7.0, 5.0], [9.0, 3.0, 3.0], [0.5, 2.0, 2.0])],
    ]
    assert slowdowns(ranks) == [12 / 8]
    assert exchanges(ranks) == [pytest.approx((22 - 12) / 4)]
    # Blocks of one step, of which the last run ended before the steps in turns.
    rounds = [[round_times([2.5], [3.0], [2.0]), round_times([4.5], [3.0], [])]]
    assert (slowdowns(rounds), exchanges(rounds)) == ([1.5], [-0.5])
    assert slowdowns([[], []]) == exchanges([[], []]) == library_fractions([[], []]) == []


def test_the_fraction_of_a_library_is_that_of_steps_that_follow_each_other():
    """Before the first step of a turn, the rank waits, and threads of the library run."""
    clock = iter([5.0, 5.25, 5.75])
    turns = Turns(0, 1, Blocks(3, 3), int, lambda: next(clock))
    for step in range(1, 12):
        turns.note(1, step, {1: 7.0, 11: 8.0}.get(step, (step - 2) // 3))
    [round_times] = turns.rounds
    assert round_times == {
        EXCHANGING: [0] * 3,
        TOGETHER: [1] * 3,
        IN_TURNS: [2] * 3,
        LIBRARY: [5.0, 0.25, 0.5],
    }
    other = round_times | {LIBRARY: [9.0, 0.0, 0.0]}
    assert library_fractions([[round_times], [other]]) == [0.75 / 4 / 2]
    assert library_fractions([[{TOGETHER: [1.0], IN_TURNS: [1.0], LIBRARY: [7.0]}]]) == []


def test_threads_of_a_library_are_those_that_run_while_the_process_waits():
    ended = threading.Event()

    def wake_up() -> None:
        while not ended.wait(0.002):
            sum(range(2000))

    running, waiting = (threading.Thread(target=each) for each in (wake_up, ended.wait))
    running.start(), waiting.start()
    try:
        found = _cores.library_threads()
        assert running.native_id in found and waiting.native_id not in found
        before = _cores.core_seconds(found)
        time.sleep(0.1)
        assert _cores.core_seconds(found) > before > 0
    finally:
        ended.set()
        running.join(), waiting.join()
    # Python's join returns a moment before the system's thread has ended.
    thread = Path("/proc/self/task") / str(running.native_id)
    deadline = time.monotonic() + 10
    while thread.exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert _cores.core_seconds([running.native_id]) == 0


#: Seconds of a step by itself, how many times longer it is next to another one, and of an exchange.
ALONE, SLOWER, EXCHANGE = 0.016, 1.5, 0.008


def compute(rank: int, barrier: threading.Barrier, active: list[int]) -> tuple[list, list]:
    """Make steps that are slower while another rank makes one; return them and their rounds.

    What a step notes is computed, so it does not depend on how busy this machine is.
    """
    blocks = Blocks.of(STEPS, LENGTH)
    turns = Turns(rank, len(active), blocks, lambda: barrier.wait(60), float)
    steps = []
    for epoch in range(1, EPOCHS + 1):
        barrier.wait(60)  # Ranks begin an epoch together.
        for step in range(1, STEPS + 1):
            kind = blocks.kind(epoch, step)
            began = time.monotonic()
            active[rank] = 1
            time.sleep(0.002)
            if kind != IN_TURNS:
                barrier.wait(60)  # All ranks are within this step.
            alongside = sum(active) > 1
            ended = time.monotonic()
            if kind != IN_TURNS:
                barrier.wait(60)  # The exchange after a step.
            active[rank] = 0
            steps.append((kind == IN_TURNS, began, ended))
            seconds = ALONE * (SLOWER if alongside else 1) + EXCHANGE * (kind == EXCHANGING)
            turns.note(epoch, step, seconds)
            turns.wait(epoch, step)
    return steps, turns.rounds


@pytest.fixture(scope="module")
def ranks() -> list[tuple[list, list]]:
    """The steps and rounds of three ranks that compute at the same time."""
    number = 3
    barrier, active = threading.Barrier(number), [0] * number
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(lambda rank: compute(rank, barrier, active), range(number)))


def test_a_rank_computes_in_its_turn_only_while_the_others_wait(ranks):
    steps = [(rank, *step) for rank, (own, _) in enumerate(ranks) for step in own]
    in_turns = [step for step in steps if step[1]]
    assert len(in_turns) == len(ranks) * ROUNDS * LENGTH
    for one, other in combinations(steps, 2):
        if one[0] != other[0] and (one[1] or other[1]):
            *_, began, ended = one
            *_, other_began, other_ended = other
            assert ended <= other_began or other_ended <= began


def test_the_known_loss_of_ranks_is_recovered(ranks):
    rounds_of_ranks = [rounds for _, rounds in ranks]
    assert len(slowdowns(rounds_of_ranks)) == len(exchanges(rounds_of_ranks)) == ROUNDS
    assert slowdowns(rounds_of_ranks) == pytest.approx([SLOWER] * ROUNDS)
    assert exchanges(rounds_of_ranks) == pytest.approx([EXCHANGE] * ROUNDS)
