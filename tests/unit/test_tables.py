"""Result tables from the files a sweep leaves."""

from __future__ import annotations

import copy
import csv
import json
import statistics
from collections.abc import Iterable
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest
import test_attribution
import test_scaling
import test_study
from fixtures_runs import (
    DUPLICATE_RATIOS,
    ERRORS,
    REFERENCES,
    SESSION,
    FakeExperiment,
    changed,
    clocked,
    fair,
    laddered,
    program,
    regression,
    rewritten,
    sampled,
    three_configurations,
    twice,
    with_epoch_scores,
    with_fits,
)
from pages import table_of, tabled
from scipy import stats
from sentences import told
from test_calibration import experiment, write_runs

from escala.analysis.comparable import CONFIGURATION
from escala.analysis.cost_model import predictions
from escala.analysis.cost_model.calibrating import CalibrationExperiment
from escala.analysis.cost_model.calibration import parse
from escala.analysis.cost_model.document import document
from escala.analysis.cost_model.works import plan_works
from escala.analysis.looks import LOOK_LEVEL
from escala.analysis.statistics import (
    Interval,
    deviation_of_sessions,
    next_time_interval,
    ratio_interval,
)
from escala.analysis.tables import dtypes
from escala.analysis.verdicts import NO_VERDICT
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.record.schema import validate_run
from escala.report import tables
from escala.report.figures import common, ladder
from escala.report.findings import section_findings
from escala.report.findings.context import Report
from escala.report.tables import base, views
from escala.report.tables.best_use import LOOKED_AT
from escala.report.tables.scores import STAGES

pytestmark = pytest.mark.usefixtures("few_resamples")


def _row(frame: pd.DataFrame, strategy: str, layout: str = "1x2", basis: str = "epoch"):
    rows = frame[(frame["strategy"] == strategy) & (frame["layout"] == layout)]
    [(_, row)] = (rows[rows["basis"] == basis] if "basis" in rows else rows).iterrows()
    return row


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    experiment = three_configurations(tmp_path_factory.mktemp("three"))
    return experiment, tabled(experiment)


def test_a_fit_has_scores_and_a_time_of_its_own_and_is_compared_with_nothing(tmp_path):
    experiment = with_fits(tmp_path)
    for run in experiment.runs:
        validate_run(read_json(run))
    frames = tabled(experiment)
    tables.write(frames, tmp_path / "tables")
    fits = frames["configurations"].set_index("workload").loc[["kmer-logreg", "majority"]]
    assert fits["fit"].all()
    assert fits["accuracy"].notna().all() and fits["first_step_seconds"].isna().all()
    assert set(frames["speedup"]["workload"]) == {"virus-cnn"}
    left = views.without_fits(frames)
    for name in ("runs", "epochs", "configurations", "pooled", "confusion"):
        assert set(frames[name]["workload"]) == {"virus-cnn", "kmer-logreg", "majority"}
        assert set(left[name]["workload"]) == {"virus-cnn"}
    pd.testing.assert_frame_equal(left["classes"], frames["classes"])
    means = frames["mean_scores"].set_index("workload")["reference"].notna()
    assert means["virus-cnn"].any() and not means[["kmer-logreg", "majority"]].any()


def test_no_cell_of_text_is_a_formula_and_it_is_read_as_it_was(three, tmp_path):
    formulas = ["=HYPERLINK(1)", "+1+2", "-x", "@SUM", "\tx", "'=quoted"]
    # Numbers stay numbers, and other texts as they are.
    texts = [*formulas, "'plain", "a=b", "-1", "+2.5"]
    classes = pd.concat([three[1]["classes"]] * len(texts), ignore_index=True).head(len(texts))
    frames = three[1] | {"classes": classes.assign(**{"class": pd.array(texts, "string")})}
    tables.write(frames, tmp_path)
    with (tmp_path / "classes.csv").open(newline="") as file:
        cells = [row["class"] for row in csv.DictReader(file)]
    assert cells == [f"'{each}" for each in formulas] + texts[len(formulas) :]
    assert tables.read(tmp_path)["classes"]["class"].to_list() == texts


def test_tables_survive_being_written_and_read_and_a_broken_one_is_refused(three, tmp_path):
    frames = three[1]
    tables.write(frames, tmp_path / "whole")
    for name, found in tables.read(tmp_path / "whole").items():
        pd.testing.assert_frame_equal(found, frames[name])
    with pytest.raises(jsonschema.ValidationError, match="fine"):
        tables.write({"runs": frames["runs"].assign(status="fine")}, tmp_path / "broken")
    assert not list(tmp_path.glob("broken/*"))


def test_a_table_needs_a_function_and_a_schema(monkeypatch):
    find, known = tables._builders.__wrapped__, set(tables.TABLES)
    assert find().keys() == known
    monkeypatch.setattr(tables, "TABLES", known | {"more"})
    with pytest.raises(
        InputError, match=r"tables/more\.schema\.yaml: no module .* function more\("
    ):
        find()
    monkeypatch.setattr(tables, "TABLES", known - {"runs"})
    with pytest.raises(InputError, match=r"tables/runs\.schema\.yaml: is missing"):
        find()


