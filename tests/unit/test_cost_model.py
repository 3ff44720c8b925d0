"""Predicted times are those of closed forms and of simulated processes; intervals cover."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from escala.analysis.cost_model import calibration as calibrations
from escala.analysis.cost_model import resample
from escala.analysis.cost_model.calibration import PRESETS, Gradient, Network, parse
from escala.analysis.cost_model.exchange import (
    CYCLE_SECONDS,
    Exchange,
    ExchangeWork,
    Message,
    compute_exposure,
    dense_exchange,
    in_buckets,
    plan_exchange,
)
from escala.analysis.cost_model.predict import NOT_VALIDATED, TERMS, Setup, interval, predict
from escala.analysis.cost_model.transfers import (
    GLOO_SEGMENT_BYTES,
    Transfer,
    Transfers,
    traffic,
)
from escala.core.engines import COLLECTIVES
from escala.core.errors import InputError
from escala.core.variables import for_ranks
from escala.engines import costs, environments
from escala.probes.collectives import (
    ALLGATHER,
    ALLREDUCE,
    OPERATIONS,
)
from escala.runtime.layout import Layout

KIB = 1024
SIZES = [2**exponent * KIB for exponent in (0, 1, 3, 5, 7, 8, 9, 10, 12, 13, 14)]
#: The machine that is simulated: seconds of a message and of a byte, on the link and in memory.
LINK, MEMORY = (40e-6, 8e-9), (2e-6, 0.5e-9)
WAIT = 0.8e-3
FIXED, PER_ROW, UPDATE, BOTH = 4e-3, 0.4e-3, 2e-3, 1.05


def true_seconds(library: str, operation: str, layout: Layout, size: float, link=LINK) -> float:
    sent = traffic(library, operation, layout.ranks, size)
    return WAIT + np.dot(link if layout.nodes > 1 else MEMORY, sent)


def content(spread: float = 0.0, repeats: int = 5, steps: int = 20, link=LINK) -> dict:
    """A calibration of the machine above, of two ranks on one node and on two."""
    random = np.random.default_rng(0)

    def noisy(seconds: float) -> list[float]:
        return list(seconds * np.exp(random.normal(0, spread, repeats)))

    def entry(library: str, operation: str, layout: str) -> dict:
        drift = np.exp(random.normal(0, spread, repeats))
        place = Layout.parse(layout)
        times = {
            size: list(true_seconds(library, operation, place, size, link) * drift)
            for size in SIZES
        }
        return {
            "library": library,
            "operation": operation,
            "network": "native" if place.nodes > 1 else "local",
            "layout": layout,
            "times": [{"bytes": size, "seconds": seconds} for size, seconds in times.items()],
        }

    def step(rows: int) -> dict:
        seconds = [[each] * steps for each in noisy(FIXED + PER_ROW * rows)]
        return {"rows": rows, "cores": 1, "seconds": seconds}

    def alongside_others(library: str) -> dict:
        names = {"library": library, "rows": 32, "cores": 1, "processes": 2}
        return names | {"ratios": noisy(BOTH)}

    work = {
        "gradients": [
            {"name": "dense", "shape": [4000, 128], "ready": 0.5, "factor_rows": 1},
            {"name": "embedding", "shape": [5, 8], "sparse_rows": 1000},
            {"name": "output", "shape": [128, 5], "ready": 0.2},
        ],
        "steps": [step(rows) for rows in (16, 32, 64)],
        "contention": [alongside_others(library) for library in ("mpi", "gloo")],
        "update_seconds": noisy(UPDATE),
        "overheads": {
            "start_seconds": noisy(7.0),
            "evaluation_per_row_seconds": noisy(1e-4),
            "end_seconds": noisy(0.5),
        },
    }
    return {
        "format": 2,
        "machine": {},
        "cores_per_node": 2,
        "model_deviation": 0.0,
        "core": {"bytes_per_second": noisy(8e9), "operations_per_second": noisy(50e9)},
        "networks": {
            "native": {"bits_per_second": 8 / link[1], "latency_seconds": link[0]},
            "local": {"bits_per_second": None, "latency_seconds": MEMORY[0]},
        },
        "collectives": [
            entry(library, operation, layout)
            for library in ("mpi", "gloo")
            for operation in OPERATIONS
            for layout in ("1x2", "2x1")
        ],
        "works": {"cnn": work},
    }


def times_of(changed: dict) -> list[dict]:
    """The times of all collectives of a calibration."""
    return [time for each in changed["collectives"] for time in each["times"]]


EXACT = parse(content())


# Collectives.


@pytest.mark.parametrize("library", sorted(COLLECTIVES))
@given(st.integers(2, 70), st.integers(1, 2**28))
def test_a_ring_sends_what_was_published(library, p, n):
    """Thakur, Rabenseifner and Gropp (2005), sections 4 and 6."""
    assert traffic(library, ALLGATHER, p, n) == (p - 1, (p - 1) * n)
    messages, sent = traffic(library, ALLREDUCE, p, n)
    assert sent == pytest.approx(2 * (p - 1) / p * n)
    if not COLLECTIVES[library].segmented:
        assert messages == 2 * (p - 1)
    else:
        assert sent / messages <= GLOO_SEGMENT_BYTES and messages >= 4 * (p - 1)


def transfers(layout: str, network: Network | str = "native", library: str = "mpi", of=EXACT):
    if isinstance(network, str):
        network = of.network(network)
    return Transfers(of, library, Layout.parse(layout), network)


@pytest.mark.parametrize(("library", "layout"), [*product(("mpi", "gloo"), ("1x2", "3x4", "64x1"))])
@pytest.mark.parametrize(("operation", "size"), [*product(OPERATIONS, (6 * KIB, 3_000_000))])
def test_times_of_two_ranks_give_those_of_other_layouts(library, operation, layout, size):
    """Exactly, if the machine behaves as the algorithms' closed forms say."""
    found = transfers(layout, library=library).seconds(operation, size)
    expected = true_seconds(library, operation, Layout.parse(layout), size)
    assert found.seconds == pytest.approx(expected, rel=1e-6)
    assert 0 < found.core_seconds < found.seconds


