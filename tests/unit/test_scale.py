"""Simulated steps are those of closed forms, and the ends of scaling those of all predictions."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import text_boxes
from fixtures_runs import FakeExperiment
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cost_model import BOTH, FIXED, LINK, MEMORY, PER_ROW, UPDATE, WAIT, content

from escala.analysis import scale
from escala.analysis.cost_model.calibration import parse, read
from escala.analysis.cost_model.collectives import GLOO
from escala.analysis.cost_model.messages import Exchange
from escala.analysis.cost_model.networks import Network
from escala.analysis.scale import STRONG, UNSHARDED, WEAK, simulated
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.report import scale as report
from escala.report.figures import common
from escala.runtime.layout import Layout
from escala.strategies import costs
from tests.conftest import KNOBS

ROOT = Path(__file__).resolve().parents[2]
#: Of a message for a cycle of Horovod.
MEAN_WAIT = 0.5e-3
INPUTS, OUTPUTS, OTHERS = 4000, 128, 5 * 8 + 128 * 5
OPERATIONS_PER_SECOND, BYTES_PER_SECOND = 50e9, 8e9
#: Those whose messages are all known at the end. The data that ranks compute from are known before:
#: the tests of the cost model have them.
AT_THE_END = [each for each in costs.EXCHANGES if each != costs.RECOMPUTE]


def machine(spread: float = 0.0, link: tuple[float, float] = LINK) -> dict:
    """The machine of the tests of the cost model, whose gradients are known at the end."""
    changed = content(spread, link=link)
    for each in changed["works"]["cnn"]["gradients"]:
        each["ready"] = 1.0
    return changed


EXACT = parse(machine())
SLOW = replace(EXACT, networks=dict(EXACT.networks) | {"slow": Network("slow", 2e8, LINK[0], "")})


def of(calibration=EXACT, rows=None, **options) -> pd.DataFrame:
    options = {"networks": ["native"], "library": GLOO, "draws": 2} | options
    return simulated(calibration, "cnn", rows or {WEAK: 32}, **options)


# Closed forms, written without the cost model.


def allreduce(ranks: int, size: float, link=LINK) -> float:
    """Gloo's ring, whose parts are sent in at least two segments of at most 1 MiB."""
    segments = max(2, np.ceil(size / ranks / 2**20))
    return WAIT + 2 * (ranks - 1) * (segments * link[0] + size / ranks * link[1])


def allgather(ranks: int, size: float, link=LINK) -> float:
    return WAIT + (ranks - 1) * (link[0] + size * link[1])


def received(exchange: str, ranks: int, rows: int) -> float:
    """Bytes that a rank receives, by the table of decision 33."""
    batch, share = ranks * rows, (ranks - 1) / ranks
    return 4 * share * {
        costs.ALLREDUCE: 2 * INPUTS * OUTPUTS,
        costs.FACTORS: batch * (INPUTS + OUTPUTS),
        costs.SHARED_MEMORY: batch * INPUTS / ranks + batch * OUTPUTS,
    }[exchange]  # fmt: skip


def step(exchange: str, ranks: int, rows: int, fp16: bool = False, link=LINK) -> float:
    """Seconds of a step of so many nodes of one process, with so many rows each.

    What is known at the end of a step waits for one cycle of Horovod together. The nodes have no
    memory in common, so what would be exchanged there is summed.
    """
    alone = FIXED + PER_ROW * rows - UPDATE
    if ranks == 1:
        return alone + UPDATE
    saved = received(costs.ALLREDUCE, ranks, rows) - received(exchange, ranks, rows)
    if exchange == costs.SHARED_MEMORY or saved <= 2**18:
        exchange = costs.ALLREDUCE
    number = 2 if fp16 else 4
    summed = OTHERS * number
    x, d = rows * INPUTS * 4, rows * OUTPUTS * 4
    cast = OTHERS * 2 * 6 / BYTES_PER_SECOND * fp16
    cast_x = rows * INPUTS * 2 * 6 / BYTES_PER_SECOND * fp16
    update = UPDATE
    if exchange == costs.ALLREDUCE:
        summed += INPUTS * OUTPUTS * number
        cast += INPUTS * OUTPUTS * 2 * 6 / BYTES_PER_SECOND * fp16
        layer = 0.0
    else:
        layer = allgather(ranks, x * number / 4 + d, link) + cast_x - MEAN_WAIT
        update += 2 * rows * (ranks - 1) * INPUTS * OUTPUTS / OPERATIONS_PER_SECOND
    return alone + layer + allreduce(ranks, summed, link) + cast + update