def test_runs_and_scores_are_those_of_the_files_and_a_failed_one_is_a_row(three):
    experiment, frames = three
    runs, reports = frames["runs"], frames["reports"]
    [failed] = runs[runs["status"] == "failed"].to_dict("records")
    assert len(runs) == 9 and pd.isna(failed["train_seconds"])
    assert (failed["strategy"], failed["repeat"]) == ("horovod-gloo", 3)
    assert failed["reason"] == "rank 1 was ended by signal 9"
    row = _row(frames["configurations"], "horovod-gloo")
    assert row[["runs_ok", "runs_failed", "kind"]].tolist() == [2, 1, "measured"]
    evaluation = read_json(experiment.runs[0])["evaluation"]
    mine = reports[(reports["strategy"] == "single") & (reports["repeat"] == 1)]
    assert list(mine["level"]) == ["class"] * 5 + ["macro", "weighted", "accuracy"]
    assert mine["accuracy"].iloc[-1] == evaluation["accuracy"]
    scores = evaluation["per_class"]["COVID"]
    [covid] = mine[mine["class"] == "COVID"][[*scores]].to_dict("records")
    assert covid == scores
    covid = frames["classes"].set_index("class").loc["COVID"]
    assert covid[list(STAGES)].tolist() == [900, 900, 630, 630, 270]


def test_speedup_is_the_inverse_of_the_ratio_to_a_reference_that_is_there(three):
    speedup = three[1]["speedup"]
    assert set(speedup["strategy"]) == {"horovod-mpi", "horovod-gloo"}
    row = _row(speedup, "horovod-mpi")
    assert row["matches"] == 3 and _row(speedup, "horovod-gloo")["matches"] == 2
    assert 0.5 < row["ratio_low"] <= row["ratio"] <= row["ratio_high"] < 0.65
    assert row["speedup"] == pytest.approx(1 / row["ratio"])
    assert row["speedup_high"] == pytest.approx(1 / row["ratio_low"])
    assert row["efficiency"] == pytest.approx(row["speedup"] / 2)
    assert row["verdict"] == "no verdict" and pd.isna(row["detectable_decrease"])
    # An experiment of several workloads lists the references of all: only the main one is missed.
    strategies = ("torch-single", "single", "mirrored")
    listed = tuple({"strategy": each, "layout": "1x1"} for each in strategies)
    speedup = table_of("speedup", three[0], references=listed)
    of_mpi = speedup[(speedup["strategy"] == "horovod-mpi") & (speedup["basis"] == "epoch")]
    of_mpi = of_mpi.set_index("reference")
    assert of_mpi["kind"].to_dict() == {1: "unavailable", 2: "measured"}
    assert "has no torch-single 1x1 tuned" in of_mpi.loc[1, "reason"]


def test_only_pairs_of_one_session_are_compared(tmp_path):
    experiment = (
        FakeExperiment(tmp_path)
        .add_dataset()
        .add("single", "1x1", 10.0, session="b", older={"a": 20.0})
        .add("horovod-mpi", "1x2", 10.0, session="a")
        .add("horovod-gloo", "1x2", 5.0, session="b")
        .add("horovod-mpi", "1x4", 4.0, session="c")
    )
    frames = tabled(experiment)
    assert _row(frames["speedup"], "horovod-mpi")["ratio"] == pytest.approx(0.5, rel=0.06)
    assert _row(frames["speedup"], "horovod-gloo")["ratio"] == pytest.approx(0.5, rel=0.06)
    alone = _row(frames["speedup"], "horovod-mpi", "1x4")
    assert (alone["kind"], alone["matches"]) == ("unavailable", 0)
    assert "session" in alone["reason"]
    baseline = _row(frames["configurations"], "single", "1x1")
    assert (baseline["measurements"], baseline["sessions"], baseline["runs_ok"]) == (6, 2, 3)
    assert (~frames["runs"]["current"]).sum() == 3
    assert (frames["pooled"]["runs"] == 3).all(), "scores count a run once, however often timed"


def test_total_training_time_is_of_the_steps_of_all_epochs_that_were_trained(tmp_path):
    """Two of three runs stopped early. It is unknown of runs cut to some of their steps.

    Validation and all else of an epoch that is no step is not in it.
    """
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    experiment.add("horovod-mpi", "1x2", 5.0)
    totals = []
    for path, trained in zip(experiment.runs, (1, 3, 2), strict=False):
        run = read_json(path)
        epochs = run["epochs"][:trained]
        totals.append(sum(epoch["train_seconds"] for epoch in epochs))
        changed([path], epochs=epochs, seconds=run["seconds"] | {"train": totals[-1]})
    changed(experiment.runs[3:], training={"steps_per_epoch": 1000})
    configurations = table_of("configurations", experiment)
    row, cut = _row(configurations, "single", "1x1"), _row(configurations, "horovod-mpi")
    assert row["total_train_seconds"] == pytest.approx(statistics.median(totals))
    assert cut["kind"] == "estimated" and cut["train_seconds_per_epoch"] > 0
    assert pd.isna(cut["total_train_seconds"])


def _reach_target(experiment: FakeExperiment, reached_in: Iterable[int | None]) -> None:
    """Let each run reach its target accuracy after an epoch, or never; epochs take 10 s."""
    for path, first in zip(experiment.runs, reached_in, strict=True):
        run = read_json(path)
        for epoch in run["epochs"]:
            reached = first is not None and epoch["epoch"] >= first
            epoch |= {"validation_accuracy": 0.96 if reached else 0.9, "train_seconds": 10.0}
        path.write_text(json.dumps(run))


@pytest.mark.parametrize(
    ("single", "parallel", "seconds", "found", "kind"),
    [
        ([2, 2, 2], [1, 2, 3], 20.0, (0.75**0.25, 0.5, 1.5), "measured"),
        ([2, 2, 2], [1, 2, None], 20.0, (1.0, 0.5, None), "measured"),
        ([1, 1, None], [1, 1, 1], 10.0, (1.0, None, 1.0), "measured"),
        ([2, 2, 2], [1, None, None], 30.0, (None, 0.5, None), "censored"),
    ],
)
def test_time_to_accuracy_is_censored_where_it_was_not_reached(
    tmp_path, single, parallel, seconds, found, kind
):
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 10.0).add("horovod-mpi", "1x2", 10.0)
    _reach_target(experiment, [*single, *parallel])
    frames = tabled(experiment)
    row = _row(frames["configurations"], "horovod-mpi")
    assert row["time_to_target_seconds"] == pytest.approx(seconds)
    assert pd.isna(row["time_to_target_low_seconds"]) == (None in parallel)
    row = _row(frames["speedup"], "horovod-mpi", basis="target")
    names = [f"ratio{end}" for end in ("", "_low", "_high")]
    assert [None if pd.isna(value) else value for value in row[names]] == pytest.approx(
        next_time_interval(Interval(*found), *deviation_of_sessions([]))
    )
    assert (row["kind"], row["matches"], row["decides"]) == (kind, 3, True)