def test_what_was_measured_at_a_size_is_predicted_there():
    """From 1 MiB on, a collective takes twice as long, which two parameters do not follow."""
    changed = content()
    for time in times_of(changed):
        factor = 2 if time["bytes"] >= 2**20 else 1
        time["seconds"] = [factor * seconds for seconds in time["seconds"]]
    bent = parse(changed)
    for layout, operation in (("1x2", ALLGATHER), ("2x1", ALLREDUCE)):
        found = transfers(layout, of=bent)
        for size in SIZES:
            expected = true_seconds("mpi", operation, Layout.parse(layout), size)
            expected *= 2 if size >= 2**20 else 1
            assert found.seconds(operation, size).seconds == pytest.approx(expected)
        largest, beyond = (found.seconds(operation, size).seconds for size in (SIZES[-1], 2**30))
        assert beyond == pytest.approx(largest * 2**30 / SIZES[-1], rel=0.05)


def test_a_larger_size_that_seems_faster_is_noise():
    """Two sizes whose times were exchanged have their mean, weighted as in the fit."""
    changed, seemed = content(), dict(zip(SIZES, (3e-3, 2e-3), strict=False))
    for time in times_of(changed):
        seconds = seemed.get(time["bytes"], 4e-3 + time["bytes"] * 1e-8)
        time["seconds"] = [seconds] * len(time["seconds"])
    found = transfers("2x1", of=parse(changed))
    mean = np.average([3e-3, 2e-3], weights=[3e-3**-2, 2e-3**-2])
    for size in seemed:
        assert found.seconds(ALLGATHER, size).seconds == pytest.approx(mean)


def test_a_link_or_a_core_limits_the_rate_of_an_exchange():
    size, network = 2**23, PRESETS["1gbit"]
    crossing = transfers("2x1", network).seconds(ALLREDUCE, size).seconds
    assert crossing == pytest.approx(size * network.seconds_per_byte + 2 * LINK[0] + WAIT, rel=1e-6)
    native = transfers("2x1").seconds(ALLREDUCE, size).seconds
    infinite = transfers("2x1", Network("none", None, LINK[0], "")).seconds(ALLREDUCE, size)
    assert infinite.seconds == pytest.approx(native)
    # The only times are those in memory, which are faster than this core copies.
    local, across = (
        tuple(each for each in EXACT.collectives if (each.layout.nodes > 1) == several)
        for several in (False, True)
    )
    of = replace(EXACT, collectives=local, bytes_per_second=np.array([1e9]))
    limited = transfers("2x1", Network("fast", 1e12, 1e-6, ""), of=of)
    expected = WAIT + 2 * MEMORY[0] + size * 1e-9 + 2e-6
    assert limited.seconds(ALLREDUCE, size).seconds == pytest.approx(expected, rel=1e-3)
    assert limited.extrapolated == ["fast was not calibrated"]
    with pytest.raises(InputError, match="mpi allreduce"):
        transfers("1x2", of=replace(EXACT, collectives=across)).seconds(ALLREDUCE, 10_000)