@pytest.mark.parametrize("scaling", [STRONG, WEAK, UNSHARDED])
@pytest.mark.parametrize("fp16", [False, True])
def test_steps_are_those_of_the_closed_forms(scaling, fp16):
    rows = 256 if scaling == STRONG else 32
    names = [name + "+fp16" * fp16 for name in AT_THE_END]
    found = of(rows={scaling: rows}, exchanges=names)
    assert len(found) == len(names) * 7
    for row in found.itertuples():
        of_rank = rows // row.ranks if scaling == STRONG else rows
        expected = step(row.exchange.split("+")[0], row.ranks, of_rank, fp16)
        assert row.step_seconds == pytest.approx(expected, rel=1e-6)
        counted = rows * (row.ranks if scaling == WEAK else 1)
        assert row.rows_per_second == pytest.approx(counted / expected, rel=1e-6)
        speedup = counted / expected / (rows / step(costs.ALLREDUCE, 1, rows))
        assert row.speedup == pytest.approx(speedup, rel=1e-6)
        assert row.efficiency == pytest.approx(speedup / row.ranks, rel=1e-6)
        assert row.rows == (rows if scaling == STRONG else rows * row.ranks)


def test_one_rank_takes_the_calibrated_step_in_every_series():
    found = of(networks=["native", "10gbit"], rows={STRONG: 64, WEAK: 32})
    one = found[found["ranks"] == 1]
    assert len(one) == 2 * 2 * len(scale.predictable_exchanges(None))
    assert list(one["step_seconds"]) == pytest.approx(FIXED + PER_ROW * one["rows"])
    assert (one["speedup"] == 1).all() and (one["efficiency"] == 1).all()
    assert not one["pays"].any() and one[["gain", "best_exchange", "used_exchange"]].isna().all(
        None
    )


def test_without_a_link_to_wait_for_only_computing_and_overheads_are_left():
    """Messages still wait for Horovod's cycle, and factors are still multiplied."""
    nothing = (0.0, 1e-18)
    found = of(parse(machine(link=nothing)))
    messages = {costs.ALLREDUCE: 1, costs.FACTORS: 2}
    together = {costs.FACTORS: 1}
    for row in found[found["ranks"] > 1].itertuples():
        update = UPDATE
        if row.used_exchange == costs.FACTORS:
            update += 64 * (row.ranks - 1) * INPUTS * OUTPUTS / OPERATIONS_PER_SECOND
        expected = FIXED + 32 * PER_ROW - UPDATE + update + messages[row.used_exchange] * WAIT
        expected -= together.get(row.used_exchange, 0) * MEAN_WAIT
        assert row.step_seconds == pytest.approx(expected, rel=1e-6)


def test_exchanges_that_save_too_few_bytes_are_replaced_by_sums():
    found = of().set_index(["exchange", "ranks"])
    # 2 · 4000 · 128 = rows · 4128 where rows are 248.
    assert found.loc[(costs.FACTORS, 4), "used_exchange"] == costs.FACTORS
    assert found.loc[(costs.FACTORS, 8), "used_exchange"] == costs.ALLREDUCE
    assert_same_steps(found.loc[(costs.FACTORS, 8)], found.loc[(costs.ALLREDUCE, 8)])


def test_nodes_that_share_no_memory_sum_instead():
    layouts = [Layout(1, 2), Layout(2, 1), Layout(2, 2)]
    found = of(layouts=layouts, exchanges=[costs.ALLREDUCE, costs.SHARED_MEMORY])
    found = found.set_index(["exchange", "layout"])
    assert found.loc[(costs.SHARED_MEMORY, "1x2"), "used_exchange"] == costs.SHARED_MEMORY
    for layout in ("2x1", "2x2"):
        assert_same_steps(
            *(found.loc[(name, layout)] for name in (costs.SHARED_MEMORY, costs.ALLREDUCE))
        )
        assert found.loc[(costs.SHARED_MEMORY, layout), "used_exchange"] == costs.ALLREDUCE


