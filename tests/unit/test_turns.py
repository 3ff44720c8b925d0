"""Ranks in turns compute one at a time, and what they lose by each other is recovered."""

from __future__ import annotations

import multiprocessing
import threading
import time
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escala.probes import _threads
from escala.probes._turns import (
    IN_TURNS,
    LIBRARY,
    TOGETHER,
    Blocks,
    Turns,
    library_shares,
    slowdowns,
)

EPOCHS, STEPS, LENGTH = 2, 26, 4


@given(st.integers(0, 400), st.integers(1, 50))
def test_blocks_fill_an_epoch_in_pairs_of_equal_length(steps, length):
    blocks = Blocks.of(steps, length)
    kinds = [(blocks.pair(step), blocks.in_turns(step)) for step in range(1, steps + 1)]
    for pair in range(blocks.pairs if blocks.length else 0):
        of_pair = [in_turns for number, in_turns in kinds if number == pair]
        assert of_pair == [False] * blocks.length + [True] * blocks.length
    # What is left is shorter than one step in each block of each pair.
    assert sum(pair is None for pair, _ in kinds) < 2 * max(blocks.pairs, 1)
    assert blocks.length <= 2 * length
    assert blocks.length == 0 or blocks.length >= length / 2 or blocks.pairs == 1
    ends = [step for step in range(steps + 1) if blocks.ends_turn(step)]
    begins = [step for step in range(steps + 1) if blocks.begins_turn(step)]
    assert len(begins) == len(ends) == (blocks.pairs if blocks.length else 0)
    assert [end - begin + 1 for begin, end in zip(begins, ends, strict=True)] == [
        blocks.length
    ] * len(ends)


@given(st.integers(0, 100), st.integers(1, 12), st.integers(1, 4))
def test_all_ranks_meet_as_often_within_every_epoch(steps, length, ranks):
    """So no rank waits for one that goes on to the exchange at the end of the epoch."""
    met = []
    for rank in range(ranks):
        calls = []
        turns = Turns(rank, ranks, Blocks.of(steps, length), partial(calls.append, 1), float)
        for step in range(1, steps + 1):
            turns.wait(step)
        met.append(len(calls))
    assert len(set(met)) == 1


def test_a_ratio_leaves_the_first_step_of_a_block_out():
    def pair(together: list[float], in_turns: list[float]) -> dict:
        return {TOGETHER: together, IN_TURNS: in_turns}

    ranks = [[pair([9.0, 2.0, 4.0], [8.0, 2.0, 2.0])], [pair([9.0, 3.0, 3.0], [0.5, 2.0, 2.0])]]
    assert slowdowns(ranks) == [12 / 8]
    assert slowdowns([[pair([3.0], [2.0])]]) == [1.5]
    assert slowdowns([[], []]) == library_shares([[], []]) == []


def test_the_share_of_a_library_is_that_of_steps_that_follow_each_other():
    """Before the first step of a turn, the rank waits, and threads of the library run."""
    clock = iter([5.0, 5.25, 5.75])
    turns = Turns(0, 1, Blocks(3, 1), int, lambda: next(clock))
    for step in range(1, 7):
        turns.note(step, 1.0 if step <= 3 else 0.5)
    [pair] = turns.pairs
    assert pair == {TOGETHER: [1.0] * 3, IN_TURNS: [0.5] * 3, LIBRARY: [5.0, 0.25, 0.5]}
    other = pair | {LIBRARY: [9.0, 0.0, 0.0]}
    assert library_shares([[pair], [other]]) == [0.75 / 4 / 0.5]
    assert library_shares([[{TOGETHER: [1.0], IN_TURNS: [1.0], LIBRARY: [7.0]}]]) == []


def test_threads_of_a_library_are_those_that_run_while_the_process_waits():
    ended = threading.Event()

    def wake_up() -> None:
        while not ended.wait(0.002):
            sum(range(2000))

    running, waiting = (threading.Thread(target=each) for each in (wake_up, ended.wait))
    running.start(), waiting.start()
    try:
        found = _threads.of_library()
        assert running.native_id in found and waiting.native_id not in found
        before = _threads.core_seconds(found)
        time.sleep(0.1)
        assert _threads.core_seconds(found) > before > 0
    finally:
        ended.set()
        running.join(), waiting.join()
    # Python's join returns a moment before the system's thread has ended.
    thread = Path("/proc/self/task") / str(running.native_id)
    deadline = time.monotonic() + 10
    while thread.exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert _threads.core_seconds([running.native_id]) == 0


#: Seconds of a step by itself, and how many times longer it is beside another one.
ALONE, SLOWER = 0.016, 1.5


def compute(rank: int, ranks: int, barrier, active, results) -> None:
    """Make steps that are slower while another process makes one, as a rank of a probe run does."""
    blocks = Blocks.of(STEPS, LENGTH)
    turns = Turns(rank, ranks, blocks, lambda: barrier.wait(60), float)
    steps = []
    for epoch in range(EPOCHS):
        barrier.wait(60)  # Ranks begin an epoch together.
        for step in range(1, STEPS + 1):
            began = time.monotonic()
            active[rank] = 1
            time.sleep(ALONE / 2)
            beside = sum(active) > 1
            time.sleep(ALONE / 2 + beside * ALONE * (SLOWER - 1))
            active[rank] = 0
            ended = time.monotonic()
            steps.append((epoch, blocks.pair(step), blocks.in_turns(step), began, ended))
            turns.note(step, ended - began)
            if not blocks.in_turns(step):
                barrier.wait(60)  # The exchange after a step.
            turns.wait(step)
    results.put((rank, steps, turns.pairs))


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request):
    """The steps and pairs of real processes."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(request.param), context.Queue()
    active = context.Array("i", request.param)
    processes = [
        context.Process(target=compute, args=(rank, request.param, barrier, active, results))
        for rank in range(request.param)
    ]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    return found


def test_a_rank_computes_in_its_turn_only_while_the_others_wait(ranks):
    steps = [(rank, *step) for rank, of_rank, _ in ranks for step in of_rank]
    in_turns = [step for step in steps if step[3]]
    pairs = Blocks.of(STEPS, LENGTH).pairs
    assert len(in_turns) == len(ranks) * EPOCHS * pairs * Blocks.of(STEPS, LENGTH).length
    for one, other in combinations(steps, 2):
        if one[0] != other[0] and (one[3] or other[3]):
            *_, began, ended = one
            *_, other_began, other_ended = other
            assert ended <= other_began or other_ended <= began


def test_the_known_loss_of_real_processes_is_recovered(ranks):
    ratios = slowdowns([pairs for _, _, pairs in ranks])
    assert len(ratios) == EPOCHS * Blocks.of(STEPS, LENGTH).pairs
    assert np.median(ratios) == pytest.approx(SLOWER, rel=0.1)