@pytest.mark.parametrize(
    ("layout", "network", "names"),
    [
        ("2x1", PRESETS["10gbit"], ("latency of native", "10gbit was not", "as fast as 10gbit")),
        ("2x1", PRESETS["100mbit"], ("latency of native", "100mbit was not")),
        ("3x4", "native", ("with 2 ranks, not 12",)),
    ],
)
def test_what_was_not_calibrated_is_named(layout, network, names):
    used = transfers(layout, network)
    used.seconds(ALLREDUCE, 10_000)
    assert all(part in note for note, part in zip(used.extrapolated, names, strict=True))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: transfers("2x1", library="tensorflow").seconds(ALLREDUCE, 10), "tensorflow"),
        (lambda: EXACT.network("1tbit"), r"1tbit.*infiniband-40gbit"),
        (lambda: predict(EXACT, replace(PLAN, work="rnn"), 1), "choose one of cnn"),
        (lambda: predict(EXACT, replace(PLAN, cores=4), 1), "were calibrated with 1"),
        (lambda: predict(EXACT, replace(PLAN, network="nowhere"), 1), "is unknown"),
    ],
)
def test_what_was_not_calibrated_is_refused(ask, message):
    with pytest.raises(InputError, match=message):
        ask()


GRADIENTS = EXACT.works["cnn"].gradients


def sent(rows: int = 32, ranks: int = 2, **knobs: object) -> ExchangeWork:
    return plan_exchange(GRADIENTS, rows, ranks, Exchange(**knobs))


def sizes(**options: object) -> list[tuple[str, float]]:
    return [(each.operation, each.size) for each in sent(**options).messages]


def test_messages_of_each_exchange_in_the_order_in_which_they_are_known():
    output, dense, embedding = (ALLREDUCE, 2560), (ALLREDUCE, 2_048_000), (ALLREDUCE, 160)
    assert sizes() == [output, dense, embedding]
    assert sizes(sparse_as_dense=False) == [
        output, dense, (ALLGATHER, 32 * 1000 * 8 * 4), (ALLGATHER, 32 * 1000 * 4),
    ]  # fmt: skip
    factors = [(ALLGATHER, 32 * 4000 * 4), (ALLGATHER, 32 * 128 * 4)]
    assert sizes(dense=costs.FACTORS) == [output, *factors, embedding]
    assert sizes(dense=costs.FACTORS, fp16=True) == [
        (ALLREDUCE, 1280), (ALLGATHER, 32 * 4000 * 2), factors[1], (ALLREDUCE, 80),
    ]  # fmt: skip
    assert sizes(dense=costs.FACTORS, sparse_as_dense=False, accumulation=2) == sizes()
    # All other gradients are few bytes, and are summed in memory too.
    assert sizes(dense=costs.SHARED_MEMORY) == []
    # Unless ranks may gather the rows of some.
    assert sizes(dense=costs.SHARED_MEMORY, sparse_as_dense=False) == [
        output, (ALLGATHER, 32 * 1000 * 8 * 4), (ALLGATHER, 32 * 1000 * 4),
    ]  # fmt: skip
    assert sizes(ranks=1) == []
    # Each number is read and written before and after it is rounded.
    assert sent(fp16=True).moved_bytes == 2 * (4000 * 128 + 5 * 8 + 128 * 5) * (4 + 2)


