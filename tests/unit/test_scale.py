"""Simulated steps are those of the cost model, and the ends of scaling those of all predictions."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_cost_model import LINK, content

from escala.analysis import scale
from escala.analysis.cost_model.calibration import VALIDATED_RANKS
from escala.analysis.cost_model.messages import Exchange
from escala.analysis.cost_model.networks import Network
from escala.analysis.cost_model.predict import Setup, predict
from escala.analysis.cost_model.reading import parse, read
from escala.analysis.scale import STRONG, UNSHARDED, WEAK, simulated
from escala.core.errors import InputError
from escala.engines import costs
from escala.runtime.layout import Layout

ROOT = Path(__file__).resolve().parents[2]
EXACT = parse(content())
SLOW = replace(EXACT, networks=dict(EXACT.networks) | {"slow": Network("slow", 2e8, LINK[0], "")})
LAYOUTS = [Layout.parse(each) for each in ("1x2", "2x1", "1x4", "2x2", "8x1")]


def of(calibration=EXACT, rows=None, **options) -> pd.DataFrame:
    options = {"networks": ["native"], "library": "gloo", "draws": 2, "layouts": LAYOUTS} | options
    return simulated(calibration, "cnn", rows or {WEAK: 32}, **options)


@pytest.mark.parametrize("scaling", [STRONG, WEAK, UNSHARDED])
def test_a_step_is_that_of_its_layout_rows_and_exchange(scaling):
    found = of(rows={scaling: 64}, exchanges=["factors+fp16"])
    one = predict(EXACT, Setup("cnn", Layout(1, 1), 64), draws=2).steps[0]
    exchange = Exchange(costs.FACTORS, fp16=True)
    for row in found.itertuples():
        layout = Layout.parse(row.layout)
        rows = 64 * (1 if scaling == STRONG else layout.ranks)
        step = predict(EXACT, Setup("cnn", layout, rows, "gloo", exchange=exchange), draws=2).steps[
            0
        ]
        counted = rows / (layout.ranks if scaling == UNSHARDED else 1)
        speedup = counted / step / (64 / one)
        assert [
            row.rows,
            row.step_seconds,
            row.rows_per_second,
            row.speedup,
            row.efficiency,
        ] == pytest.approx([rows, step, counted / step, speedup, speedup / layout.ranks])


def test_exchanges_that_save_too_few_bytes_are_replaced_by_sums():
    found = of(exchanges=["allreduce", "factors", "shared-memory"])
    found = found.set_index(["exchange", "layout"])
    # 2 · 4000 · 128 = rows · 4128 where rows are 248, and nodes have no memory in common.
    for place, used in {
        (costs.FACTORS, "1x4"): costs.FACTORS,
        (costs.FACTORS, "8x1"): costs.ALLREDUCE,
        (costs.SHARED_MEMORY, "1x2"): costs.SHARED_MEMORY,
        (costs.SHARED_MEMORY, "2x2"): costs.ALLREDUCE,
    }.items():
        assert found.loc[place, "used_exchange"] == used
        if used == costs.ALLREDUCE:
            step = found.loc[(costs.ALLREDUCE, place[1]), "step_seconds"]
            assert found.loc[place, "step_seconds"] == step


def test_more_ranks_pay_as_long_as_they_are_faster_than_all_layouts_of_fewer():
    rows = {STRONG: 64, WEAK: 32, UNSHARDED: 32}
    found = of(SLOW, rows, networks=["native", "slow"])
    for _, series in found.groupby(scale.SERIES):
        speeds = list(zip(series["ranks"], series["rows_per_second"], series["pays"], strict=True))
        for ranks, speed, pays in speeds:
            if ranks > VALIDATED_RANKS:
                assert pd.isna(pays)
                continue
            fewer = [other for others, other, _ in speeds if others < ranks]
            assert pays == (bool(fewer) and speed > max(fewer, default=0) * (1 + 1e-9))
    ends = scale.limits(found)
    assert len(ends) == 3 * 2 * 2
    assert (ends.loc[ends["scaling"] == UNSHARDED, "ranks"] == 1).all()


def test_what_is_not_certain_does_not_pay():
    """The interval of the gain covers the spread of the calibration: with much of it, less pays."""
    noisy = of(parse(content(0.6)), {STRONG: 64}, layouts=[Layout(2, 1)], draws=60)
    for row in noisy[noisy["ranks"] == 2].itertuples():
        assert row.pays == (row.gain_low > 1)
        assert row.gain_low < row.gain < row.gain_high


def test_an_exchange_is_named_by_its_knobs():
    found = scale.exchange_of("allreduce+fp16+sparse+accumulation4")
    assert found == Exchange("allreduce", True, False, 4)


@pytest.mark.parametrize("name", ["auto", "factors+fp8", "allreduce+accumulation0"])
def test_an_unknown_exchange_or_too_few_rows_are_refused(name):
    with pytest.raises(InputError, match=r"choose one of allreduce, .*then \+fp16"):
        scale.exchange_of(name)
    with pytest.raises(InputError, match="cannot be divided among 8 ranks"):
        of(rows={STRONG: 7})


def test_lines_name_speedups_ends_and_what_is_extrapolated():
    table = of(SLOW, {STRONG: 64, WEAK: 32}, networks=["native", "slow", "1gbit"])
    text = "\n".join(scale.lines(table))
    row, two = (
        table[(table["exchange"] == costs.FACTORS) & (table["ranks"] == ranks)].iloc[0]
        for ranks in (4, 2)
    )
    assert pd.isna(row["speedup_low"]) and two["speedup_low"] <= two["speedup"]
    for words in (
        "strong scaling, 64 rows of one rank, native:",
        "weak scaling, 32 rows of one rank, 1gbit (extrapolated):",
        f" {row['speedup']:.2f} ",
        f"{two['speedup']:.2f} ({two['speedup_low']:.2f}-{two['speedup_high']:.2f})",
        "* summed by allreduce",
        "  1gbit was not calibrated",
    ):
        assert words in text
    for row in scale.limits(table).itertuples():
        end = f"pays up to {row.layout}, {row.speedup:.2f}" if row.pays else "no layout of up to 2"
        assert f"{row.exchange}: " in text and end in text


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "calibrations").glob("*.json")))
def test_a_committed_calibration_gives_its_measured_steps_and_predicts_others(path):
    calibration = read(path)
    for name, work in calibration.works.items():
        cores, rows = work.steps[0].cores, work.steps[0].rows
        found = simulated(calibration, name, {WEAK: rows}, [Layout(2, 1)], ["1gbit"], cores=cores)
        one = found[found["ranks"] == 1].iloc[0]
        assert one["step_low_seconds"] < work.steps[0].means.mean() < one["step_high_seconds"]
        assert sum(each.numbers for each in work.gradients) == 2_067_181


def test_the_command_writes_the_table(tmp_path):
    path, written = tmp_path / "calibration.json", tmp_path / "scale.csv"
    path.write_text(json.dumps(content(0.05)))

    def command(arguments: str) -> subprocess.CompletedProcess:
        words = [sys.executable, "-m", "scripts.scale", str(path), *arguments.split()]
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True)

    options = f"--weak 32 --layouts 2x1 4x1 --networks native 1gbit --draws 20 --csv {written}"
    done = command(options)
    assert done.returncode == 0, done.stderr
    assert "weak scaling, 32 rows of one rank, native" in done.stdout
    expected = of(parse(content(0.05)), layouts=[Layout(2, 1), Layout(4, 1)], library="mpi",
                  networks=["native", "1gbit"], draws=20)  # fmt: skip
    np.testing.assert_allclose(pd.read_csv(written)["step_seconds"], expected["step_seconds"])
    for wrong, message in {
        "--work foo --weak 8": "was not calibrated. Remedy: choose one of cnn",
        "": "--strong, --weak or --unsharded is needed",
    }.items():
        done = command(wrong)
        assert done.returncode == 2
        assert message in done.stderr and "Traceback" not in done.stderr