@pytest.mark.parametrize(
    ("single", "parallel", "batch", "expected"),
    [
        ([1, 2, 3], [3, 3, 3], 32, 16.0),
        ([2, 2, None], [1, 2, None], 32, 16.0),
        ([2, None, None], [1, None, None], 32, None),
        # One process made other updates.
        ([1, 2, 3], [3, 3, 3], 64, None),
    ],
)
def test_the_time_to_a_target_is_predicted_from_the_epochs_of_one_process(
    tmp_path, single, parallel, batch, expected
):
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 10.0).add("horovod-mpi", "1x2", 10.0)
    # The epochs of another variant do not count, nor those of runs that failed.
    experiment.add("single", "1x1", 10.0, 5, variant="other")
    _reach_target(experiment, [*single, *parallel, *[1] * 5])
    changed(experiment.runs[-5:-2], variant="tuned", status="failed", reason="no luck")
    run = read_json(experiment.runs[3])
    ends = {"": 8.0, "_low": 7.0, "_high": 9.0}
    row = {name: run[name] for name in CONFIGURATION} | {"ranks": 2, "global_batch": batch}
    row |= {"basis": "predicted", "reason": None}
    row |= {f"predicted{end}_seconds_per_epoch": seconds for end, seconds in ends.items()}
    one = row | {"strategy": "single", "layout": "1x1", "ranks": 1, "global_batch": 32}
    file, [machine] = tmp_path / "predictions.json", run["ranks"]["machines"]
    write_json(file, {"machine": machine, "configurations": [row, one]})
    table = table_of("predictions", experiment, predictions_file=file)
    seconds, of_one = table["predicted_seconds_to_target"]
    assert (None if pd.isna(seconds) else seconds) == expected
    assert pd.isna(of_one), "its own runs predict nothing"


def test_predictions_are_compared_row_by_row(tmp_path):
    experiment = FakeExperiment(tmp_path, seeds=(4, 5)).add_dataset()
    experiment.add("single", "1x1", 10.0, repeats=2, accuracy=1)
    experiment.add("horovod-mpi", "1x2", 10.0, repeats=3, accuracy=1)
    missed = experiment.runs[2].with_name("predictions.npy")
    predictions = np.load(missed)
    predictions[:27] = 1
    np.save(missed, predictions)
    table = table_of("score_differences", experiment)
    assert set(table["strategy"]) == {"horovod-mpi"}
    table = table.set_index("class")
    covid, dengue = table.loc["COVID"], table.loc["DENGUE"]
    # Of 2 × 270 rows of one class 27 are taken for the other, which has 2 × 210.
    assert covid["recall_difference"] == pytest.approx(-27 / 540)
    assert dengue["precision_difference"] == pytest.approx(420 / 447 - 1)
    assert covid["recall_difference_low"] < -27 / 540 < covid["recall_difference_high"] < 0
    assert (covid["precision_difference"], dengue["recall_difference"]) == (0, 0)
    assert (covid["runs"], covid["splits"]) == (2, 2)
    assert (covid["rows"], covid["genomes"]) == (540, 135)
    # A row without a genome is one in all repeats of its split.
    for file in experiment.dataset_files:
        file.with_name("test_genomes.npy").unlink()
    covid = table_of("score_differences", experiment).set_index("class").loc["COVID"]
    assert covid["genomes"] == 2 * 270


def test_an_epoch_that_was_cut_is_estimated_and_has_no_scores(tmp_path):
    experiment = three_configurations(tmp_path)
    before = tabled(experiment)
    cut = [path for path in experiment.runs if "horovod-mpi" in path.parts]
    steps = read_json(cut[0])["training"]["steps_per_epoch"]
    changed(cut, training={"steps_per_epoch": 3 * steps})
    after = tabled(experiment)
    for name, column in (("configurations", "train_seconds_per_epoch"), ("speedup", "ratio")):
        old, new = (_row(frames[name], "horovod-mpi") for frames in (before, after))
        assert (old["kind"], new["kind"]) == ("measured", "estimated")
        assert new[column] == pytest.approx(3 * old[column])
    assert pd.isna(_row(after["configurations"], "horovod-mpi")["accuracy"])
    for name in ("reports", "pooled", "confusion"):
        assert "horovod-mpi" in set(before[name]["strategy"])
        assert "horovod-mpi" not in set(after[name]["strategy"])
    assert _row(after["configurations"], "single", "1x1")["kind"] == "measured"
    tables.write(after, tmp_path)
    experiment = fair(tmp_path / "fair", 5.6, 4.6, 3.9)
    changed(experiment.runs, training={"target_accuracy": None, "steps_per_epoch": 3 * steps})
    rows = table_of("best_use", experiment, references=REFERENCES)
    assert set(rows["kind"]) == {"estimated"} and rows["run_ratio"].isna().all()