def test_shared_memory_sums_few_bytes_and_takes_single_rows_of_float32():
    exchange = Exchange(dense=costs.SHARED_MEMORY)
    large = calibrations.Gradient("convolution", (costs.MAX_SUM_BYTES // 8,))
    several = plan_exchange([*GRADIENTS, large], 32, 2, exchange)
    assert [each.operation for each in several.messages] == [ALLREDUCE] * 3
    sums = 4 * (2 + 2) * (5 * 8 + 128 * 5)
    assert sent(dense=costs.SHARED_MEMORY).moved_bytes == several.moved_bytes + sums
    kernel = calibrations.Gradient("dense", (4000, 128), factor_rows=1)
    assert dense_exchange(kernel, 8, 4, exchange) == costs.SHARED_MEMORY
    for changed in ({"factor_rows": 2}, {"item_bytes": 8}, {"shape": (3, 4000)}):
        assert dense_exchange(replace(kernel, **changed), 8, 4, exchange) == costs.ALLREDUCE
    assert exchange.across(2) == Exchange() and exchange.across(1) == exchange


def stepped(
    computing, listed, transfer, fusion, spare, cycle=0.0, first_look=0.0, step=1e-4
) -> float:
    """Advance by small steps of time: computing and a transfer share one core in equal parts.

    A transfer alternates so often between its core and the link that each moment is a mixture.
    With a cycle, what is known at a look is sent, and the next look is a cycle later, or when all
    of it is sent.
    """
    now = done = 0.0
    waiting, seen, active, look = list(listed), [], None, first_look
    while waiting or seen or active or done < computing - step / 2:
        known = [each for each in waiting if each.ready * computing <= done + step / 2]
        if active is None and not seen and now >= look - step / 2:
            seen = known
            waiting = waiting[len(seen) :]
            look += cycle
        elif not cycle and active is None:
            seen += known
            waiting = waiting[len(known) :]
        if active is None and seen:
            fused = [seen.pop(0)]
            while seen and sum(one.size for one in fused) + seen[0].size <= fusion:
                fused.append(seen.pop(0))
            cost = transfer("", sum(each.size for each in fused))
            alongside = cost.seconds - cycle / 2
            active = [alongside, cost.core_seconds / alongside]
        computes = done < computing - step / 2
        if active:
            slowed = 1 + active[1] if computes and not spare else 1
            active[0] -= step / slowed
            # What the transfer takes of the core in this moment is lost for computing.
            done += step / slowed if computes else 0
            if active[0] <= 0:
                active = None
                look = look if seen else max(look, now + step)
        elif computes:
            done += step
        now += step
    return now - computing


MESSAGES = st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 0.3)), min_size=1, max_size=5).map(
    lambda drawn: [Message("", size, ready) for ready, size in sorted(drawn)]
)


@settings(max_examples=30)
@given(
    MESSAGES,
    st.floats(0, 0.5),
    st.floats(0, 1),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.booleans(),
)
@example(
    # Computing ends within an exchange, and its sum rounds to less than itself.
    [Message("", 0.299, 0.0), Message("", 0.125, 0.5), Message("", 0.25, 1.0)],
    0.25, 0.0, 0.25, 0.0, False,
)  # fmt: skip
def test_the_exposed_part_is_that_of_processes_that_share_a_core_and_look_in_cycles(
    listed, computing, core_ratio, cycle, fusion, spare
):
    """The calibrated times hold the mean wait, half a cycle."""

    def transfer(operation: str, size: float) -> Transfer:
        return Transfer(size + cycle / 2, core_ratio * size)

    exposed = compute_exposure(
        computing, listed, transfer, spare and not cycle, cycle=cycle, fusion_bytes=fusion
    )
    looks = (np.arange(40) + 0.5) / 40 if cycle else [0]
    expected = [
        stepped(computing, listed, transfer, fusion, spare and not cycle, cycle, look * cycle)
        for look in looks
    ]
    # At the edge of a look, a small step decides whether a message is one of it.
    most = 0.02 + cycle / 16 if cycle else 0.01
    assert exposed == pytest.approx(np.mean(expected), abs=most)


PLAN = Setup("cnn", Layout(2, 1), 64)


def test_the_terms_of_a_step_are_those_of_the_machine():
    found = predict(EXACT, PLAN, draws=2)
    alone = FIXED + 32 * PER_ROW - UPDATE
    dense = true_seconds("mpi", ALLREDUCE, Layout(2, 1), 4000 * 128 * 4)
    assert found.terms["fixed"] + found.terms["compute"] == pytest.approx(alone)
    assert found.terms["fixed"] == pytest.approx(FIXED - UPDATE)
    assert found.terms["update"] == pytest.approx(UPDATE)
    for term in ("skew", "contention"):
        assert found.terms[term] == pytest.approx(0, abs=1e-15)
    # The dense gradient is known at half of the computing, and the last at its end. It waits for
    # the dense one and not for a cycle. The node has a core that no rank computes on.
    last = true_seconds("mpi", ALLREDUCE, Layout(2, 1), 160) - CYCLE_SECONDS / 2
    tail = dense - alone / 2
    assert found.terms["exchange"] == pytest.approx(tail + last, rel=0.02)
    assert found.steps == pytest.approx(sum(found.terms[name] for name in TERMS))
    assert found.extrapolated == ()