def assert_same_steps(one: pd.Series, other: pd.Series) -> None:
    same = ["step_seconds", "speedup", "exchange_seconds"]
    pd.testing.assert_series_equal(
        one[same].astype(float), other[same].astype(float), check_names=False
    )


def test_the_best_exchange_is_the_one_with_the_least_step():
    found = of(SLOW, networks=["native", "slow"], rows={STRONG: 64, WEAK: 32})
    several = found[found["ranks"] > 1]
    for (_, _, layout), group in several.groupby(["scaling", "network", "layout"]):
        ranks = Layout.parse(layout).ranks
        steps = {row.exchange: row.step_seconds for row in group.itertuples()}
        assert set(group["best_exchange"]) == {min(steps, key=steps.get)}, ranks
    assert several["best_exchange"].nunique() > 1


@settings(max_examples=8)
@given(
    st.tuples(st.floats(1e7, 1e11), st.floats(1e7, 1e11)),
    st.sampled_from(costs.EXCHANGES),
    st.sampled_from([STRONG, WEAK]),
)
def test_a_faster_network_never_makes_a_step_longer(rates, exchange, scaling):
    networks = {
        name: Network(name, rate, 1e-4, "")
        for name, rate in zip(("low", "high"), sorted(rates), strict=True)
    }
    calibration = replace(EXACT, networks=EXACT.networks | networks)
    layouts = [Layout(2, 1), Layout(3, 2), Layout(16, 1)]
    found = of(calibration, {scaling: 64}, layouts=layouts, networks=networks,
               exchanges=[exchange], draws=1)  # fmt: skip
    low, high = (
        found.loc[found["network"] == name, "step_seconds"].to_numpy() for name in networks
    )
    assert (high <= low * (1 + 1e-12)).all()


# The end of scaling.


def test_more_ranks_pay_as_long_as_they_are_faster_than_all_layouts_of_fewer():
    layouts = [Layout.parse(each) for each in ("1x2", "2x1", "1x4", "2x2", "4x1", "8x1", "64x1")]
    found = of(SLOW, {STRONG: 64, WEAK: 32, UNSHARDED: 32}, layouts=layouts,
               networks=["native", "slow"])  # fmt: skip
    for _, series in found.groupby(scale.SERIES):
        speeds = list(zip(series["ranks"], series["rows_per_second"], series["pays"], strict=True))
        for ranks, speed, pays in speeds:
            fewer = [other for others, other, _ in speeds if others < ranks]
            assert pays == (bool(fewer) and speed > max(fewer, default=0) * (1 + 1e-9))
    ends = scale.limits(found)
    assert len(ends) == 3 * 2 * len(scale.predictable_exchanges(None))
    for row in ends.itertuples():
        same = (found[scale.SERIES] == [getattr(row, key) for key in scale.SERIES]).all(axis=1)
        paying = found[same & found["pays"]]
        assert row.ranks == (paying["ranks"].max() if len(paying) else 1)
    assert (ends.loc[ends["scaling"] == UNSHARDED, "ranks"] == 1).all()


def test_more_ranks_pay_on_a_fast_network_and_not_on_a_slow_one():
    fast = parse(machine(link=(LINK[0], 1e-9)))
    calibration = replace(fast, networks=dict(fast.networks) | {"slow": SLOW.networks["slow"]})
    found = of(calibration, {STRONG: 64}, networks=["native", "slow"], exchanges=["allreduce"])
    native, slow = scale.limits(found).itertuples()
    assert native.ranks > 1 and native.speedup > 1
    assert (slow.ranks, slow.speedup, slow.pays) == (1, 1, False)


def test_what_is_not_certain_does_not_pay():
    """The interval of the gain covers the spread of the calibration: with much of it, less pays."""
    noisy = of(parse(machine(0.6)), {STRONG: 64}, layouts=[Layout(2, 1)], draws=60)
    for row in noisy[noisy["ranks"] == 2].itertuples():
        assert row.pays == (row.gain_low > 1)
        assert row.gain_low < row.gain < row.gain_high
        assert row.step_low_seconds < row.step_seconds < row.step_high_seconds


