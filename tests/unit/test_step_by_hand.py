"""Parts of steps of Horovod against a calculation of its own from the same moments."""

from __future__ import annotations

from collections import defaultdict

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.analysis import attribution
from escala.analysis.attribution import OFF_CORE, PARTS, UNEXPLAINED, WHOLE
from escala.probes.clocks import COLUMNS
from tests.step_by_hand import by_hand

NAMES = ("input", "dispatch", "compute", "optimiser", "skew", OFF_CORE, WHOLE)


def row(step: int, moment: str, tensor: str, *numbers: int | None, rank: int = 0) -> tuple:
    """Return a row of clocks, from milliseconds."""
    seconds = [None if each is None else each / 1e3 for each in numbers]
    return (1, step, moment, tensor, 1000 + seconds[0], *(seconds[1:] or [None] * 3), rank)


milliseconds = st.integers(1, 200)


@st.composite
def steps_of_ranks(draw) -> tuple[pd.DataFrame, dict[int, float]]:
    """Moments of one step of two ranks with two tensors, whose sums do not arrive together.

    The second return value is when each rank has its last gradient, in ms.
    """
    rows, ready = [], {rank: draw(st.integers(20, 300)) for rank in (0, 1)}
    sent = max(ready.values()) + draw(milliseconds)
    first_arrival = draw(st.integers(max(ready.values()) + 1, sent))
    for rank, last in ready.items():
        updated = sent + draw(milliseconds)
        returned = updated + draw(milliseconds)
        # Of each of the three times with work, how long threads waited and cores did not run them.
        lengths = 3, last - 3, returned - sent
        queued, missing = ([draw(st.integers(0, each)) for each in lengths] for _ in range(2))
        idle = draw(st.integers(0, sum(missing)))
        used = [length - each for length, each in zip(lengths, missing, strict=True)]
        at = [
            ("gather_begins", "", 0, 0, 0, 0), ("gather_ends", "", 2),
            ("step_begins", "", 3), ("entered", "", 3, used[0], queued[0], None),
            ("gradient_ready", "a", draw(st.integers(4, last))), ("gradient_ready", "b", last),
            ("computed", "", last, sum(used[:2]), sum(queued[:2]), None),
            ("exchanged", "a", first_arrival), ("exchanged", "b", sent),
            # The rank is as busy in its wait as it can be.
            ("summed", "", sent, sum(used[:2]) + sent - last, sum(queued[:2]), None),
            ("updated", "a", draw(st.integers(sent, updated))), ("updated", "b", updated),
            ("returned", "", returned, sum(used) + sent - last, sum(queued), idle),
        ]  # fmt: skip
        rows += [row(1, moment, tensor, *numbers, rank=rank) for moment, tensor, *numbers in at]
    return pd.DataFrame(rows, columns=[*COLUMNS, "rank"]), ready


def as_moments(clocks: pd.DataFrame) -> dict:
    found = defaultdict(lambda: defaultdict(dict))
    for row in clocks.itertuples():
        used = [None if pd.isna(each) else each for each in row[6:9]]
        found[row.rank][row.epoch, row.step][row.moment, row.tensor] = (row.seconds, *used)
    return found


@settings(max_examples=40)
@given(steps_of_ranks())
def test_the_parts_are_those_by_hand_and_add_up(drawn):
    clocks, ready = drawn
    steps = attribution.per_step(clocks, None)
    hand = by_hand(as_moments(clocks))
    for rank in (0, 1):
        parts = steps.loc[rank].iloc[0]
        assert parts[[*PARTS, OFF_CORE, UNEXPLAINED]].sum() == pytest.approx(parts[WHOLE])
        for name in NAMES:
            assert parts[name] == pytest.approx(hand[rank][name], abs=1e-5), name
        rest = parts[["transfer", "copies", "negotiation", UNEXPLAINED]].sum()
        by_rest = hand[rank]["transfer"] + hand[rank]["rest of the exchange"]
        assert rest == pytest.approx(by_rest, abs=1e-5)
        assert parts["skew"] == pytest.approx((max(ready.values()) - ready[rank]) / 1e3, abs=1e-5)