@pytest.mark.parametrize("rows", [16, 64, 256])
def test_one_rank_takes_the_time_that_was_calibrated_and_beyond_it_that_of_the_line(rows):
    found = predict(EXACT, replace(PLAN, layout=Layout(1, 1), rows=rows), draws=2)
    assert found.steps == pytest.approx(FIXED + rows * PER_ROW)
    assert not found.terms["exchange"].any() and not found.terms["skew"].any()
    assert ["outside the calibrated rows" in each for each in found.extrapolated] == [True] * (
        rows > 64
    )


def slower(changed: dict, layout: Layout, library: str = "mpi", cores: int = 1) -> float:
    """Return how many times longer ranks of 32 rows compute than one by itself."""
    plan = replace(PLAN, library=library, layout=layout, rows=32 * layout.ranks, cores=cores)
    terms = predict(parse(changed), plan, draws=20).terms
    return 1 + float(np.median(terms["contention"] / (terms["fixed"] + terms["compute"])))


def test_ranks_on_nodes_of_their_own_are_slower_as_they_were_measured():
    """Nodes of the lab share a machine."""
    changed = content()
    work = changed["works"]["cnn"]
    [mpi_entry, gloo_entry] = work["contention"]
    work["contention"] = [mpi_entry, mpi_entry | {"processes": 1, "ratios": [1.2] * 3}, gloo_entry]
    for layout, factor in (("1x1", 1), ("1x2", BOTH), ("2x2", BOTH), ("2x1", 1.2), ("4x1", 1.2)):
        assert slower(changed, Layout.parse(layout)) == pytest.approx(factor)
    # Runs of this library were on one node only.
    assert slower(changed, Layout(2, 1), "gloo") == 1
    # Four ranks have two cores.
    assert slower(content(), Layout(1, 4)) == pytest.approx(2 * BOTH)
    four = predict(EXACT, replace(PLAN, layout=Layout(1, 4), rows=128), draws=2)
    assert "more ranks than cores" in four.extrapolated
    # Two processes share the cores of a node that has cores for one of them only.
    for each in (*work["steps"], *work["contention"]):
        each["cores"] = 2
    assert slower(changed, Layout(1, 2), cores=2) == pytest.approx(2)
    assert slower(changed, Layout(2, 2), cores=2) == pytest.approx(2 * 1.2)


def test_contention_is_that_of_the_library_and_the_median_of_its_rounds():
    changed, layout = content(), Layout(1, 2)
    work = changed["works"]["cnn"]
    [mpi_entry, gloo_entry] = work["contention"]
    # A round that something disturbed.
    mpi_entry["ratios"] = [BOTH] * 20 + [3.0]
    gloo_entry["ratios"] = [2.0] * 2

    def notes(library: str) -> tuple[str, ...]:
        return predict(
            parse(changed), replace(PLAN, library=library, layout=layout), draws=2
        ).extrapolated

    assert slower(changed, layout) == pytest.approx(BOTH) and not notes("mpi")
    assert slower(changed, layout, "gloo") == pytest.approx(2.0) and not notes("gloo")
    work["contention"] = [mpi_entry]
    assert slower(changed, layout, "gloo") == pytest.approx(BOTH)
    assert "contention was not calibrated with gloo" in notes("gloo")
    work["contention"] = []
    assert slower(changed, layout) == 1.0
    assert "2 processes at a time on a node were not calibrated" in notes("mpi")


def _with_exchange(lost: dict[str, float], changed: dict | None = None, **names):
    """A calibration that measured how much longer steps are that exchange, by network."""
    changed = changed or content()
    changed["works"]["cnn"]["exchanges"] = [
        {"library": "mpi", "network": network, "layout": "1x2" if network == "local" else "2x1"}
        # A round that something disturbed.
        | {"rows": 32, "cores": 1, "seconds": [*[each] * 20, 9.0]}
        | names
        for network, each in lost.items()
    ]
    return parse(changed)


def _exchange(calibration, plan) -> float:
    return float(np.median(predict(calibration, plan, draws=20).terms["exchange"]))