@pytest.mark.parametrize(
    ("made", "name", "score", "expected"),
    [
        (regression, "scores", "rmse", [*ERRORS["single"], *ERRORS["horovod-mpi"]]),
        (with_epoch_scores, "epoch_scores", "bleu",
         [0.1, 0.3, 0.2, 0.2, 0.3, 0.4, 0.3, 0.2, 0.1, 0.1, 0.05, 0.02]),
    ],
)  # fmt: skip
def test_scores_that_a_workload_brings_are_a_table(tmp_path, three, made, name, score, expected):
    experiment = made(tmp_path)
    frames = tabled(experiment)
    scores = frames[name].sort_values("strategy", ascending=False, kind="stable")
    assert scores["value"].tolist() == expected and three[1][name].empty
    assert set(scores["score"]) == {score}
    if made is regression:
        assert all(frames[other].empty for other in ("pooled", "reports", "confusion", "leakage"))
    tables.write(frames, tmp_path / "tables")
    pd.testing.assert_frame_equal(tables.read(tmp_path / "tables")[name], frames[name])
    changed(experiment.runs[:1], training={"steps_per_epoch": 1000})
    left = len(expected) * (1 - 1 / len(experiment.runs))
    assert len(table_of(name, experiment)) == left, "an epoch that was cut has no scores"


def test_scores_without_any_model_are_a_table_and_one_sentence_each(tmp_path):
    experiment = FakeExperiment(tmp_path, seeds=(4, 5)).add_dataset()
    for path, value in zip(experiment.dataset_files, (0.5, 0.7), strict=True):
        write_json(path, read_json(path) | {"baselines": {"mean": {"rmse": value, "mae": 0.25}}})
    frames = tables.tables([], experiment.dataset_files)
    found = frames["baselines"].set_index(["split_seed", "score"])["value"]
    assert [found[seed, "rmse"] for seed in (4, 5)] == [0.5, 0.7]
    sentences = [text for text in told(frames, "scores") if "baseline `mean`" in text]
    assert [text.split()[-1] for text in sentences] == ["0.6.", "0.25."]


def test_means_of_scores_and_their_differences_are_by_students_distribution(tmp_path):
    experiment = regression(tmp_path)
    means = table_of("mean_scores", experiment).set_index("strategy")
    single, parallel = means.loc["single"], means.loc["horovod-mpi"]
    assert pd.isna(single["reference"]) and single["kind"] == "unavailable"
    expected = stats.ttest_1samp(ERRORS["single"], 0).confidence_interval()
    assert single[["mean_low", "mean_high"]].tolist() == pytest.approx(list(expected))
    expected = stats.ttest_rel(ERRORS["horovod-mpi"], ERRORS["single"]).confidence_interval()
    assert parallel["difference"] == pytest.approx(0.1) and parallel["matches"] == 3
    ends = parallel[["difference_low", "difference_high"]].tolist()
    assert ends == pytest.approx(list(expected))
    # A score that a run leaves out is the mean of the other runs.
    changed(experiment.runs[:1], evaluation={"rows": 705, "scores": {"bias": 0.3}})
    means = table_of("mean_scores", experiment).set_index(["strategy", "score"])
    assert means.loc[("single", "bias"), ["runs", "mean"]].tolist() == [1, 0.3]
    single, parallel = (means.loc[(name, "rmse")] for name in ERRORS)
    assert single["runs"] == 2 and single["mean"] == pytest.approx(np.mean(ERRORS["single"][1:]))
    assert parallel["runs"] == 3 and parallel["matches"] == 2
    changed(experiment.runs[-1:], evaluation={"rows": 705, "scores": {"bias": 0.3}})
    means = table_of("mean_scores", experiment).set_index(["strategy", "score"])
    assert means.loc[("horovod-mpi", "rmse"), "matches"] == 1, "both sides of a match need it"
    changed(experiment.runs, evaluation={"rows": 705, "scores": {"accuracy": 0.7}})
    means = table_of("mean_scores", experiment).set_index(["strategy", "score"])
    assert means.loc[("horovod-mpi", "accuracy"), "bound"] == 0, "its unit is not known"

    experiment = regression(tmp_path / "other")

    changed(experiment.runs[:1], repeat=7)
    alone = table_of("mean_scores", experiment).set_index("strategy").loc["horovod-mpi"]
    assert alone["matches"] == 2, "runs of other repeats have other seeds and are no match"


def _with_second_runs(root, slower=0.0, duplicate=1.0, seconds=None):
    experiment, again = twice(root, slower)
    for path in again:
        parts = read_json(path)["seconds"]
        changed([path], seconds=parts | {"train": duplicate * parts["train"]})
    read = ("noise", "drift", "runs", "speedup")
    frames = tabled(experiment, series_files=again[:seconds], only=read)
    tables.write(frames, root / "tables")
    return frames


def test_the_noise_floor_is_the_ratio_of_a_reference_to_itself(tmp_path):
    frames = _with_second_runs(tmp_path)
    (row,) = frames["noise"].itertuples()
    assert (row.strategy, row.matches, row.sessions, row.kind) == ("single", 7, 1, "measured")
    expected = ratio_interval(DUPLICATE_RATIOS)
    assert (row.ratio, row.ratio_low, row.ratio_high) == pytest.approx(expected)
    assert row.floor == pytest.approx(expected.estimate - 1) and row.floor > 0
    assert len(frames["runs"]) == 3 * len(DUPLICATE_RATIOS)
    # An effect within it gets no verdict.
    frames = _with_second_runs(tmp_path, duplicate=1.03)
    mpi, gloo = (_row(frames["speedup"], name) for name in ("horovod-mpi", "horovod-gloo"))
    assert mpi["noise_floor"] == gloo["noise_floor"] == pytest.approx(0.0345, abs=0.001)
    assert (mpi["verdict"], gloo["verdict"]) == ("faster", "not distinguishable")
    assert gloo["detectable_decrease"] > 1 - 1 / (1 + gloo["noise_floor"])
    few = _with_second_runs(tmp_path, seconds=4)
    assert few["noise"]["matches"].tolist() == [4] and few["noise"]["floor"].isna().all()
    assert _with_second_runs(tmp_path, seconds=0)["noise"].empty