@settings(max_examples=40)
@given(steps_of_ranks(), st.integers(1, 500))
def test_a_late_rank_is_skew_of_the_other_and_nobodys_optimiser(drawn, late):
    """Rank 1 has its last gradient later, and all that follows on both is as much later.

    The sum of the other tensor is not: it arrives while rank 0 waits for rank 1.
    """
    clocks, ready = drawn
    # Nothing is lost of the cores.
    clocks = clocks.assign(queue_seconds=0 * clocks["queue_seconds"])
    before = attribution.per_step(clocks, None)
    begin = max(ready.values()) - ready[1]
    more = (late + begin) / 1e3
    after_gradients = ~clocks["moment"].isin(
        ["gather_begins", "gather_ends", "step_begins", "entered", "gradient_ready", "computed"]
    )
    after_gradients &= (clocks["moment"] != "exchanged") | (clocks["tensor"] != "a")
    last = (clocks["rank"] == 1) & (
        (clocks["moment"] == "computed")
        | ((clocks["moment"] == "gradient_ready") & (clocks["tensor"] == "b"))
    )
    shifted = clocks.copy()
    shifted.loc[last, "seconds"] += more
    shifted.loc[after_gradients, "seconds"] += late / 1e3
    after = attribution.per_step(shifted, None)
    difference = 1e3 * (after - before)
    assert difference.loc[0, "skew"].item() == pytest.approx(late, abs=0.01)
    assert difference.loc[0, "compute"].item() == pytest.approx(0, abs=0.01)
    assert difference["optimiser"].abs().max() < 0.01


def a_step(queued: int, missing: int, idle: int) -> pd.Series:
    """Return the parts in ms of a step of one process: 100 ms of computing, and 20 of the update.

    Parameters
    ----------
    queued : ms that its threads waited while it computed.
    missing : ms of computing in which its core did not run it.
    idle : ms that its core was idle.
    """
    on = 100 - missing
    moments = [
        ("gather_begins", "", 0, 0, 0, 0), ("gather_ends", "", 0), ("step_begins", "", 0),
        ("entered", "", 0, 0, 0, None), ("gradient_ready", "a", 100),
        ("computed", "", 100, on, queued, None), ("exchanged", "a", 100),
        ("summed", "", 100, on, queued, None), ("updated", "a", 120),
        # It had the core for all of the update, in which one of its threads waited for another.
        ("returned", "", 120, on + 20, queued + 20, idle),
    ]  # fmt: skip
    clocks = pd.DataFrame([row(2, *each) for each in moments], columns=[*COLUMNS, "rank"])
    return 1e3 * attribution.per_step(clocks, None).iloc[0]


@pytest.mark.parametrize(
    ("queued", "missing", "idle", "lost"),
    [
        (90, 40, 0, 40),  # Another process had the core for 40 ms.
        (0, 40, 40, 0),  # It slept.
        (90, 0, 0, 0),  # Its threads waited for each other.
        (90, 40, 40, 0),  # They waited for each other, and it slept.
        (90, 40, 15, 25),  # It slept, and another process had the core.
    ],
)
def test_what_others_had_of_the_core_is_no_computing(queued, missing, idle, lost):
    parts = a_step(queued, missing, idle)
    assert parts[[OFF_CORE, "compute", "optimiser"]].tolist() == pytest.approx(
        [lost, 100 - lost, 20], abs=1e-6
    )


def test_what_was_not_sampled_is_unavailable_and_not_0():
    step = [
        ("gather_begins", "", 0), ("gather_ends", "", 1), ("step_begins", "", 2),
        ("gradient_ready", "a", 50), ("exchanged", "a", 50), ("updated", "a", 60),
        ("returned", "", 61),
    ]  # fmt: skip
    clocks = pd.DataFrame([row(1, *each) for each in step], columns=[*COLUMNS, "rank"])
    steps = attribution.per_step(clocks, None)
    table = attribution.summary(steps, True, attribution.SOURCES).set_index("part")
    assert table.loc[OFF_CORE, "kind"] == "unavailable"
    assert pd.isna(table.loc[OFF_CORE, "seconds"])
    assert 1e3 * table.loc["compute", "seconds"] == pytest.approx(48)
