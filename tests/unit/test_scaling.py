"""A scaling study's configurations, the rows of weak scaling, and its efficiency."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from fixtures_runs import FakeExperiment, as_program
from pages import epoch_rows, tabled
from test_amdahl import rewritten
from test_experiment import SMALL

from escala.core.errors import InputError
from escala.experiment import Experiment
from escala.experiment.scaling import layouts_of
from escala.record.plan import make_plan
from escala.report.findings import section_findings
from escala.report.findings.context import Report
from escala.report.summary import explanation
from escala.training.shards import Shards

pytestmark = pytest.mark.usefixtures("few_resamples")


def scaled(scaling: dict, **more) -> Experiment:
    """Return a small experiment with a scaling study, and further keys."""
    settings = {key: each for key, each in SMALL.items() if key != "configurations"}
    return Experiment(copy.deepcopy({**settings, "scaling": scaling, **more}), "small.yaml")


def names(experiment: Experiment) -> list[tuple[str, str]]:
    return list(dict.fromkeys((run.strategy, run.layout) for run in experiment.runs))


@pytest.mark.parametrize(
    ("up_to", "layouts"),
    [
        ("4x1", ["1x1", "2x1", "4x1"]),
        ("8x2", ["1x2", "2x2", "4x2", "8x2"]),
        ("1x4", ["1x1", "1x2", "1x4"]),
        ("6x1", ["1x1", "2x1", "3x1", "6x1"]),
    ],
)
def test_layouts_double_up_to_the_largest(up_to, layouts):
    assert layouts_of({"up_to": up_to}) == layouts


def test_a_study_adds_its_layouts_and_one_rank_runs_as_single():
    found = scaled({"kind": "strong", "strategies": ["horovod-mpi"], "up_to": "1x4"})
    assert names(found) == [("single", "1x1"), ("horovod-mpi", "1x2"), ("horovod-mpi", "1x4")]
    for run in found.runs:
        references = [(each.strategy, each.layout) for each in found.references_of(run)]
        assert references == ([] if run.strategy == "single" else [("single", "1x1")])


def test_what_is_listed_is_not_added_again_and_torch_has_its_own_process():
    listed = [{"strategy": "single", "layouts": ["1x1"]}]
    study = {"kind": "strong", "strategies": ["horovod-mpi", "ddp-gloo"], "up_to": "1x2"}
    found = names(scaled(study, configurations=listed))
    assert found == [
        ("single", "1x1"), ("horovod-mpi", "1x2"), ("torch-single", "1x1"), ("ddp-gloo", "1x2")
    ]  # fmt: skip


@pytest.mark.parametrize(
    "narrow",
    [
        {"variants": ["tuned"]},
        {"workloads": ["virus-cnn"]},
        {"variants": ["b"], "workloads": ["mlp"]},
    ],
)
def test_what_is_listed_for_some_variants_or_workloads_is_added_for_the_others(narrow):
    tables = {"table": {"kind": "tabular", "source": {"type": "scikit-learn", "name": "digits"},
                        "split": {"test_fraction": 0.3, "seeds": [4]}}}  # fmt: skip
    epochs = {"epochs": 1, "batch": {"rows": 8, "per": "rank"}}
    more = {
        "datasets": SMALL["datasets"] | tables,
        "workloads": {"virus-cnn": epochs, "mlp": epochs},
        "variants": {"tuned": {}, "b": {"steps_per_call": 2}},
    }
    study = {"kind": "strong", "strategies": ["horovod-mpi"], "up_to": "1x4"}
    listed = [{"strategy": "horovod-mpi", "layouts": ["1x2"], **narrow}]
    whole, partial = scaled(study, **more), scaled(study, **more, configurations=listed)
    assert sorted(run.file for run in partial.runs) == sorted(run.file for run in whole.runs)
    assert len({(run.workload, run.variant) for run in whole.runs if run.layout == "1x2"}) == 4


def test_without_one_rank_the_smallest_layout_is_the_reference():
    study = {"kind": "strong", "strategies": ["horovod-mpi"], "layouts": ["4x2", "1x2", "2x2"]}
    found = scaled(study)
    assert names(found) == [("horovod-mpi", layout) for layout in ("1x2", "2x2", "4x2")]
    largest = next(run for run in found.runs if run.layout == "4x2")
    assert [each.layout for each in found.references_of(largest)] == ["1x2"]


WEAK = {"kind": "weak", "strategies": ["horovod-mpi"], "up_to": "1x2", "rows_per_rank": 5}


@pytest.mark.parametrize(
    ("scaling", "more", "where", "reason"),
    [
        ({**WEAK, "rows_per_rank": None}, {}, "scaling", "how many rows virus-cnn trains on"),
        ({**WEAK, "kind": "strong"}, {}, "scaling.rows_per_rank", "for weak scaling only"),
        ({**WEAK, "layouts": ["1x1", "1x2"]}, {}, "scaling", "by both layouts and up_to"),
        ({**WEAK, "up_to": None}, {}, "scaling", "are not given"),
        ({**WEAK, "up_to": "1x1"}, {}, "scaling.up_to", "is a single layout"),
        ({**WEAK, "strategies": ["single"]}, {}, "scaling.strategies.0", "has one process"),
        ({**WEAK, "strategies": ["none"]}, {}, "scaling.strategies.0", "no such strategy"),
        (
            WEAK,
            {"workloads": {"virus-cnn": {"epochs": 1, "batch": {"per": "global"}}}},
            "workloads.virus-cnn.batch.per",
            "the scaling is not weak",
        ),
        (
            WEAK,
            {"variants": {"tuned": {"shard": False}}},
            "variants.tuned.shard",
            "train on the same rows",
        ),
        ({**WEAK, "variants": ["other"]}, {}, "scaling.variants", "no such variant"),
        (None, {}, "configurations", "nothing is compared"),
    ],
)
def test_what_does_not_fit_together_is_refused(scaling, more, where, reason):
    more = more if scaling is None else more | {
        "scaling": {key: each for key, each in scaling.items() if each is not None}
    }  # fmt: skip
    settings = {key: each for key, each in SMALL.items() if key != "configurations"} | more
    with pytest.raises(InputError) as refused:
        Experiment(copy.deepcopy(settings), "small.yaml")
    assert refused.value.where == f"small.yaml: {where}" and reason in refused.value.reason


def test_an_epoch_of_weak_scaling_grows_with_the_ranks_and_spreads_over_the_split(tmp_path):
    found = scaled(WEAK)
    plans = {}
    for run in found.runs:
        if run.repeat == 1:
            request = found.request(run)
            description = {"rows": {"train": 23, "test": 4}}
            plans[run.layout] = make_plan(request, description, tmp_path)
    assert [plans[layout]["train_rows"] for layout in ("1x1", "1x2")] == [5, 10]
    for layout, ranks in (("1x1", 1), ("1x2", 2)):
        shards = Shards.planned(plans[layout], [1 / ranks] * ranks)
        taken = np.concatenate([rows for step in shards.epoch_batches(1) for rows in step])
        # Each is the first row of one of as many equal parts of the split.
        assert sorted(taken) == [n * 23 // (5 * ranks) for n in range(5 * ranks)]
    with pytest.raises(InputError, match="makes 10 rows for 2 ranks, and this split has 9"):
        make_plan(request, {"rows": {"train": 9, "test": 4}}, tmp_path)


def test_strong_scaling_changes_no_request():
    """Runs that were measured before they belonged to a study are not measured again."""
    plain = Experiment(copy.deepcopy(SMALL), "small.yaml")
    study = scaled({"kind": "strong", "strategies": ["horovod-mpi"], "up_to": "1x2"})
    assert [plain.request(run) for run in plain.runs] == [study.request(run) for run in study.runs]


def as_weak(run: dict) -> None:
    """Make a run one of weak scaling, with 3150 rows for each rank."""
    ranks = run["ranks"]["asked"]
    run["training"]["settings"] = {"weak": {"ranks": ranks, "rows_per_rank": 3150}}
    run["training"]["train_rows"] = 3150 * ranks
    for epoch in run["epochs"]:
        epoch["rows"] = 3150 * ranks


def weak_experiment(folder, program: bool = False) -> FakeExperiment:
    """Return one and two ranks: an epoch of two takes 1 / 0.55 times as long, with 2x the rows."""
    found = FakeExperiment(folder).add_dataset()
    for strategy, layout, seconds in (("single", "1x1", 5.5), ("horovod-mpi", "1x2", 10.0)):
        found.add(strategy, layout, seconds, repeats=6)

        def change(run: dict, seconds: float = seconds) -> None:
            as_weak(run)
            for epoch in run["epochs"]:
                epoch["train_seconds"] = seconds * (1 + run["repeat"] / 1000)
            run["seconds"]["train"] = sum(each["train_seconds"] for each in run["epochs"])
            if program:
                as_program(run, rows=False)

        rewritten(found.runs[-6:], change)
    return found


@pytest.mark.parametrize("program", [False, True])
def test_weak_efficiency_is_the_time_of_one_rank_divided_by_that_of_all(tmp_path, program):
    frames = tabled(weak_experiment(tmp_path, program))
    [row] = epoch_rows(frames).to_dict("records")
    assert row["work"] == 2
    # Two ranks train twice the rows in 10 / 5.5 of the time: 0.91 of the time for a row.
    assert row["ratio"] == pytest.approx(10 / 5.5 / 2)
    assert row["speedup"] == pytest.approx(1.1) and row["efficiency"] == pytest.approx(0.55)
    [answer, *_] = [each.text for each in section_findings("answer", Report(frames, "demo"))]
    assert "0.91" in answer and "0.55" in answer and frames["best_use"].empty
    assert "The scaling is weak: ratios are of the time for the same" in explanation(frames)
    told = " ".join(each.text for each in section_findings("data", Report(frames, "demo")))
    assert "The scaling is weak: an epoch of n ranks has n times the rows" in told


def test_work_of_a_program_that_does_not_grow_is_not_counted_as_if_it_did(tmp_path):
    found = weak_experiment(tmp_path)

    def same_rows(run: dict) -> None:
        as_program(run)
        for epoch in run["epochs"]:
            epoch["rows"] = 3150

    rewritten(found.runs, same_rows)
    [row] = epoch_rows(tabled(found)).to_dict("records")
    assert row["work"] == 1 and row["ratio"] == pytest.approx(10 / 5.5)


def test_no_law_of_a_fixed_size_is_fitted_to_weak_scaling(tmp_path):
    [row] = tabled(weak_experiment(tmp_path))["amdahl"].to_dict("records")
    assert row["law_kind"] == row["kind"] == "unavailable"
    assert "the scaling is weak" in row["law_reason"] and "the scaling is weak" in row["reason"]
    assert np.isnan(row["serial_fraction"]) and row["train_speedup"] == pytest.approx(1.1)