def test_second_runs_that_failed_or_are_of_another_session_give_no_ratio(tmp_path):
    experiment, again = twice(tmp_path)
    failed = {"status": "failed", "reason": "rank 0 was ended by signal 9"}
    changed(again[:3], **failed, seconds=None, step_seconds=None, samples_per_second=None,
            epochs=[], evaluation=None, weights_sha256=None)  # fmt: skip
    changed(again[3:], session="20260102T000000Z-1")
    for path in again[3:]:
        (path.parent / "sessions" / f"{SESSION}.json").unlink()
    for files, reason in (
        (again[:3], "second runs failed: rep 1, 2, 3: failed (rank 0 was ended by signal 9)"),
        (again[3:], "shares session and repeat"),
    ):
        (row,) = table_of("noise", experiment, series_files=files).itertuples()
        assert (row.matches, row.kind) == (0, "unavailable") and reason in row.reason


@pytest.mark.parametrize("slower", [0.0, 0.01])
def test_a_drift_of_a_session_is_detected(tmp_path, slower):
    """28 runs a minute apart, each 1 % slower than the one before, or none."""
    (row,) = _with_second_runs(tmp_path, slower)["drift"].itertuples()
    assert (row.session, row.runs, row.configurations, row.seconds) == (SESSION, 28, 3, 27 * 60)
    assert row.kind == "measured" and row.change_low <= row.change <= row.change_high
    assert row.detected == (slower > 0)
    if slower:
        assert row.change == pytest.approx(1.01**27 - 1, abs=0.05)
    else:
        assert row.change_low <= 0 <= row.change_high


def test_a_session_of_few_runs_or_of_one_moment_is_not_judged(tmp_path, three):
    (row,) = three[1]["drift"].itertuples()
    assert row.kind == "unavailable" and "same moment" in row.reason and pd.isna(row.detected)
    experiment, _ = twice(tmp_path)
    (row,) = tables.tables(experiment.runs[:5], only=["drift"])["drift"].itertuples()
    assert row.kind == "unavailable" and row.reason.startswith("5 runs") and "6" in row.reason


def test_intervals_over_repeats_have_the_level_of_the_experiment(tmp_path):
    experiment, again = twice(tmp_path)
    usual, looked = (
        tabled(experiment, series_files=again, level=level) for level in (0.95, LOOK_LEVEL)
    )
    for name, low, high in (
        ("speedup", "ratio_low", "ratio_high"),
        ("best_use", "run_ratio_low", "run_ratio_high"),
        ("noise", "ratio_low", "ratio_high"),
        ("mean_scores", "mean_low", "mean_high"),
    ):
        narrow, wide = usual[name], looked[name]
        known = narrow[low].notna()
        assert known.any(), name
        assert (wide[low][known] < narrow[low][known]).all(), name
        assert (wide[high][known] > narrow[high][known]).all(), name
    assert set(usual["speedup"]["level"]) == {0.95}
    assert set(looked["speedup"]["level"]) == set(looked["best_use"]["level"]) == {LOOK_LEVEL}


def _ladder(folder: Path, change=lambda paths: None, match="way-", rungs=slice(None)):
    experiment, paths, listed = laddered(folder)
    change(paths)
    series = [path for path in paths if path.parent.name.startswith(match)]
    return tabled(experiment, series_files=series, rungs=listed[rungs])


def _of(paths: list[Path], match: str) -> list[Path]:
    return [path for path in paths if path.parent.name.startswith(f"{match}.")]


@pytest.fixture(scope="module")
def ladders(tmp_path_factory):
    return _ladder(tmp_path_factory.mktemp("ladder"))


def test_rungs_come_first_then_their_product_and_what_was_measured_directly(ladders, tmp_path):
    table = ladders["ladder"]
    assert list(table["part"]) == ["rung", "rung", "product", "direct"]
    assert list(table["rung"].dropna()) == [1, 2]
    assert list(table["change"].dropna()) == ["from slow to slower", "from slower to fast"]
    assert list(table["ratio"]) == pytest.approx([1.25, 0.4, 0.5, 0.5])
    assert list(table["matches"]) == [2, 2, 2, 2]
    ends = table.set_index("part").loc["direct", ["before", "after"]].tolist()
    assert ends == ["horovod-mpi 1x2 slow", "horovod-mpi 1x2 fast"]
    # Medians of differences: 8 and 4 seconds before; 10 and 5, and 3.2 and 1.6, after.
    assert list(table["cost_seconds"]) == pytest.approx([-1.5, 3.6, 2.1, 3.0])
    interval = table.loc[1, ["cost_low_seconds", "cost_high_seconds"]].tolist()
    assert interval == pytest.approx([2.4, 4.8])
    tables.write(ladders, tmp_path)


