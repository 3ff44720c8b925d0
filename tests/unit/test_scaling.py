"""A scaling study's configurations, the rows of weak scaling, and its efficiency."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import FakeExperiment, as_program, changed, clocked, program, rewritten
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import epoch_rows, table_of, tabled
from sentences import check
from test_experiment import SMALL

from escala.analysis import laws
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.experiment import Experiment
from escala.experiment.scaling import layouts_of
from escala.experiment.schema import SITES
from escala.record.plan import make_plan
from escala.record.schema import validate_run
from escala.report.findings import section_findings, why, write
from escala.report.findings.context import Report
from escala.report.summary import all_findings, explanation, first_screen
from escala.report.tables import amdahl
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
    strong = {"kind": "strong", "strategies": ["horovod-mpi"]}
    study = scaled(strong | {"up_to": "1x4"})
    assert names(study) == [("single", "1x1"), ("horovod-mpi", "1x2"), ("horovod-mpi", "1x4")]
    for run in study.runs:
        references = [(each.strategy, each.layout) for each in study.references_of(run)]
        assert references == ([] if run.strategy == "single" else [("single", "1x1")])
    # What is listed is not added again, and PyTorch has a process of its own.
    listed = [{"strategy": "single", "layouts": ["1x1"]}]
    both = {"kind": "strong", "strategies": ["horovod-mpi", "ddp-gloo"], "up_to": "1x2"}
    assert names(scaled(both, configurations=listed)) == [
        ("single", "1x1"), ("horovod-mpi", "1x2"), ("torch-single", "1x1"), ("ddp-gloo", "1x2")
    ]  # fmt: skip
    # Without one rank the smallest layout is the reference.
    study = scaled(strong | {"layouts": ["4x2", "1x2", "2x2"]})
    assert names(study) == [("horovod-mpi", layout) for layout in ("1x2", "2x2", "4x2")]
    largest = next(run for run in study.runs if run.layout == "4x2")
    assert [each.layout for each in study.references_of(largest)] == ["1x2"]
    # Runs that were measured before they belonged to a study are not measured again.
    plain, study = Experiment(copy.deepcopy(SMALL), "s.yaml"), scaled(strong | {"up_to": "1x2"})
    assert [plain.request(run) for run in plain.runs] == [study.request(run) for run in study.runs]


@pytest.mark.parametrize("narrow", [{"variants": ["tuned"]}, {"workloads": ["virus-cnn"]}])
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
        ({**WEAK, "rules": "nirvana"}, {}, "scaling.rules.site", "not among the values allowed"),
        (
            {**WEAK, "rules": {"site": "notur", "against": "baseline"}},
            {},
            "scaling.rules.tiers",
            "speed-ups of doublings",
        ),
        (
            {**WEAK, "plan": [{"period": "I", "package": "A", "runs": 1, "layout": "9x9"}]},
            {},
            "scaling.plan.0.layout",
            "no such layout",
        ),
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


@pytest.mark.parametrize("site", SITES)
def test_the_word_for_a_site_is_its_entry_of_which_a_mapping_replaces_keys(site):
    study = {"kind": "strong", "strategies": ["horovod-mpi"], "up_to": "1x2"}

    def rules(given: object) -> dict:
        return scaled(study | {"rules": given}).settings["scaling"]["rules"]

    entry = {"same_input": False, "site": site} | SITES[site]
    assert rules(site) == rules({"site": site}) == entry
    assert entry["fields"] and (site == "generic" or (entry["source"] and entry["date"]))
    changed = rules({"site": site, "efficiency": 0.7, "time": "steps"})
    # The page of the site does not state such a rule.
    kept = {key: value for key, value in entry.items() if key not in ("tiers", "source", "date")}
    name = {} if site == "generic" else {"name": f"{entry['name']}, changed"}
    assert changed == kept | name | {"efficiency": 0.7, "time": "steps"}
    # Without a rule, that of CSC holds. A rule of the user's own has no source of another.
    assert scaled(study).settings["scaling"]["rules"] == rules("csc-roihu")
    assert rules({"name": "Ours"}) == rules("generic") | {"name": "Ours"}
    assert not {"source", "efficiency"} & rules({"name": "Ours"}).keys()
    with pytest.raises(InputError) as refused:
        rules("nirvana")
    assert all(known in refused.value.remedy for known in SITES)


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
        shards = Shards.of_plan(plans[layout], [1 / ranks] * ranks)
        taken = np.concatenate([rows for step in shards.epoch_batches(1) for rows in step])
        # Each is the first row of one of as many equal parts of the split.
        assert sorted(taken) == [n * 23 // (5 * ranks) for n in range(5 * ranks)]
    with pytest.raises(InputError, match="makes 10 rows for 2 ranks, and this split has 9"):
        make_plan(request, {"rows": {"train": 9, "test": 4}}, tmp_path)


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
    # No law of a fixed size is fitted to it.
    [row] = frames["amdahl"].to_dict("records")
    assert row["law_kind"] == row["kind"] == "unavailable"
    assert "the scaling is weak" in row["law_reason"] and "the scaling is weak" in row["reason"]
    assert np.isnan(row["serial_fraction"]) and row["train_speedup"] == pytest.approx(1.1)


def test_the_first_epoch_of_a_program_is_among_its_steps(tmp_path):
    made, columns = (
        weak_experiment(tmp_path, program=True),
        ["train_seconds", "unaccounted_seconds"],
    )
    known = tabled(made)["scaling"][columns]
    rewritten(made.runs, lambda run: run["program"].update(first_epoch_seconds=None))
    difference = known - tabled(made)["scaling"][columns]
    assert np.allclose(difference, [4, -4])


def test_work_of_a_program_that_does_not_grow_is_not_counted_as_if_it_did(tmp_path):
    found = weak_experiment(tmp_path)

    def same_rows(run: dict) -> None:
        as_program(run)
        for epoch in run["epochs"]:
            epoch["rows"] = 3150

    rewritten(found.runs, same_rows)
    [row] = epoch_rows(tabled(found)).to_dict("records")
    assert row["work"] == 1 and row["ratio"] == pytest.approx(10 / 5.5)


@pytest.fixture
def one_two_four(tmp_path) -> FakeExperiment:
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


def laws_of(one_two_four: FakeExperiment) -> pd.DataFrame:
    return table_of("amdahl", one_two_four).set_index("layout")


def test_a_run_is_trained_validated_evaluated_and_saved(one_two_four):
    found = laws_of(one_two_four)
    # 36 + 6 + 3 + 1 seconds of one process, 21 or 12 of training, and the rest as it is.
    assert found["speedup"].to_dict() == pytest.approx({"1x2": 46 / 31, "1x4": 46 / 22})
    assert found["train_speedup"].to_dict() == pytest.approx({"1x2": 12 / 7, "1x4": 3.0})
    assert found["undivided_fraction"].to_numpy() == pytest.approx(10 / 46)
    possible = {"1x2": 46 / (10 + 18), "1x4": 46 / (10 + 9)}
    assert found["possible_speedup"].to_dict() == pytest.approx(possible)
    serial = {n: (ratio - 1 / n) / (1 - 1 / n) for n, ratio in ((2, 31 / 46), (4, 22 / 46))}
    assert found["serial_fraction"].tolist() == pytest.approx([serial[2], serial[4]])
    # Cruz Varona's speed-ups on two GPUs: (2 / 1.79 − 1) and (2 / 1.97 − 1) are not divided.
    for gained in (1.79, 1.97):
        assert amdahl.karp_flatt(gained, 2) == pytest.approx(2 / gained - 1)
    assert amdahl.karp_flatt(1.2, 1) is None
    assert amdahl.karp_flatt(1 / laws.ratio(8, 0.3), 8) == pytest.approx(0.3)


def test_evaluation_that_ranks_divide_is_no_part_that_stays_and_what_is_missing_is_not_0(
    one_two_four,
):
    rewritten(one_two_four.runs[1:2], lambda run: run["ranks"].update(evaluating=2))
    fractions = laws_of(one_two_four)["undivided_fraction"].to_dict()
    assert fractions == pytest.approx({"1x2": 1 / 46, "1x4": 10 / 46})
    rewritten(one_two_four.runs[1:2], lambda run: run["ranks"].pop("evaluating"))
    rewritten(one_two_four.runs[2:], lambda run: run["seconds"].update(averaging=None))
    rows = laws_of(one_two_four)
    assert pd.isna(rows.loc["1x2", "undivided_fraction"]) and rows.loc["1x2", "serial_fraction"] > 0
    four = rows.loc["1x4"]
    assert four[["speedup", "serial_fraction", "undivided_fraction"]].isna().all()
    assert (four["matches"], four["kind"]) == (0, "unavailable")
    assert "a part of a run has no time" in four["reason"]
    assert four["train_speedup"] == pytest.approx(3.0)


def by_law(tmp_path: Path, law: Callable[[int], float], ranks=(1, 2, 4)) -> FakeExperiment:
    """Return an experiment of some numbers of ranks, and of one rank with two and four cores."""
    found = FakeExperiment(tmp_path).add_dataset()
    for n in ranks:
        found.add("single" if n == 1 else "horovod-mpi", f"1x{n}", 12 * law(n), rows=128)
    for cores in (2, 4):
        expected_seconds = 12 * laws.ratio(cores, 0.3)
        found.add("single", "1x1", expected_seconds, variant=f"cores{cores}", rows=128, cores=cores)
    rewritten(found.runs, lambda run: run["ranks"].update(oversubscribed=False))
    return found


def test_laws_are_fitted_over_ranks_and_over_threads(tmp_path):
    one = {"strategy": "single", "layout": "1x1", "variant": "tuned"}
    one_two_four = by_law(tmp_path, lambda n: laws.ratio(n, 0.1, 0.03))
    found = table_of("amdahl", one_two_four, references=(one,))
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
    one_two_four = by_law(tmp_path, lambda n: laws.ratio(n, 0.1))
    for n in (2, 4):
        one_two_four.add(strategy, f"1x{n}", 12 * 0.1 / n, variant=variant, rows=128)
    one = {"strategy": "single", "layout": "1x1", "variant": "tuned"}
    found = table_of("amdahl", one_two_four, references=(one,))
    names = ["strategy", "variant"]
    other = found.set_index(names).loc[(strategy, variant)]
    assert (other["law_kind"] == "unavailable").all() and (other["speedup"] > 5).all()
    assert other["law_reason"].str.contains(said).all()
    assert (found.set_index(names).loc[("horovod-mpi", "tuned"), "law_kind"] == "estimated").all()


@pytest.mark.parametrize("ranks", [(1, 2), (1, 2, 4)])
def test_one_number_of_ranks_is_no_law_and_no_finding(tmp_path, ranks):
    frames = tabled(by_law(tmp_path, lambda n: laws.ratio(n, 0.2), ranks))
    row = frames["amdahl"].set_index("layout").loc["1x2"]
    parameters = row[["amdahl_fraction", "contention", "extrapolated_speedup"]]
    expected = len(ranks) > 2
    assert parameters.notna().all() if expected else parameters.isna().all()
    assert (row["law_kind"] == "estimated") == expected == pd.isna(row["law_reason"])
    findings = section_findings("sure", Report(frames, "demo"))
    texts = [each.text for each in findings if each.table == "amdahl"]
    assert any("8 processes" in text for text in texts) == expected
    assert not any("4 processes" in text for text in texts)


def test_ranks_that_share_cores_are_no_points_of_a_law(tmp_path):
    one_two_four = by_law(tmp_path, lambda n: laws.ratio(n, 0.1))
    for layout in ("1x4", "1x2"):
        rows = [path for path in one_two_four.runs if f"/{layout}/" in str(path)]
        rewritten(rows, lambda run: run["ranks"].update(oversubscribed=True))
        assert (laws_of(one_two_four).loc[["1x2", "1x4"], "law_kind"] == "unavailable").all()
    reason = laws_of(one_two_four).loc["1x2", "law_reason"]
    assert reason == "nothing with more ranks than the reference has a ratio"


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
    # Never more than as many times the speed: that is fitted by nothing undivided, and not by less.
    above = laws.fit((2, 4), [[0.45, 0.2], [0.46, 0.22], [0.44, 0.21]]).speedup(8)
    assert above.estimate <= above.high <= 8
    slower = laws.fit((2, 4), [[1.3, 1.5]] * 3)
    assert slower.contention.estimate > 1 and slower.fastest.estimate == 1


#: Core seconds of a step of each rank of a program of one process, and of two.
CORES_OF_ONE, CORES_OF_TWO = [0.045], [0.03, 0.02]


def with_core_time(root: Path, *two: float, **told) -> FakeExperiment:
    """Return one process and two of a program whose core time is known, a step of 0.05 s each."""
    made = program(root, known_by="seen", named=("epochs",), **told)
    for path in made.runs:
        run = read_json(path)
        cores = CORES_OF_ONE if run["layout"] == "1x1" else two or CORES_OF_TWO
        for epoch in run["epochs"]:
            epoch["train_seconds"] = 0.05 * epoch["steps"]
        run["seconds"]["train"] = sum(epoch["train_seconds"] for epoch in run["epochs"])
        run["program"]["mean_steps"] = [
            {"step_seconds": 0.05, "input_seconds": None, "core_seconds": seconds,
             "kernel_seconds": 0.0, "minor_faults": 1.0, "workers": None}
            for seconds in cores
        ]  # fmt: skip
        validate_run(run)
        changed([path], **run)
    return made


def test_efficiencies_by_core_time_are_those_of_pop_and_explain_the_ratio(tmp_path):
    made = with_core_time(tmp_path)
    one, two = table_of("efficiencies", made).to_dict("records")
    steps_of_one, steps_of_two = (read_json(made.runs[n])["epochs"][0]["steps"] for n in (0, -1))
    assert one["parallel_efficiency"] == pytest.approx(0.9)
    assert one["computation_scaling"] == 1 and pd.isna(one["load_balance"])
    assert two["parallel_efficiency"] == pytest.approx(0.5)
    assert two["load_balance"] == pytest.approx(0.025 / 0.03)
    assert two["communication_efficiency"] == pytest.approx(0.03 / 0.05)
    scaling = 0.045 * steps_of_one / (0.05 * steps_of_two)
    assert two["computation_scaling"] == pytest.approx(scaling)
    assert two["global_efficiency"] == pytest.approx(0.5 * scaling)
    assert set(table_of("efficiencies", made)["kind"]) == {"estimated"}
    gain = 2 * two["parallel_efficiency"] / one["parallel_efficiency"] * scaling
    ratios = epoch_rows(tabled(made, only=["speedup"]))["ratio"]
    assert 1 / ratios.iloc[0] == pytest.approx(gain)


def test_without_runs_of_the_reference_there_is_no_scaling(tmp_path):
    made = with_core_time(tmp_path)
    changed(made.runs[:7], status="failed", reason="no memory")
    [two] = table_of("efficiencies", made).query("strategy == 'torch-ddp'").to_dict("records")
    assert two["parallel_efficiency"] == pytest.approx(0.5)
    assert pd.isna(two["computation_scaling"]) and pd.isna(two["global_efficiency"])


@pytest.mark.parametrize("evaluation", [False, True])
def test_core_time_of_evaluations_is_not_that_of_steps(evaluation, tmp_path):
    """Where steps are not seen, core time is that of whole epochs."""
    made = with_core_time(tmp_path)
    for path in made.runs:
        run = read_json(path)
        run["program"]["mean_steps"] = None
        run["usage"] = [
            {"minor_faults": 1, "user_seconds": 3.0, "system_seconds": 0.0, "steps": 100}
        ]
        for epoch in run["epochs"]:
            epoch["epoch_wall_seconds"] = (2 if evaluation else 1) * epoch["train_seconds"]
        changed([path], **run)
    one, _ = table_of("efficiencies", made).to_dict("records")
    assert one["kind"] == ("unavailable" if evaluation else "estimated")
    assert evaluation or one["parallel_efficiency"] == pytest.approx(0.03 / 0.05)


@pytest.mark.parametrize(
    ("change", "why_not"),
    [
        ({"ranks": {"oversubscribed": True}}, "its processes share cores"),
        ({"machine": {"gpus": ["A GPU"]}}, "GPU"),
        ({"program": {"mean_steps": None}}, "is not known"),
    ],
)
def test_what_core_time_does_not_tell_is_said(change, why_not, tmp_path):
    made = with_core_time(tmp_path)
    for path in made.runs:
        run = read_json(path)
        [(key, values)] = change.items()
        if key == "machine":
            run["ranks"]["machines"] = [run["ranks"]["machines"][0] | values]
        else:
            run[key] |= values
        changed([path], **run)
    found = table_of("efficiencies", made)
    assert set(found["kind"]) == {"unavailable"} and found["parallel_efficiency"].isna().all()
    assert found["reason"].str.contains(why_not).all()


@pytest.mark.parametrize(
    ("cores", "told"),
    [
        ((0.048, 0.02), ["busiest has 1.41 times the core time of the mean"]),
        ((0.025, 0.025), ["is off its cores for 50 % of the time"]),
        ((0.05, 0.05), ["Cores are busy for 100 % of the time"]),
    ],
)
def test_an_answer_on_a_program_is_explained_by_its_core_time(cores, told, tmp_path):
    report = Report(tabled(with_core_time(tmp_path, *cores)))
    found = list(write(why.steps, report, report))
    check(found)
    text = " ".join(each.text for each in found)
    for each in ("For the same work, `torch-ddp 1x2` takes ", " times", *told):
        assert each in text, text
    assert "ot measured" not in text and "torch-trace" in text
    assert ("off its cores" in text) == (cores == (0.025, 0.025)), text


@pytest.mark.parametrize("command", ["mpirun -n 2 python train.py", "python train.py"])
def test_processes_that_wait_actively_are_not_called_busy(command, tmp_path):
    made = with_core_time(tmp_path)
    rewritten(made.runs, lambda run: run["program"].update(command=command.split()))
    report = Report(tabled(made))
    text = " ".join(each.text for each in write(why.steps, report, report))
    assert ("busy" in text) == ("Not measured" not in text) == ("mpirun" not in command)


@pytest.mark.parametrize(
    ("rest", "told", "advised"), [(None, [], False), (2.0, ["6.0 of 60.0 s"], False),
                                  (20.0, ["24.0 of 60.0 s", "evaluations"], True)],
)  # fmt: skip
def test_the_rest_of_a_projected_training_is_told_if_it_was_seen(rest, told, advised, tmp_path):
    made = with_core_time(tmp_path)
    projected = {"seconds": 60.0, "epochs": 3, "steps": 10, "told_by": "its lines"}
    for path in made.runs:
        run = read_json(path)
        run["program"]["projected"] = projected | {"rest_seconds": rest}
        run["seconds"]["startup"], run["training"]["steps_per_epoch"] = 4.0, 10
        validate_run(run)
        changed([path], **run)
    report = Report(tabled(made))
    found = list(write(why.outside_steps, report, report))
    check(found)
    text = " ".join(each.text for each in found)
    assert bool(text) == bool(told) and all(each in text for each in told), text
    assert ("less often" in text) == advised


@pytest.mark.parametrize("workers", [0, 2])
def test_a_late_loader_is_advised_by_the_workers_it_has(workers, tmp_path):
    made = with_core_time(tmp_path)
    for path in made.runs:
        run = read_json(path)
        waits = 0.02 if run["layout"] == "1x1" else 0.01
        for step in run["program"]["mean_steps"]:
            step |= {"input_seconds": waits, "workers": workers}
        for epoch in run["epochs"]:
            epoch["epoch_wall_seconds"] = epoch["train_seconds"]
        used = {"user_seconds": 3.0, "system_seconds": 1.0, "minor_faults": 0, "steps": 100.0}
        ranks = len(run["program"]["mean_steps"])
        changed([path], **run | {"usage": [used] * ranks})
    report = Report(tabled(made))
    text = " ".join(each.text for each in write(why.waits_for_input, report, report))
    assert "40 % of a step" in text and "20 % of a step" in text
    assert ("`num_workers=1`" in text, "more of them" in text) == (not workers, bool(workers))
    # The core time of what loads batches counts, which is not in that of seen steps.
    one, two = report.tables["efficiencies"].to_dict("records")
    assert one["parallel_efficiency"] == pytest.approx((0.04 if workers else 0.045) / 0.05)
    assert two["parallel_efficiency"] == pytest.approx((0.08 if workers else 0.05) / 2 / 0.05)
    assert pd.isna(two["load_balance"]) == bool(workers)


@pytest.mark.parametrize("waits", [0.001, 0.02])
def test_waiting_for_input_explains_an_answer_without_core_time(waits, tmp_path):
    made = with_core_time(tmp_path)
    for path in made.runs:
        run = read_json(path)
        alone = run["layout"] == "1x1"
        for step in run["program"]["mean_steps"]:
            # The core time of what loads batches is in `usage`, which this run does not have.
            step |= {"input_seconds": 0.001 if alone else waits, "workers": 1}
        changed([path], **run)
    report = Report(tabled(made))
    [reason] = first_screen(report, all_findings(report)).brief["why"]
    brief = reason.spoken
    assert ("40 % of a step, and" in brief) == ("Not measured" not in brief) == (waits > 0.01)


def test_the_gain_of_a_change_is_told_against_what_was_not_changed(tmp_path):
    experiment = FakeExperiment(tmp_path, dataset="files")
    for variant, seconds in (("tuned", 5.0), ("threads", 3.0), ("memory", 4.0)):
        experiment.add("single", "1x1", seconds, 7, variant=variant, rows=64)
    rewritten(experiment.runs, as_program)
    references = [
        {"strategy": "single", "layout": "1x1", "variant": variant}
        for variant in ("tuned", "threads")
    ]
    report = Report(tabled(experiment, references=references))
    [gain] = write(why.changes, report, report)
    assert re.match(
        r"`single 1x1 memory` takes 0\.\d+ of the time of `single 1x1 tuned`", gain.text
    )


@given(st.lists(st.tuples(*[st.floats(0.01, 1)] * 2), min_size=1, max_size=5), st.floats(0, 1))
def test_efficiencies_are_fractions_that_multiply(ranks, waits):
    """No rank has more than the whole, of which one rank may wait for no other."""
    useful, transfer = np.array(ranks).T
    whole = (useful + transfer).max() + waits
    found = laws.efficiencies(useful, transfer, whole)
    assert all(0 < value <= 1 + 1e-12 for value in found.values())
    parallel, balance, communication, serialisation, sent = found.values()
    assert parallel == pytest.approx(balance * communication)
    assert communication == pytest.approx(serialisation * sent)


def test_efficiencies_by_parts_of_steps_multiply(tmp_path):
    made, clocks = clocked(tmp_path)
    tables = tabled(made, probe_files=clocks)
    found = tables["efficiencies"].query("source == 'parts of steps'").set_index("strategy")
    two = found.loc["horovod-mpi"]
    parallel = two["load_balance"] * two["communication_efficiency"]
    assert two["parallel_efficiency"] == pytest.approx(parallel)
    communication = two["serialisation_efficiency"] * two["transfer_efficiency"]
    assert two["communication_efficiency"] == pytest.approx(communication)
    assert 0 < parallel < 1 and set(found["kind"]) == {"measured"}
    parts = tables["attribution"].query("strategy == 'horovod-mpi'")
    seconds = parts.pivot(index="rank", columns="part", values="seconds")
    exchange = seconds[["skew", "transfer", "copies", "negotiation"]].sum(axis=1)
    useful = (seconds["whole"] - exchange).mean() / seconds["whole"].max()
    assert parallel == pytest.approx(useful)
    assert found.loc["single", "parallel_efficiency"] == pytest.approx(1)
