"""Parts of steps of Horovod against a calculation of its own from the same moments."""

from __future__ import annotations

from collections import defaultdict

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escala.analysis import attribution
from escala.analysis.attribution import OFF_CORE, UNEXPLAINED, WHOLE
from escala.analysis.parts import PARTS
from escala.probes.clocks import COLUMNS
from tests.step_by_hand import by_hand

NAMES = ("input", "dispatch", "compute", "optimiser", "skew", OFF_CORE, WHOLE)

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
        queued = draw(st.integers(0, last)), draw(st.integers(0, returned - sent))
        idle = draw(st.integers(0, last)), draw(st.integers(0, returned - sent))
        used = last - idle[0], sent - last, returned - sent - idle[1]
        at = [
            ("gather_begins", "", 0, 0, 0), ("gather_ends", "", 2, None, None),
            ("step_begins", "", 3, None, None),
            ("gradient_ready", "a", draw(st.integers(4, last)), None, None),
            ("gradient_ready", "b", last, None, None),
            ("exchanged", "a", first_arrival, None, None), ("exchanged", "b", sent, None, None),
            ("updated", "a", draw(st.integers(sent, updated)), None, None),
            ("updated", "b", updated, None, None),
            ("computed", "", last, used[0], queued[0]),
            ("summed", "", sent, sum(used[:2]), queued[0]),
            ("returned", "", returned, sum(used), sum(queued)),
        ]  # fmt: skip
        rows += [
            (1, 1, moment, tensor, 1000 + each / 1e3, *(u and u / 1e3 for u in more), rank)
            for moment, tensor, each, *more in at
        ]
    return pd.DataFrame(rows, columns=[*COLUMNS, "rank"]), ready


def as_moments(clocks: pd.DataFrame) -> dict:
    found = defaultdict(lambda: defaultdict(dict))
    for row in clocks.itertuples():
        used = [None if pd.isna(each) else each for each in (row.core_seconds, row.queue_seconds)]
        found[row.rank][row.epoch, row.step][row.moment, row.tensor] = (row.seconds, *used)
    return found


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


@given(steps_of_ranks(), st.integers(1, 500))
def test_a_late_rank_is_skew_of_the_other_and_nobodys_optimiser(drawn, late):
    """Rank 1 gets its last gradient later, and all that follows on both ranks is as much later."""
    clocks, ready = drawn
    before = attribution.per_step(clocks, None)
    begin = max(ready.values()) - ready[1]
    more = (late + begin) / 1e3
    after_gradients = ~clocks["moment"].isin(
        ["gather_begins", "gather_ends", "step_begins", "gradient_ready", "computed"]
    )
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


def test_a_rank_without_its_core_is_off_it_and_computes_no_longer():
    """Another process has the core for 40 of 100 ms of computing; threads wait for 90 in queues."""
    moments = [
        ("gather_begins", "", 0, 0, 0), ("gather_ends", "", 0, None, None),
        ("step_begins", "", 0, None, None), ("gradient_ready", "a", 100, None, None),
        ("computed", "", 100, 60, 90), ("exchanged", "a", 100, None, None),
        ("summed", "", 100, 60, 90), ("updated", "a", 120, None, None),
        # It had the core for all of the update, in which one of its threads waited for another.
        ("returned", "", 120, 80, 110),
    ]  # fmt: skip
    rows = [(1, 2, m, t, at / 1e3, *(u and u / 1e3 for u in more)) for m, t, at, *more in moments]
    clocks = pd.DataFrame(rows, columns=COLUMNS).assign(rank=0)
    parts = 1e3 * attribution.per_step(clocks, None).iloc[0]
    assert parts[[OFF_CORE, "compute", "optimiser"]].tolist() == pytest.approx([40, 60, 20])
    sleeping = clocks.assign(queue_seconds=clocks["queue_seconds"] * 0)
    parts = 1e3 * attribution.per_step(sleeping, None).iloc[0]
    assert parts[[OFF_CORE, "compute"]].tolist() == pytest.approx([0, 100]), "it was not ready"


def test_what_was_not_sampled_is_unavailable_and_not_0():
    step = [
        ("gather_begins", "", 0), ("gather_ends", "", 1), ("step_begins", "", 2),
        ("gradient_ready", "a", 50), ("exchanged", "a", 50), ("updated", "a", 60),
        ("returned", "", 61),
    ]  # fmt: skip
    rows = [(1, 1, moment, tensor, at / 1e3, None, None) for moment, tensor, at in step]
    steps = attribution.per_step(pd.DataFrame(rows, columns=COLUMNS).assign(rank=0), None)
    table = attribution.summary(steps, True, attribution.SOURCES).set_index("part")
    assert table.loc[OFF_CORE, "kind"] == "unavailable"
    assert pd.isna(table.loc[OFF_CORE, "seconds"])
    assert 1e3 * table.loc["compute", "seconds"] == pytest.approx(48)