@pytest.mark.parametrize(
    ("factors", "product", "interval", "verdict"),
    [
        ((1.0, 1.0), 1.0, (1, 1), "the changes explain it"),
        ((1.25, 1.25), 0.8, (0.8, 0.8), "the changes do not explain it"),
        # The rungs' matches give 0.5. Those of the ends 0.3 and 1.05, and 0.25 and 1: scattered.
        ((0.6, 2.1), 1.26**-0.5, (10 / 21, 1 / 0.6), "this may be chance, and more paired runs"),
        ((0.5, 2.0), 1.0, (0.5, 2.0), "it agrees, and more paired runs"),
        # Apart for sure, and perhaps by less than a tenth.
        (
            (0.85, 0.95),
            0.8075**-0.5,
            (1 / 0.95, 1 / 0.85),
            "this may be chance, and more paired runs",
        ),
    ],
)
def test_a_product_far_from_the_ends_is_said_unless_it_may_be_chance(
    tmp_path, factors, product, interval, verdict
):
    """The times of the fast configuration are multiplied, where the ends are measured directly."""

    def slow(run: dict) -> None:
        for epoch in run["epochs"] if run["variant"] == "fast" else []:
            epoch["epoch_wall_seconds"] *= factors[run["repeat"] - 1]

    frames = _ladder(tmp_path, lambda paths: rewritten(_of(paths, "way-ends"), slow))
    row = frames["ladder"].set_index("part").loc["product"]
    columns = [f"product_to_ends{end}" for end in ("", "_low", "_high")]
    assert row[columns].tolist() == pytest.approx([product, *interval])
    [text] = [text for text in told(frames, "why") if "the ratio of the ends" in text]
    low, high = interval
    assert f"{abs(product - 1):.0%}".removesuffix("%") + " %" in text
    assert f"{low:.2f}–{high:.2f}" in text and verdict in text


def test_rungs_without_a_ratio_are_gaps_that_are_named(tmp_path):
    """Some are of another session, some failed, and a ladder may have no product."""

    def move(paths: list[Path]) -> None:
        changed(_of(paths, "way-1")[::2], session="20250101T000000Z-1")

    table = _ladder(tmp_path / "moved", move)["ladder"]
    assert list(table["kind"]) == ["unavailable", "measured", "unavailable", "measured"]
    assert "share session and repeat" in table["reason"][0] and "rung 1" in table["reason"][2]
    assert table["product_to_ends"].isna().all()

    def fail(paths: list[Path]) -> None:
        changed(_of(paths, "way-2")[1:3], status="failed", reason="rank 1 was ended by signal 9")

    frames = _ladder(tmp_path / "failed", fail)
    assert frames["ladder"]["reason"][1] == "fast rep 1: failed: rank 1 was ended by signal 9"
    assert "no ratio of rung 2" in " ".join(told(frames, "why"))
    with common.style():
        common.save(ladder.draw(frames), tmp_path / "ladder.svg")
    assert "from slower to fast: fast rep 1: failed" in (tmp_path / "ladder.svg").read_text()
    alone = _ladder(tmp_path / "alone", match="way-2.", rungs=slice(1, 2))["ladder"]
    assert alone[["part", "ratio"]].to_numpy().tolist() == [["rung", pytest.approx(0.4)]]


MODEL = {"power_model": {"node_watts": 40.0, "core_watts": 10.0}}


def device(name: str, joules: float, idle_watts: float | None = 0.0, used: bool | None = True):
    source = "nvml" if name.startswith("gpu") else "rapl"
    return {
        "device": name, "source": source, "joules": joules, "idle_watts": idle_watts,
        "used": used, "samples": 9,
    }  # fmt: skip


def add_energy(
    of: FakeExperiment, strategy: str, layout: str, seconds: float, *runs: list[dict] | str, **more
) -> list[Path]:
    """Add energy runs of a configuration: the devices of each, or the reason why there are none."""
    template = next(path for path in of.runs if f"/{strategy}/{layout}/" in str(path))
    files = []
    for repeat, devices in enumerate(runs, start=1):
        run = copy.deepcopy(read_json(template)) | {"instrument": "energy", "repeat": repeat}
        if isinstance(devices, str):
            run |= {"status": "unavailable", "reason": devices}
        else:
            run["epochs"] = [run["epochs"][0] | {"train_seconds": seconds}]
            run["seconds"]["train"] = seconds
            known = all(each["idle_watts"] is not None for each in devices)
            reason = None if known else "no time between the two moments"
            node = {"node": 0, "seconds": seconds, "idle_reason": reason, "devices": devices}
            run["energy"] = [node | more]
        validate_run(run)
        files.append(template.parents[1] / f"energy.rep{repeat}" / "run.json")
        write_json(files[-1], run)
    return files


def energy_frames(of: FakeExperiment, files: list[Path], references=None, **settings):
    more = {"references": references} if references else {}
    return tabled(of, probe_files=files, probe_settings={"energy": settings}, **more)


def energy_table(
    of: FakeExperiment, files: list[Path], references=None, **settings
) -> pd.DataFrame:
    found = energy_frames(of, files, references, **settings)
    tables.write(found, of.root / "tables")
    return found["energy"].set_index(["strategy", "layout", "basis"])


def energy_sentences(of: FakeExperiment, files: list[Path], **settings) -> list[str]:
    report = Report(energy_frames(of, files, **settings), of.name)
    return [each.text for each in section_findings("cost", report) if each.table == "energy"]


@pytest.fixture
def energetic(tmp_path) -> FakeExperiment:
    made = FakeExperiment(tmp_path).add_dataset()
    return made.add("single", "1x1", 10.0).add("horovod-mpi", "1x2", 6.0)


def test_the_table_has_the_form_of_the_published_one(tmp_path):
    """Cruz Varona 2021: MJ and energy × time relative to one GPU, without and with idle devices.

    The energies and speed-ups are his, and so are the expected ratios, which he rounded.
    """
    made = FakeExperiment(tmp_path).add_dataset()
    seconds, e, files = 1000.0, 1e6, []
    published = {
        ("single", "1x1"): (11.8, (8.48, 1.31, 1.31), 0, (8.48, 11.1, 86.7, 103.8)),
        ("mirrored", "1x1"): (1.0, (0.17, 1.0, 0.11), 1, (1.17, 1.28, 1, 1)),
        ("mirrored", "1x2"): (1 / 1.79, (0.15, 0.5, 0.5), 2, (1.15, 1.15, 0.56, 0.51)),
    }
    for names, (times, joules, gpus, _) in published.items():
        made.add(*names, 10.0)
        devices = [
            device(f"gpu{number - 1}" if number else "package-0", each * e, used=number <= gpus)
            for number, each in enumerate(joules)
        ]
        files += add_energy(made, *names, times * seconds, devices)
    found = energy_table(made, files, references=[{"strategy": "mirrored", "layout": "1x1"}])
    for names, (*_, (used, every, edp_used, edp_every)) in published.items():
        for basis, total, edp in (("used", used, edp_used), ("all", every, edp_every)):
            row = found.loc[(*names, f"{basis} devices")]
            assert row["kind"] == "measured"
            assert row["joules_per_epoch"] == pytest.approx(total * e, rel=0.005)
            assert row["edp_ratio"] == pytest.approx(edp, rel=0.025)