@pytest.mark.parametrize(
    ("layout", "exchange", "more"),
    [
        (Layout(1, 2), Exchange(), 0.7e-3),
        (Layout(2, 1), Exchange(fp16=True), 0.7e-3),
        (Layout(2, 2), Exchange(), 0.7e-3),
        (Layout(2, 1), Exchange(dense=costs.FACTORS), -0.5e-3),
    ],
)
def test_what_a_step_lost_unlike_the_explained_exchange_is_added(layout, exchange, more):
    """A longer exchange loses as much as the nearest that was measured, a shorter one a part."""
    nearest = Layout(1, 2) if layout.nodes == 1 else Layout(2, 1)
    explained = _exchange(EXACT, replace(PLAN, layout=nearest))
    used, unused = ("local", "native") if layout.nodes == 1 else ("native", "local")
    calibration = _with_exchange({used: explained + more, unused: 1e6})
    plan = replace(PLAN, layout=layout, rows=32 * layout.ranks, exchange=exchange)
    modelled = _exchange(EXACT, plan)
    expected = modelled + more * min(1, modelled / explained)
    assert _exchange(calibration, plan) == pytest.approx(expected)


def test_a_measured_exchange_counts_for_its_library_and_cores_and_is_not_below_nothing():
    assert _exchange(_with_exchange({"native": -1.0}), PLAN) == 0
    for names in ({"library": "gloo"}, {"cores": 2}):
        found = _exchange(_with_exchange({"native": 1.0}, **names), PLAN)
        assert found == _exchange(EXACT, PLAN)
    assert _exchange(_with_exchange({"native": 1.0}), replace(PLAN, layout=Layout(1, 1))) == 0
    # One of another kind of layout stands for it, and is named.
    for measured, layout, named in (
        ("native", Layout(4, 1), []),
        ("local", Layout(2, 1), ["between nodes over native: the loss on one node stands for it"]),
        ("native", Layout(1, 2), ["on one node: the loss between nodes over native stands for it"]),
    ):
        plan = replace(PLAN, layout=layout, rows=32 * layout.ranks)
        notes = predict(_with_exchange({measured: 1.0}), plan, draws=2).extrapolated
        notes = [each for each in notes if "loses by its exchange" in each]
        assert all(phrase in each for phrase, each in zip(named, notes, strict=True))


def test_knobs_change_the_terms_that_they_are_about():
    usual = predict(EXACT, PLAN, draws=2).terms
    factors = predict(EXACT, replace(PLAN, exchange=Exchange(dense=costs.FACTORS)), draws=2).terms
    # The products of other ranks.
    assert factors["update"] - usual["update"] == pytest.approx(2 * 32 * 4000 * 128 / 50e9)
    # Accumulation computes in parts, and updates once.
    parts = predict(EXACT, replace(PLAN, exchange=Exchange(accumulation=2)), draws=2).terms
    computing = parts["fixed"] + parts["compute"]
    assert computing == pytest.approx(2 * (FIXED + 16 * PER_ROW - UPDATE))
    assert parts["update"] == pytest.approx(UPDATE)
    # The largest part of a rank counts: of 63 rows one rank has 32, and a third of these is 11.
    uneven = replace(PLAN, rows=63, exchange=Exchange(accumulation=3))
    thirds = predict(EXACT, uneven, draws=2).terms
    computing = thirds["fixed"] + thirds["compute"]
    assert computing == pytest.approx(3 * (FIXED + 11 * PER_ROW - UPDATE))
    # An update that was not measured is a part of computing.
    works = {"cnn": replace(EXACT.works["cnn"], update=None)}
    one = predict(replace(EXACT, works=works), replace(PLAN, layout=Layout(1, 1)), draws=1)
    assert one.terms["update"] == 0 and one.steps == pytest.approx(FIXED + 64 * PER_ROW)


def test_copies_through_shared_memory_take_the_time_of_their_bytes():
    """The other gradients are summed there: each rank reads those of both."""
    plan = replace(PLAN, layout=Layout(1, 2), exchange=Exchange(dense=costs.SHARED_MEMORY))
    found = predict(EXACT, plan, draws=2).terms
    weights, other_weights = 4000 * 128, 5 * 8 + 128 * 5
    read, written = 32 * (4000 + 128) + 64 * (4000 / 2 + 128), 32 * (4000 + 128)
    copying = 4 * (read + written + (2 + 2) * other_weights) / 8e9
    assert found["exchange"] == pytest.approx(copying)
    fraction = (weights / 2 + other_weights) / (weights + other_weights)
    assert found["update"] == pytest.approx(fraction * BOTH * UPDATE)
    # One rank copies nothing, and several nodes have no memory in common.
    for layout in (Layout(1, 1), Layout(2, 1), Layout(2, 2)):
        plans = [
            replace(PLAN, layout=layout, exchange=each) for each in (plan.exchange, Exchange())
        ]
        steps = [predict(EXACT, each, draws=2).steps for each in plans]
        np.testing.assert_array_equal(*steps)