def test_processes_of_one_node_use_no_network_and_lose_by_each_other():
    found = of(SLOW, layouts=[Layout(1, 2)], networks=["native", "slow"], exchanges=costs.EXCHANGES)
    of_node = found[found["layout"] == "1x2"]
    by_network = of_node.groupby("exchange")["step_seconds"].nunique()
    assert (by_network == 1).all()
    computing = (FIXED + 32 * PER_ROW - UPDATE) * (BOTH - 1)
    assert list(of_node["contention_seconds"]) == pytest.approx([computing] * len(of_node))
    summed = of_node[of_node["exchange"] == costs.ALLREDUCE].iloc[0]
    size = 4 * (INPUTS * OUTPUTS + OTHERS)
    assert summed["exchange_seconds"] == pytest.approx(allreduce(2, size, MEMORY), rel=1e-6)
    copied = of_node[of_node["exchange"] == costs.SHARED_MEMORY].iloc[0]
    # A rank reads and writes its factors, and reads those of 64 rows for its half of the kernel.
    # It sums the other gradients there too.
    numbers = 2 * 32 * (INPUTS + OUTPUTS) + 64 * (INPUTS / 2 + OUTPUTS) + (2 + 2) * OTHERS
    exchanged = 4 * numbers / BYTES_PER_SECOND
    assert copied["exchange_seconds"] == pytest.approx(exchanged, rel=1e-6)
    share = (INPUTS * OUTPUTS / 2 + OTHERS) / (INPUTS * OUTPUTS + OTHERS)
    assert copied["update_seconds"] == pytest.approx(share * UPDATE * BOTH, rel=1e-6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--work", "foo"], "work: 'foo': was not calibrated. Remedy: choose one of cnn"),
        (["--layouts", "0x1"], "argument --layouts: '0x1' is not of the form NODESxPROCS"),
    ],
)
def test_wrong_arguments_have_one_message(tmp_path, changed, message):
    file = tmp_path / "calibration.json"
    write_json(file, machine())
    done = subprocess.run(
        [sys.executable, "-m", "scripts.scale", str(file), "--strong", "64", *changed],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr


def test_progress_is_shown_of_every_series():
    shown = []

    def progress(series):
        for each in series:
            shown.append(each)
            yield each

    exchanges = [costs.ALLREDUCE, costs.FACTORS]
    table = of(layouts=[Layout(2, 1)], exchanges=exchanges, progress=progress)
    assert len(shown) == len(table.groupby(scale.SERIES)) == len(exchanges)


def test_fewer_rows_than_ranks_cannot_be_divided():
    with pytest.raises(InputError, match="cannot be divided among 64 ranks"):
        of(rows={STRONG: 63})
    assert len(of(rows={WEAK: 1}, exchanges=[costs.ALLREDUCE], draws=1)) == 7


def test_what_was_not_calibrated_is_named():
    found = of(networks=["native", "10gbit"], exchanges=[costs.FACTORS], layouts=[Layout(2, 1)])
    native, other = (found[found["layout"] == "2x1"].iloc[n] for n in range(2))
    assert native["network_calibrated"] and not other["network_calibrated"]
    assert "10gbit" not in native["extrapolated"]
    assert "10gbit was not calibrated" in other["extrapolated"]


# Names of exchanges.


@pytest.mark.parametrize(
    ("name", "expected", "knobs"),
    [
        ("allreduce", Exchange(), {}),
        ("factors+fp16", Exchange(dense=costs.FACTORS, fp16=True), {"compression": "fp16"}),
        ("shared-memory", Exchange(dense="shared-memory"), {}),
        (
            "factors+sparse",
            Exchange(dense="factors", sparse_as_dense=False),
            {"sparse_as_dense": False},
        ),
        (
            "allreduce+fp16+sparse+accumulation4",
            Exchange(fp16=True, sparse_as_dense=False, accumulation=4),
            {"compression": "fp16", "sparse_as_dense": False, "accumulation": 4},
        ),
    ],
)
def test_an_exchange_is_named_by_its_knobs(name, expected, knobs):
    assert scale.exchange_of(name) == expected
    knobs = KNOBS | {"dense_exchange": name.split("+")[0]} | knobs
    assert scale.exchange_name(knobs) == name


@pytest.mark.parametrize("name", ["", "auto", "factors+", "factors+fp8", "allreduce+accumulation0"])
def test_an_unknown_exchange_is_refused(name):
    known = ", ".join(costs.EXCHANGES)
    with pytest.raises(InputError, match=rf"choose one of {known}, then \+fp16"):
        scale.exchange_of(name)


# Beside what was measured.


def runs(folder: Path) -> list[Path]:
    """Runs of 32 rows a rank: one process, sums and factors, and some that do not count."""
    experiment = FakeExperiment(folder)
    experiment.add("single", "1x1", 2.0, 1).add("horovod-gloo", "1x2", 1.5, 2)
    experiment.add("horovod-gloo", "1x2", 1.2, 1, variant="factors")
    experiment.add("horovod-gloo", "1x2", 9.0, 1, variant="unsharded")
    changes = {"factors": {"dense_exchange": "factors"}, "unsharded": {"shard": False}}
    for path in experiment.runs:
        run = read_json(path)
        write_json(path, run | {"knobs": run["knobs"] | changes.get(run["variant"], {})})
    experiment.add("horovod-mpi", "1x2", 1.0, 1).add("horovod-gloo", "1x2", 1.0, 1, cores=2)
    experiment.add("horovod-gloo", "1x4", 1.0, 1, {1: ("failed", "rank 1 was ended")})
    return experiment.runs


def test_measured_steps_stand_beside_the_predicted_ones(tmp_path):
    files = runs(tmp_path)
    found = scale.measured(files, GLOO)
    # The last configuration of `1x2` has the folder of the first, with two cores.
    table = of(rows={WEAK: 32, UNSHARDED: 32}, layouts=[Layout(1, 2)],
               exchanges=[costs.ALLREDUCE, costs.FACTORS])  # fmt: skip
    both = scale.beside(table, found)
    assert set(both["layout"]) == {"1x1", "1x2"}
    for row in both.itertuples():
        assert row.measured_to_predicted == pytest.approx(
            row.measured_step_seconds / row.step_seconds
        )
    expected = {}
    for path in files:
        run = read_json(path)
        steps = sum(each["steps"] for each in run["epochs"])
        if steps:
            seconds = sum(each["train_seconds"] for each in run["epochs"]) / steps
            expected[run["variant"], run["strategy"], run["knobs"]["cores_per_process"]] = seconds
    [factors] = both[(both["exchange"] == costs.FACTORS) & (both["ranks"] == 2)].itertuples()
    assert factors.scaling == WEAK
    assert factors.measured_step_seconds == expected["factors", "horovod-gloo", 1]
    assert factors.measured_rows_per_second == pytest.approx(64 / factors.measured_step_seconds)
    [copied] = both[(both["scaling"] == UNSHARDED) & (both["ranks"] == 2)].itertuples()
    assert copied.measured_rows_per_second == pytest.approx(32 / copied.measured_step_seconds)
    assert copied.measured_step_seconds == expected["unsharded", "horovod-gloo", 1]
    assert not (both["measured_step_seconds"] == expected["tuned", "horovod-mpi", 1]).any()


def test_without_measurements_nothing_stands_beside():
    both = scale.beside(of(layouts=[Layout(2, 1)]), scale.measured([]))
    assert both.empty and "measured_to_predicted" in both


# What is printed and drawn.


def test_lines_name_speedups_ends_and_what_is_extrapolated(tmp_path):
    table = of(SLOW, {STRONG: 64, WEAK: 32}, networks=["native", "slow", "1gbit"])
    text = "\n".join(report.lines(table, scale.beside(table, scale.measured([]))))
    assert "strong scaling, 64 rows in every step, native: speed-up over one rank" in text
    assert "weak scaling, 32 rows of each rank, 1gbit (extrapolated)" in text
    assert "Measured steps" not in text
    row = table[(table["exchange"] == costs.FACTORS) & (table["ranks"] == 4)].iloc[0]
    assert f"{row['speedup']:.2f} ({row['speedup_low']:.2f}-{row['speedup_high']:.2f})" in text
    assert "* summed by allreduce" in text
    for row in scale.limits(table).itertuples():
        end = f"pays up to {row.layout}, {row.speedup:.2f}" if row.pays else "does not pay"
        assert any(line.startswith(f"{row.exchange}: ") and end in line
                   for line in text.split("\n"))  # fmt: skip
    assert "  1gbit was not calibrated" in text


def test_the_figure_has_a_panel_for_each_scaling_and_network_and_measured_points(tmp_path):
    table = of(SLOW, {STRONG: 64, WEAK: 32}, networks=["native", "1gbit"],
               layouts=[Layout(1, 2), Layout(2, 1), Layout(64, 1)])  # fmt: skip
    both = scale.beside(table, scale.measured(runs(tmp_path), GLOO))
    with common.style():
        drawn = report.draw(table, both, "Predicted speed of cnn")
        boxes = text_boxes.drawn_texts(drawn)
    assert not text_boxes.overlaps(boxes)
    assert not text_boxes.cut_off(drawn, boxes)
    words = "\n".join(box.text for box in boxes)
    for name in (*scale.predictable_exchanges(None), "measured", "64x1", "rows per second"):
        assert name in words
    titles = [axes.get_title().replace("\n", " ") for axes in drawn.axes]
    assert titles == [
        "strong scaling, native", "strong scaling, 1gbit (extrapolated)",
        "weak scaling, native", "weak scaling, 1gbit (extrapolated)",
    ]  # fmt: skip
    of_weak = both[(both["scaling"] == WEAK) & (both["network"] == "native")]
    crosses = [line for line in drawn.axes[2].lines if line.get_label() == "measured"]
    assert sorted(crosses[0].get_ydata()) == sorted(of_weak["measured_rows_per_second"])


# The calibrations of the documentation.


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "calibrations").glob("*.json")))
def test_a_committed_calibration_gives_its_measured_steps_and_predicts_others(path):
    calibration = read(path)
    for name, work in calibration.works.items():
        cores, rows = work.steps[0].cores, work.steps[0].rows
        found = simulated(calibration, name, {WEAK: rows}, [Layout(2, 1)], ["1gbit"], cores=cores)
        one = found[found["ranks"] == 1].iloc[0]
        assert one["step_low_seconds"] < work.steps[0].means.mean() < one["step_high_seconds"]
        two = found[found["ranks"] == 2]
        # It does not have the bytes of the data, so no rank can compute from them.
        used = two["exchange"].replace(costs.RECOMPUTE, costs.ALLREDUCE)
        assert (two["used_exchange"] == used).all()
        assert sum(each.numbers for each in work.gradients) == 2_067_181