def test_medians_ratios_and_intervals_are_those_of_plain_loops(energetic):
    random = np.random.default_rng(0)
    mine, theirs = random.uniform(500, 900, 4), random.uniform(800, 1200, 4)
    files = []
    for joules, *configuration in (
        (theirs, "single", "1x1", 10.0),
        (mine, "horovod-mpi", "1x2", 6.0),
    ):
        runs = ([device("package-0", j, 10.0), device("dram-0", 50.0, 2.0)] for j in joules)
        files += add_energy(energetic, *configuration, *runs)
    found = energy_table(energetic, files, grams_co2_per_kwh=200.0)
    row, total = found.loc[("horovod-mpi", "1x2", "all devices")], np.median(mine) + 50
    assert row["joules_per_epoch"] == pytest.approx(total)
    assert row["joules_per_epoch_low"] == pytest.approx(mine.min() + 50)
    assert row["joules_per_epoch_high"] == pytest.approx(mine.max() + 50)
    assert row["watts"] == pytest.approx(total / 6)
    assert row["energy_delay_product"] == pytest.approx(total * 6)
    quotients = (mine + 50) / (theirs + 50)
    assert row["energy_ratio"] == pytest.approx(ratio_interval(quotients).estimate)
    product = next_time_interval(ratio_interval(quotients * 6 / 10), *deviation_of_sessions([]))
    assert row["edp_ratio_high"] == pytest.approx(product.high)
    assert row["verdict"] == NO_VERDICT
    assert (row["matches"], row["runs"], row["source"]) == (4, 4, "rapl")
    assert row["devices"] == "package-0;dram-0"
    assert row["grams_co2_per_epoch"] == pytest.approx(total / 3.6e6 * 200)
    above = found.loc[("horovod-mpi", "1x2", "above idle")]
    assert above["joules_per_epoch"] == pytest.approx(total - 12 * 6)
    reference = found.loc[("single", "1x1", "all devices")]
    assert (reference["energy_ratio"], reference["edp_ratio"]) == (1, 1)
    assert pd.isna(reference["energy_ratio_low"])
    [text] = energy_sentences(energetic, files)
    assert "`horovod-mpi 1x2`" in text and "`single 1x1`" in text
    ends = (row[f"energy_ratio{end}"] for end in ("", "_low", "_high"))
    assert all(f"{value:.2f}" in text for value in ends) and not energy_sentences(energetic, [])
    timed = [read_json(path) for path in energetic.runs if "/1x2/" in str(path)]
    hours = [2 * sum(e["train_seconds"] for e in run["epochs"]) / 3 / 3600 for run in timed]
    assert row["core_hours_per_epoch"] == pytest.approx(np.median(hours))


def test_energy_that_was_not_measured_is_unavailable_and_not_zero(energetic):
    """Its core-hours are known."""
    files = add_energy(energetic, "single", "1x1", 10.0, *["this node has no energy counters"] * 2)
    found = energy_table(energetic, files)
    assert len(found) == 3 and set(found["kind"]) == {"unavailable"}
    reason = "rep 1, 2: unavailable (this node has no energy counters)"
    assert set(found["reason"]) == {reason} and set(found["runs"]) == {0}
    energy_columns = [
        n for n in found if n.startswith(("joules", "edp", "energy", "watts", "grams"))
    ]
    assert found[energy_columns].isna().all(axis=None)
    assert (found["core_hours_per_epoch"] > 0).all()


def test_the_users_model_estimates_what_was_not_measured(energetic):
    """Two cores of one node for six seconds, by the timing runs."""
    files = add_energy(energetic, "horovod-mpi", "1x2", 6.0, "no energy counters")
    found = energy_table(energetic, files, **MODEL)
    row, above = (
        found.loc[("horovod-mpi", "1x2", basis)] for basis in ("all devices", "above idle")
    )
    assert (row["kind"], row["source"], row["runs"]) == ("estimated", "power_model", 3)
    assert row["reason"] == "rep 1: unavailable (no energy counters)"
    assert row["watts"] == pytest.approx(60) and above["watts"] == pytest.approx(20)
    assert row["joules_per_epoch"] == pytest.approx(60 * row["seconds_per_epoch"])
    assert pd.isna(row["devices"])
    reference = found.loc[("single", "1x1", "all devices")]
    assert (reference["kind"], reference["energy_ratio"]) == ("estimated", 1)
    assert row["energy_ratio"] == pytest.approx(0.6 * 60 / 50, rel=0.15)
    assert row["matches"] == 3
    [text] = energy_sentences(energetic, files, **MODEL)
    assert "estimated" in text and f"{row['energy_ratio']:.2f}" in text
    [text] = energy_sentences(energetic, files)
    assert text.endswith("unavailable: `rep 1: unavailable (no energy counters)`.")
    # An estimate is not compared with a measurement.
    files = add_energy(energetic, "horovod-mpi", "1x2", 6.0, [device("package-0", 500.0)])
    row = energy_table(energetic, files, **MODEL).loc[("horovod-mpi", "1x2", "all devices")]
    assert row["kind"] == "measured" and pd.isna(row["energy_ratio"])
    assert "the energy of the reference is of another source" in row["reason"]


