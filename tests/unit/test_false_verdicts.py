"""The benchmark of false verdicts recovers what was simulated, and counts as probability says."""

from __future__ import annotations

import shutil

import false_verdicts
import numpy as np
import pytest
from fixtures_runs import SESSION, changed, twice
from scipy import stats

from escala.record.comparable import CONFIGURATION


def as_runs(times: np.ndarray) -> list[dict]:
    """The runs of a session, row by row; the last column is the reference again."""
    names = [*range(times.shape[1] - 1), 0]
    return [
        dict.fromkeys(CONFIGURATION, str(name)) | {"seconds": seconds}
        for row in times
        for name, seconds in zip(names, row, strict=True)
    ]


@pytest.mark.parametrize(
    "machine",
    [
        false_verdicts.Machine(0.04, 0.0, 0.0),
        false_verdicts.Machine(0.02, 0.03, 0.0),
        false_verdicts.Machine(0.03, 0.0, 0.01),
    ],
)
def test_a_variogram_recovers_noise_walk_and_trend(machine):
    random = np.random.default_rng(1)
    found = false_verdicts.machine_of(
        as_runs(false_verdicts.simulated(machine, random, 8, 3)) for _ in range(300)
    )
    assert found == pytest.approx(machine, abs=0.005)


def test_too_few_runs_are_refused():
    with pytest.raises(SystemExit, match="too few runs"):
        false_verdicts.machine_of([as_runs(np.ones((1, 3)))])


def test_without_drift_an_interval_alone_errs_as_often_as_six_coins_agree():
    """The range of six ratios leaves 1 out if all are on one side of it: 2 / 2**6."""
    machine, random = false_verdicts.Machine(0.2, 0.0, 0.0), np.random.default_rng(2)
    found = [
        false_verdicts.judged(false_verdicts.simulated(machine, random, 6, 3), 2)
        for _ in range(3000)
    ]
    alone, floored = np.mean(found, axis=0)
    assert alone == pytest.approx(2 / 2**6, abs=0.01)
    assert floored < alone


def test_the_bound_is_that_of_clopper_and_pearson():
    """The share for which so few or fewer false verdicts have a probability of 5 %."""
    bound = false_verdicts.upper_bound(31, 1000)
    assert stats.binom.cdf(31, 1000, bound) == pytest.approx(0.05)
    assert false_verdicts.upper_bound(0, 200) == pytest.approx(1 - 0.05 ** (1 / 200))


def test_real_sessions_are_judged_with_what_is_equal(tmp_path):
    """`horovod-gloo` becomes a second name of the reference, which takes 2 % less time."""
    experiment, _ = twice(tmp_path)
    others = [path for path in experiment.runs if "horovod-gloo" in path.parts]
    for path in others:
        place = path.parents[5] / "single" / "1x1" / "same" / "native" / path.parent.name
        place.mkdir(parents=True)
        path.rename(place / "run.json")
        shutil.rmtree(path.parent)
    same = sorted(tmp_path.glob("**/same/native/rep*/run.json"))
    first = [path for path in experiment.runs if "single" in path.parts]
    alike = false_verdicts.read_run(first[0])
    names = ("strategy", "layout", "knobs", "ranks", "training", "epochs")
    changed(same, **{name: alike[name] for name in names}, variant="same")
    sessions = false_verdicts.timed([experiment.folder])
    assert list(sessions) == [SESSION]
    started = [run["started"] for run in sessions[SESSION]]
    assert len(started) == 28 and started == sorted(started)
    itself, other = false_verdicts.real(SESSION, sessions[SESSION])
    assert "itself: 1.000 (0.980 to 1.030), 7 pairs" in itself[0] and itself[1:] == (False, None)
    assert "same native: 0.97" in other[0] and other[1:] == (True, False)
    # Fewer than six pairs get no verdict, and second runs without a first one none either.
    few = [run for run in sessions[SESSION] if run["repeat"] <= 5]
    judged = list(false_verdicts.real(SESSION, few))
    assert [each[1:] for each in judged] == [(None, None)] * 2
    alone = [run for run in few if run["pair"] or run["strategy"] != "single"]
    assert list(false_verdicts.real(SESSION, alone)) == []
