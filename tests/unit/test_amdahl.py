"""Laws of scaling, fitted to known points; and their table, against SciPy and hand counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import FakeExperiment, write_json
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import tabled

from escala.analysis import laws
from escala.core.files import read_json
from escala.report.findings import section_findings
from escala.report.findings.context import Report
from escala.report.tables import amdahl

pytestmark = pytest.mark.usefixtures("few_resamples")


def test_cruz_varonas_two_gpus():
    """Speed-ups of 1.79 and 1.97: (2 / 1.79 − 1) and (2 / 1.97 − 1) are not divided."""
    found = [amdahl.karp_flatt(gained, 2) for gained in (1.79, 1.97)]
    assert found == pytest.approx([2 / 1.79 - 1, 2 / 1.97 - 1])
    assert amdahl.karp_flatt(1.2, 1) is None
    assert amdahl.karp_flatt(1 / laws.ratio(8, 0.3), 8) == pytest.approx(0.3)


def rewritten(paths: list[Path], change: Callable[[dict], object]) -> None:
    """Change run.json files in place, and what their session folders keep of them."""
    for path in paths:
        run = read_json(path)
        change(run)
        write_json(path, run)
        write_json(path.parent / "sessions" / f"{run['session']}.json", run)


@pytest.fixture
def experiment(tmp_path) -> FakeExperiment:
    """One, two and four processes, whose seconds are simple: 6 of validation, 3 of evaluation."""
    found = FakeExperiment(tmp_path).add_dataset()
    for layout, seconds in (("1x1", 12.0), ("1x2", 7.0), ("1x4", 4.0)):
        strategy = "single" if layout == "1x1" else "horovod-mpi"
        found.add(strategy, layout, seconds, repeats=1, rows=128)

        def simplify(run: dict, seconds: float = seconds) -> None:
            for epoch in run["epochs"]:
                epoch |= {"train_seconds": seconds, "validation_seconds": 2.0}
            parts = {"train": 3 * seconds, "evaluation": 3.0, "averaging": 0.0, "save": 1.0}
            run["seconds"] |= parts
            run["ranks"]["evaluating"] = 1

        rewritten(found.runs[-1:], simplify)
    return found


def table(experiment: FakeExperiment) -> pd.DataFrame:
    return tabled(experiment, only=["amdahl"])["amdahl"].set_index("layout")


def test_a_run_is_trained_validated_evaluated_and_saved(experiment):
    found = table(experiment)
    # 36 + 6 + 3 + 1 seconds of one process, 21 or 12 of training, and the rest as it is.
    assert found["speedup"].to_dict() == pytest.approx({"1x2": 46 / 31, "1x4": 46 / 22})
    assert found["train_speedup"].to_dict() == pytest.approx({"1x2": 12 / 7, "1x4": 3.0})
    assert found["undivided_fraction"].to_numpy() == pytest.approx(10 / 46)
    possible = {"1x2": 46 / (10 + 18), "1x4": 46 / (10 + 9)}
    assert found["possible_speedup"].to_dict() == pytest.approx(possible)
    serial = {n: (ratio - 1 / n) / (1 - 1 / n) for n, ratio in ((2, 31 / 46), (4, 22 / 46))}
    assert found["serial_fraction"].tolist() == pytest.approx([serial[2], serial[4]])


def test_evaluation_that_ranks_divide_is_no_part_that_stays(experiment):
    rewritten(experiment.runs[1:2], lambda run: run["ranks"].update(evaluating=2))
    found = table(experiment)
    assert found.loc["1x2", "undivided_fraction"] == pytest.approx(1 / 46)
    assert found.loc["1x4", "undivided_fraction"] == pytest.approx(10 / 46)


def test_what_a_record_lacks_is_missing_and_not_0(experiment):
    rewritten(experiment.runs[1:2], lambda run: run["ranks"].pop("evaluating"))
    rewritten(experiment.runs[2:], lambda run: run["seconds"].update(averaging=None))
    found = table(experiment)
    assert pd.isna(found.loc["1x2", "undivided_fraction"])
    assert found.loc["1x2", "serial_fraction"] > 0
    four_ranks = found.loc["1x4"]
    assert four_ranks[["speedup", "serial_fraction", "undivided_fraction"]].isna().all()
    assert (four_ranks["matches"], four_ranks["kind"]) == (0, "unavailable")
    assert "a part of a run has no time" in four_ranks["reason"]
    assert four_ranks["train_speedup"] == pytest.approx(3.0)


def scaled(tmp_path: Path, law: Callable[[int], float], ranks=(1, 2, 4)) -> FakeExperiment:
    """Return an experiment of some numbers of ranks, and of one rank with two and four cores."""
    found = FakeExperiment(tmp_path).add_dataset()
    for n in ranks:
        found.add("single" if n == 1 else "horovod-mpi", f"1x{n}", 12 * law(n), rows=128)
    for cores in (2, 4):
        expected_seconds = 12 * laws.ratio(cores, 0.3)
        found.add("single", "1x1", expected_seconds, variant=f"cores{cores}", rows=128, cores=cores)
    rewritten(found.runs, lambda run: run["ranks"].update(oversubscribed=False))
    return found


def extrapolated(frames: dict[str, pd.DataFrame]) -> list[str]:
    return [
        each.text
        for each in section_findings("sure", Report(frames, "demo"))
        if each.table == "amdahl"
    ]


def test_laws_are_fitted_over_ranks_and_over_threads(tmp_path):
    one = {"strategy": "single", "layout": "1x1", "variant": "tuned"}
    experiment = scaled(tmp_path, lambda n: laws.ratio(n, 0.1, 0.03))
    found = tabled(experiment, references=(one,))["amdahl"]
    assert (found["law_points"] == 3).all()
    for over, contention, coherency in (("ranks", 0.1, 0.03), ("threads", 0.3, 0.0)):
        [row, same] = found[found["law_over"] == over].to_dict("records")
        assert row["law_kind"] == "estimated" and row["extrapolated_times"] == 8
        assert row["contention_low"] <= contention <= row["contention_high"]
        assert row["coherency_low"] <= coherency <= row["coherency_high"]
        truth = 1 / laws.ratio(8, contention, coherency)
        assert row["extrapolated_speedup_low"] < truth < row["extrapolated_speedup_high"]
        assert same["extrapolated_speedup"] == row["extrapolated_speedup"]
    # Processes that only wait for each other are fastest in a limited number.
    assert found.loc[found["law_over"] == "ranks", "fastest_times"].notna().all()


@pytest.mark.parametrize(
    ("strategy", "variant", "said"),
    [("horovod-mpi", "fast", "another variant"), ("ddp-gloo", "tuned", "another engine")],
)
def test_a_ratio_to_other_work_is_not_extrapolated_over_ranks(tmp_path, strategy, variant, said):
    experiment = scaled(tmp_path, lambda n: laws.ratio(n, 0.1))
    for n in (2, 4):
        experiment.add(strategy, f"1x{n}", 12 * 0.1 / n, variant=variant, rows=128)
    one = {"strategy": "single", "layout": "1x1", "variant": "tuned"}
    found = tabled(experiment, references=(one,))["amdahl"]
    names = ["strategy", "variant"]
    other = found.set_index(names).loc[(strategy, variant)]
    assert (other["law_kind"] == "unavailable").all() and (other["speedup"] > 5).all()
    assert other["law_reason"].str.contains(said).all()
    assert (found.set_index(names).loc[("horovod-mpi", "tuned"), "law_kind"] == "estimated").all()


@pytest.mark.parametrize("ranks", [(1, 2), (1, 2, 4)])
def test_one_number_of_ranks_is_no_law_and_no_finding(tmp_path, ranks):
    frames = tabled(scaled(tmp_path, lambda n: laws.ratio(n, 0.2), ranks))
    row = frames["amdahl"].set_index("layout").loc["1x2"]
    parameters = row[["amdahl_fraction", "contention", "extrapolated_speedup"]]
    expected = len(ranks) > 2
    assert parameters.notna().all() if expected else parameters.isna().all()
    assert (row["law_kind"] == "estimated") == expected == pd.isna(row["law_reason"])
    assert any("8 processes" in text for text in extrapolated(frames)) == expected
    assert not any("4 processes" in text for text in extrapolated(frames))


def test_ranks_that_share_cores_are_no_points_of_a_law(tmp_path):
    experiment = scaled(tmp_path, lambda n: laws.ratio(n, 0.1))
    four = [path for path in experiment.runs if "/1x4/" in str(path)]
    rewritten(four, lambda run: run["ranks"].update(oversubscribed=True))
    assert (table(experiment).loc[["1x2", "1x4"], "law_kind"] == "unavailable").all()
    two = [path for path in experiment.runs if "/1x2/" in str(path)]
    rewritten(two, lambda run: run["ranks"].update(oversubscribed=True))
    row = table(experiment).loc["1x2"]
    assert row["law_reason"] == "nothing with more ranks than the reference has a ratio"


# The laws.


@settings(max_examples=30)
@given(st.floats(0, 0.9), st.floats(0, 0.2), st.sampled_from([(2, 4), (2, 3, 8), (2, 4, 8, 16)]))
def test_parameters_of_the_universal_law_are_recovered(contention, coherency, times):
    point = [laws.ratio(n, contention, coherency) for n in times]
    found = laws.fit(times, [point] * 2)
    assert found.contention.estimate == pytest.approx(contention, abs=1e-6)
    assert found.coherency.estimate == pytest.approx(coherency, abs=1e-6)
    expected = 1 / laws.ratio(32, contention, coherency)
    assert found.speedup(32).estimate == pytest.approx(expected, rel=1e-4)
    assert found.speedup(32).low is None


def test_a_law_never_promises_more_than_as_many_times_the_speed():
    """A speed-up above n is fitted by nothing undivided, not by less than nothing."""
    found = laws.fit((2, 4), [[0.45, 0.2], [0.46, 0.22], [0.44, 0.21]]).speedup(8)
    assert found.estimate <= found.high <= 8


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """Of 60 experiments of five repeats with noise of 3 %, all in one session."""
    rng = np.random.default_rng(7)
    times, truth = (2, 4), 1 / laws.ratio(8, 0.2, 0.02)
    covered = 0
    for _ in range(60):
        noise = np.exp(0.03 * rng.standard_normal((5, 2)))
        found = laws.fit(times, [laws.ratio(n, 0.2, 0.02) for n in times] * noise)
        low, high = found.speedup(8)[1:]
        covered += low <= truth <= high
    assert covered >= 53


def test_slower_with_more_has_a_fraction_above_one_and_one_process_as_the_fastest():
    found = laws.fit((2, 4), [[1.3, 1.5]] * 3)
    assert found.contention.estimate > 1
    assert found.fastest.estimate == 1