def test_a_basis_whose_quantity_is_not_known_is_unavailable_with_the_reason(energetic):
    devices = [device("node", 500.0, None), device("node/accel0", 70.0, None, used=None)]
    files = add_energy(energetic, "single", "1x1", 10.0, devices)
    found = energy_table(energetic, files)
    assert found.loc[("single", "1x1", "all devices"), "joules_per_epoch"] == 570
    used, above = (found.loc[("single", "1x1", b)] for b in ("used devices", "above idle"))
    assert (used["kind"], above["kind"]) == ("unavailable", "unavailable")
    assert used["reason"] == "node/accel0: it is not known whether it computed"
    assert above["reason"].startswith("the idle power was not measured: no time")


@pytest.mark.parametrize(("accuracies", "epochs"), [((0.1, 0.96, 0.9), 2), ((0.1, 0.2, 0.3), None)])
def test_the_energy_to_a_score_counts_the_epochs_of_timing_runs(energetic, accuracies, epochs):
    for path in energetic.runs:
        done = zip(read_json(path)["epochs"], accuracies, strict=True)
        changed([path], epochs=[epoch | {"validation_accuracy": each} for epoch, each in done])
    files = add_energy(energetic, "single", "1x1", 10.0, [device("package-0", 100.0)])
    row = energy_table(energetic, files).loc[("single", "1x1", "all devices")]
    joules = row["joules_to_target"]
    assert (None if pd.isna(joules) else joules) == (epochs and 100 * epochs)


def predicted(folder, runs, bounds: dict) -> list[dict]:
    """Return predictions for two of some runs, and one with bounds."""
    calibration = CalibrationExperiment(experiment())
    content = parse(document(write_runs(folder, calibration))[0])
    row = next(
        each
        for each in predictions.predict_rows(content, plan_works(calibration), {"small": 640})
        if each["layout"] == "1x2"
    )
    names = [{name: read_json(run)[name] for name in predictions.CONFIGURATION} for run in runs]
    return [row | names[0] | {"global_batch": 32}, row | names[1] | bounds]


def test_a_key_that_the_schema_lacks_is_refused():
    assert base.frame("looks", [{"layout": "1x2"}])["layout"].tolist() == ["1x2"]
    with pytest.raises(KeyError, match=r"looks\.schema\.yaml has no column lay_out"):
        base.frame("looks", [{"layout": "1x2", "lay_out": "1x2"}])


def test_each_column_of_each_table_is_made_by_some_row(tmp_path, monkeypatch):
    made: dict[str, set[str]] = {}

    def frame(name: str, rows):
        rows = list(rows)
        made.setdefault(name, set()).update(*rows)
        return base.frame(name, rows)

    monkeypatch.setattr(tables, "frame", frame)
    folders = (tmp_path / str(number) for number in range(99))
    scaled = FakeExperiment(next(folders)).add_dataset()
    for layout, seconds in (("1x1", 5.0), ("1x2", 3.0), ("1x4", 2.0)):
        strategy = "single" if layout == "1x1" else "horovod-mpi"
        scaled.add(strategy, layout, seconds, rows=32)
    for file in scaled.dataset_files:
        write_json(file, read_json(file) | {"baselines": {"majority": {"accuracy": 0.2}}})
    epochs = read_json(scaled.runs[0])["epochs"]
    further = {"distinct_rows": 64, "validation_loss": 0.5}
    changed(scaled.runs[:1], epochs=[each | further for each in epochs])
    tabled(scaled)

    energetic = FakeExperiment(next(folders)).add_dataset()
    energetic.add("single", "1x1", 10.0).add("horovod-mpi", "1x2", 6.0)
    files = [
        file
        for names in (("single", "1x1"), ("horovod-mpi", "1x2"))
        for file in add_energy(energetic, *names, 10.0, *[[device("package-0", 100.0)]] * 2)
    ]
    tabled(
        energetic,
        probe_files=files,
        probe_settings={"energy": MODEL | {"grams_co2_per_kwh": 200.0}},
    )

    of, probed = clocked(next(folders))
    bounds = {"basis": "bounds", "ratio_low": 0.5, "ratio_high": 0.9}
    machine = read_json(probed[0])["ranks"]["machines"][0]
    content = {"machine": machine, "configurations": predicted(next(folders), probed, bounds)}
    write_json(tmp_path / "predictions.json", content)
    tabled(of, probe_files=probed, predictions_file=tmp_path / "predictions.json")

    of, again = twice(next(folders))
    looks = dict.fromkeys(LOOKED_AT) | {"repeats": 7, "goes_on": False, "ended": "it"}
    write_json(tmp_path / "looks.json", {"looks": [looks]})
    tabled(of, series_files=again, looks_file=tmp_path / "looks.json")

    of, files, rungs = laddered(next(folders))
    tabled(of, series_files=files, rungs=rungs)
    tabled(test_study.experiment(next(folders)), scaling=test_study.settings())
    tabled(fair(next(folders), 5.6, 4.6, 3.9), references=REFERENCES)
    folder = next(folders)
    tabled(
        FakeExperiment(folder).add_dataset().add("single", "1x1", 5.0), probe_files=sampled(folder)
    )
    of, files = test_attribution.traced(next(folders))
    tabled(of, probe_files=files)
    for make in (regression, with_epoch_scores, with_fits, program, test_scaling.with_core_time):
        tabled(make(next(folders)))

    missing = {name: sorted(dtypes(name).keys() - made.get(name, ())) for name in tables.TABLES}
    assert not {name: columns for name, columns in missing.items() if columns}