# The command.


def command(*arguments: object, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "scale.py"), *map(str, arguments)],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_the_command_writes_the_table_and_the_figure(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(machine(0.05)))
    said = command(
        path, "--weak", 32, "--layouts", "2x1", "4x1", "--networks", "native", "1gbit",
        "--exchanges", "allreduce", "factors", "--draws", 20,
        "--csv", tmp_path / "scale.csv", "--figure", tmp_path / "scale.svg",
    )  # fmt: skip
    expected = of(parse(machine(0.05)), layouts=[Layout(2, 1), Layout(4, 1)], library="mpi",
                  networks=["native", "1gbit"], exchanges=["allreduce", "factors"],
                  draws=20)  # fmt: skip
    written = pd.read_csv(tmp_path / "scale.csv")
    assert list(written.columns) == list(expected.columns)
    np.testing.assert_allclose(written["step_seconds"], expected["step_seconds"])
    assert "factors" in said and "weak scaling, 32 rows of each rank, native" in said
    assert "Predicted speed of cnn" in (tmp_path / "scale.svg").read_text()


def test_the_command_refuses_what_it_cannot_predict(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(machine()))
    assert "--strong, --weak or --unsharded is needed" in command(path, code=2)
    assert "choose one of allreduce" in command(path, "--weak", 8, "--exchanges", "x", code=2)
    changed = machine()
    changed["works"]["other"] = changed["works"]["cnn"]
    path.write_text(json.dumps(changed))
    assert "--work is needed, one of cnn, other" in command(path, "--weak", 8, code=2)