def test_skew_is_the_mean_of_the_slowest_of_all_ranks():
    random = np.random.default_rng(0)
    changed = content()
    steps = [random.lognormal(0, 0.2, 400) for _ in range(5)]
    for each in changed["works"]["cnn"]["steps"]:
        each["seconds"] = [list(one) for one in steps]
    found = predict(parse(changed), replace(PLAN, layout=Layout(4, 1), rows=128), draws=40)
    pooled = np.concatenate([one / one.mean() for one in steps])
    slowest = random.choice(pooled, (40_000, 4)).max(axis=1).mean()
    computing = found.terms["fixed"] + found.terms["compute"] + found.terms["contention"]
    assert found.terms["skew"] / computing == pytest.approx(slowest - 1, rel=0.02)


def test_several_ranks_start_later_by_what_was_calibrated():
    names = ("library", "network", "layout", "seconds")
    listed = [("mpi", "local", "1x2", [2.0]), ("mpi", "native", "2x1", [5.0, 5.0])]
    starts = [dict(zip(names, each, strict=True)) for each in listed]
    for known, layout, changes, later, named in (
        (starts, (1, 1), {}, 0.0, None),
        (starts, (1, 2), {}, 2.0, None),
        (starts, (2, 1), {}, 5.0, None),
        (starts, (2, 4), {}, 5.0, "start of 2x4 was not calibrated"),
        (starts, (2, 1), {"network": "1gbit"}, 5.0, "over 1gbit was not calibrated: that over nat"),
        (starts, (1, 2), {"library": "gloo"}, 0.0, "start of several ranks was not calibrated"),
        (starts[:1], (2, 1), {}, 2.0, "that of 1x2 stands for it"),
    ):
        plan = replace(PLAN, layout=Layout(*layout), **changes)
        found = predict(parse(content() | {"starts": known}), plan, draws=2)
        assert found.overheads["start"] == pytest.approx(7.0 + later)
        assert len(found.extrapolated_start) == (named is not None)
        assert (named or "") in "".join(found.extrapolated_start)
        # The steps do not depend on it.
        assert not any("start" in each for each in found.extrapolated)


def test_a_predicted_run_may_be_made_in_any_minutes_of_the_calibration():
    drift, one = [0.95, 1.0, 1.1, 1.3], replace(PLAN, layout=Layout(1, 1), rows=32)
    known, usual = parse(content() | {"drift": drift}), predict(EXACT, one, draws=1).steps[0]
    found = predict(known, one, draws=200).steps / usual
    assert set(np.round(found, 9)) == set(drift)
    assert interval(found)[1:] == pytest.approx((0.95, 1.3))
    # A ratio of two predictions does not hold it.
    more = predict(known, replace(one, rows=64), draws=50).steps
    ratio = more / predict(known, one, draws=50).steps
    assert ratio == pytest.approx(np.full(50, ratio[0]))
    # A single other run may be an outlier.
    alone = parse(content() | {"drift": [1.3]})
    assert predict(alone, one, draws=2).steps == pytest.approx(usual)


def test_more_ranks_than_were_checked_have_an_estimate_without_an_interval():
    for layout in ("1x1", "1x2", "2x1", "1x4", "4x1", "64x1"):
        plan = replace(PLAN, layout=Layout.parse(layout))
        found = predict(parse(content(0.1)), plan, draws=50)
        seconds = interval(found.steps, plan.layout.ranks)
        assert seconds.estimate == pytest.approx(np.median(found.steps))
        is_checked = plan.layout.ranks <= calibrations.VALIDATED_RANKS
        assert (seconds.low is None) == (seconds.high is None) == (not is_checked)
        assert (NOT_VALIDATED in found.extrapolated) == (not is_checked)


