"""The benchmark of advice finds which advice measured times confirm, and which they refute."""

from __future__ import annotations

import json

import advice as benchmark
import pytest
from advice import AS_GOOD, NOT_COMPARED, RIGHT, WRONG, Measured
from fixtures_runs import FakeExperiment
from test_calibration import BY_STEPS, SETTINGS, write_runs

from benchmarks.advice_scenarios import Scenario, scenarios, together
from escala.analysis.cost_model.calibrating import Calibration
from escala.analysis.cost_model.document import document
from escala.core.errors import InputError
from escala.core.files import write_json
from escala.experiment import Experiment, load
from escala.experiment.runs import Configuration
from tests.conftest import ROOT

ONE = Configuration("single", "1x1", "tuned", "native")
TWO = Configuration("horovod-mpi", "1x2", "tuned", "native")
ROWS = 64


def asked(**changes) -> Scenario:
    return Scenario("which", "small.yaml", ("tuned",), **changes)


def answer(selected: Configuration | None, unavailable: str | None = None) -> dict:
    return {"selected": selected and selected._asdict(), "unavailable": unavailable}


def amounts(names: Configuration, values: list[float], excluded: str | None = None) -> Measured:
    return Measured(names, dict(enumerate(values, start=1)), excluded)


# The verdict.

LEAST = amounts(ONE, [1.0] * 8)
EQUAL = amounts(TWO, [0.9, 1.1] * 4)
MORE = amounts(TWO, [1.5] * 8)


@pytest.mark.parametrize(
    ("advised", "found", "verdict"),
    [
        (ONE, (LEAST, MORE), RIGHT),
        (TWO, (LEAST, EQUAL), AS_GOOD),
        (TWO, (LEAST, MORE), WRONG),
        (TWO, (LEAST, amounts(TWO, [0.5] * 8, "2 cores")), WRONG),
        (TWO, (LEAST,), NOT_COMPARED),
        (None, (LEAST,), NOT_COMPARED),
        (None, (amounts(ONE, [1.0], "1 minutes"),), RIGHT),
    ],
)
def test_an_advice_is_judged_by_the_best_that_was_measured(advised, found, verdict):
    assert benchmark.judged(asked(), answer(advised), found).verdict == verdict


def test_the_regret_is_the_median_ratio_of_pairs():
    own = amounts(TWO, [3.0, 1.5, 6.0, 1.2, 1.5, 1.5, 9.0])
    best = amounts(ONE, [2.0, 1.0, 4.0, 1.0, 1.0, 1.0])
    found = benchmark.judged(asked(), answer(TWO), [best, own])
    assert (found.matches, found.ratio.estimate) == (6, pytest.approx(1.5))
    assert found.best is best


# A whole scenario, on a machine of known times.


@pytest.fixture
def results(tmp_path):
    """A calibrated experiment: 64 rows take one process 29.6 ms, and two about 23 ms."""
    settings = SETTINGS | {
        "workloads": BY_STEPS,
        "variants": {"tuned": {}},
        "configurations": [
            {"strategy": "single", "layouts": ["1x1"]},
            {"strategy": "horovod-mpi", "layouts": ["1x2"]},
        ],
    }
    file = tmp_path / "small.yaml"
    write_json(file, settings)
    found = Calibration(Experiment(settings, file.name))
    folder = tmp_path / "results"
    content, _ = document(write_runs(tmp_path / "calibrating", found))
    write_json(folder / "small" / "calibration.json", content)
    return file, settings, folder


def measure(folder, settings: dict, one: float, two: float) -> None:
    """Write eight runs of both configurations, in so many seconds an epoch."""
    name = settings["experiment"]
    [variant] = settings["variants"]
    write_json(
        folder / name / "data" / "small" / "split4" / "dataset.json",
        {"rows": {"train": 6400, "test": 100}},
    )
    fake = FakeExperiment(folder.parent, name, "small")
    fake.add("single", "1x1", one, 8, rows=ROWS, variant=variant)
    fake.add("horovod-mpi", "1x2", two, 8, rows=ROWS, variant=variant)


@pytest.mark.parametrize(("two", "verdict"), [(2.0, RIGHT), (4.0, WRONG)])
def test_a_scenario_is_advised_without_its_runs_and_judged_by_them(results, two, verdict):
    file, settings, folder = results
    measure(folder, settings, one=3.0, two=two)
    found = benchmark.outcome(Scenario("least time", str(file), ("tuned",)), folder, draws=20)
    assert found.advised == TWO and found.answer["distribute"]
    assert (found.verdict, found.matches) == (verdict, 8)
    assert found.ratio.estimate == pytest.approx(max(two / 3.0, 1.0), rel=0.1)


def test_the_calibration_of_another_experiment_serves_where_a_process_computes_the_same(results):
    file, settings, folder = results
    own = settings | {"experiment": "other", "variants": {"tuned": {"dense_exchange": "factors"}}}
    other = file.with_name("other.yaml")
    write_json(other, own)
    measure(folder, own, one=3.0, two=2.0)
    scenario = Scenario("which", str(other), ("tuned",), calibrated_by=str(file))
    found = benchmark.outcome(scenario, folder, draws=20)
    assert found.advised == TWO and found.verdict == RIGHT
    # Only what was calibrated: other layers are another computation.
    write_json(other, own | {"variants": {"tuned": {"convolution": "lookup-table"}}})
    found = benchmark.outcome(scenario, folder, draws=20)
    assert found.advised is None and found.verdict == NOT_COMPARED
    assert "was not calibrated" in json.dumps(found.answer["unpredicted"])
    longer = {"virus-cnn": settings["workloads"]["virus-cnn"] | {"epochs": 3}}
    write_json(other, own | {"workloads": longer})
    with pytest.raises(InputError, match=r"that of small differs.*rename one of them"):
        benchmark.outcome(scenario, folder, draws=20)


def test_the_scenarios_of_the_project_are_of_its_experiments(tmp_path):
    found = scenarios(ROOT / "benchmarks" / "advice.yaml")
    assert len({each.question for each in found}) == len(found) >= 5
    for each in found:
        base = load(ROOT / each.experiment)
        assert set(each.variants) <= base.settings["variants"].keys()
        if each.calibrated_by:
            together(load(ROOT / each.calibrated_by), base)
    file = tmp_path / "wrong.yaml"
    file.write_text("scenarios:\n- {question: a, experiment: b, variants: [], gaol: time}\n")
    with pytest.raises(InputError, match="gaol"):
        scenarios(file)