def test_few_repeats_are_widened_to_the_interval_of_student():
    """For normal deviations, drawn means spread like a mean, times t over z."""
    random = np.random.default_rng(0)
    seconds = np.exp(random.normal(0, 0.01, (1, 6)))
    drawn = [resample.mean_of_drawn(seconds, random)[0, 0] for _ in range(4000)]
    deviation = np.log(seconds).std(ddof=1) / np.sqrt(6)
    assert np.log(drawn).std() == pytest.approx(deviation * 2.015 / 1.645, rel=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda of: of["collectives"][1].update(network="local"), "is not the network of 2x1"),
        (lambda of: of["works"]["cnn"]["steps"].extend(of["works"]["cnn"]["steps"]),
         "cnn has two entries of 16 rows"),
        (lambda of: of.update(format=1), "format: 2 was expected.*calibrate again"),
        (lambda of: of.update(works={"cnn": {}}), "works.cnn"),
        (lambda of: times_of(of)[0]["seconds"].append(1.0), "different numbers of repeats"),
    ],
)  # fmt: skip
def test_a_file_of_another_form_is_refused(change, message):
    changed = content()
    change(changed)
    with pytest.raises(InputError, match=message):
        parse(changed)


MIB = 2**20
#: Print the bytes of the buckets of each case that the standard input lists, in PyTorch's order.
ASSIGNED = """
import json, sys
import torch, torch.distributed as dist

for sizes, limits in json.load(sys.stdin):
    tensors = [torch.empty(size, dtype=torch.uint8, device="meta") for size in sizes]
    buckets, _ = dist._compute_bucket_assignment_by_size(tensors, limits)
    print(json.dumps([sum(sizes[each] for each in bucket) for bucket in buckets]))
"""


@pytest.mark.torch
def test_buckets_are_those_that_pytorch_assigns():
    random = np.random.default_rng(0)
    cases = [
        (random.integers(1, 9 * MIB, number).tolist(), limits)
        for number in (1, 2, 5, 30)
        for limits in ([MIB, 25 * MIB], [4 * MIB], [1], [MIB, 2 * MIB])
    ]
    python = environments.python("torch")
    variables = environments.variables(python, for_ranks())
    call = {"stdout": subprocess.PIPE, "text": True, "check": True, "env": variables}
    done = subprocess.run([python, "-c", ASSIGNED], input=json.dumps(cases), **call)
    for (sizes, limits), line in zip(cases, done.stdout.splitlines(), strict=True):
        known = [Message("", size, place / len(sizes)) for place, size in enumerate(sizes)]
        assert [each.size for each in in_buckets(known, limits)] == json.loads(line)


#: Fractions of computing after which six gradients of 1 MiB are known.
READY = (1.0, 0.9, 0.75, 0.7, 0.5, 0.45)


@pytest.mark.parametrize(
    ("bucket_mib", "buckets"),
    [
        (0.5, [(1, 0.45), (1, 0.5), (1, 0.7), (1, 0.75), (1, 0.9), (1, 1.0)]),
        (2, [(2, 0.5), (2, 0.75), (2, 1.0)]),
        (None, [(1, 0.45), (5, 1.0)]),
    ],
)
def test_a_predicted_exchange_is_what_buckets_leave_after_computing(bucket_mib, buckets):
    """There is a core to spare, and Gloo takes as long as it did for Horovod, one after another."""
    times = [
        replace(each, library="torch-gloo") for each in EXACT.collectives if each.library == "gloo"
    ]
    gradients = [Gradient(str(place), (MIB // 4,), ready=at) for place, at in enumerate(READY)]
    work = replace(EXACT.works["cnn"], gradients=tuple(gradients))
    machine = replace(EXACT, cores_per_node=4, collectives=tuple(times), works={"cnn": work})
    exchange = Exchange(bucket_mib=bucket_mib)
    setup = Setup("cnn", Layout(1, 2), 64, "torch-gloo", exchange=exchange)
    terms = {name: seconds.item() for name, seconds in predict(machine, setup, 1).terms.items()}
    computing = sum(terms[name] for name in ("fixed", "compute", "contention", "skew"))
    [allreduce] = [
        each for each in times if each.operation == ALLREDUCE and each.layout == setup.layout
    ]
    end = 0.0
    for mib, ready in buckets:
        seconds = np.interp(mib * MIB, allreduce.sizes, allreduce.seconds.mean(axis=1))
        end = max(end, ready * computing) + seconds
    assert terms["exchange"] == pytest.approx(max(end - computing, 0.0), rel=0.02)
