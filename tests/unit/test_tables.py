"""Result tables from the files a sweep leaves."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterable

import jsonschema
import numpy as np
import pandas as pd
import pytest
from fixtures_runs import (
    DUPLICATE_RATIOS,
    ERRORS,
    SESSION,
    FakeExperiment,
    changed,
    regression,
    sampled,
    three_configurations,
    twice,
    with_epoch_scores,
    with_fits,
)
from pages import tabled
from scipy import stats
from sentences import told

from escala.analysis.comparable import CONFIGURATION
from escala.analysis.statistics import (
    Interval,
    deviation_of_sessions,
    next_time_interval,
    ratio_interval,
)
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.record.schema import validate_run
from escala.report import pilot, tables
from escala.report.tables import views
from escala.report.tables.scores import STAGES

pytestmark = pytest.mark.usefixtures("few_resamples")


def _row(
    frame: pd.DataFrame, strategy: str, layout: str = "1x2", basis: str = "epoch"
) -> pd.Series:
    if "basis" in frame:
        frame = frame[frame["basis"] == basis]
    (_, row), *more = frame[
        (frame["strategy"] == strategy) & (frame["layout"] == layout)
    ].iterrows()
    assert not more
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


def test_a_class_without_test_rows_has_no_rates(tmp_path):
    experiment = FakeExperiment(tmp_path, seeds=(4, 5)).add_dataset()
    frames = tabled(experiment.add("single", "1x1", 5.0, repeats=2, accuracy=0.5, untested="SARS"))
    tables.write(frames, tmp_path / "tables")
    pooled, rates = frames["pooled"].set_index("class"), ["precision", "recall", "f1"]
    assert pooled.loc["SARS", "predicted"] > 0 and pooled.loc["SARS", rates].isna().all()
    assert pooled.drop("SARS")[rates].notna().all(axis=None)
    assert views.classes_without_tests(frames["pooled"]) == ["SARS (demo-1000)"]
    assert frames["reports"].set_index("class").loc["SARS", rates].isna().all(axis=None)


def test_no_cell_of_text_is_a_formula_and_it_is_read_as_it_was(three, tmp_path):
    texts = [
        "=HYPERLINK(1)",
        "+1+2",
        "-x",
        "@SUM",
        "\tx",
        "'=quoted",
        "'plain",
        "a=b",
        "-1",
        "+2.5",
    ]
    _, frames = three
    classes = pd.concat([frames["classes"]] * len(texts), ignore_index=True).head(len(texts))
    frames = frames | {"classes": classes.assign(**{"class": pd.array(texts, "string")})}
    tables.write(frames, tmp_path)
    with (tmp_path / "classes.csv").open(newline="") as file:
        cells = [row["class"] for row in csv.DictReader(file)]
    for cell in cells:
        assert not cell.startswith(("=", "@", "\t")) and cell[:2] not in ("+1+", "-x")
    # Numbers stay numbers, and other texts as they are.
    assert cells[-3:] == texts[-3:] and cells[6] == "'plain"
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


def test_a_failed_run_is_a_row_with_its_reason(three):
    runs = three[1]["runs"]
    assert len(runs) == 9
    failed = runs[runs["status"] == "failed"].iloc[0]
    told = failed[["strategy", "repeat", "reason"]].tolist()
    assert told == ["horovod-gloo", 3, "rank 1 was ended by signal 9"]
    assert pd.isna(failed["train_seconds"])
    row = _row(three[1]["configurations"], "horovod-gloo")
    assert row[["runs_ok", "runs_failed", "kind"]].tolist() == [2, 1, "measured"]


def test_scores_and_classes_are_those_of_the_files(three):
    experiment, frames = three
    reports, evaluation = frames["reports"], read_json(experiment.runs[0])["evaluation"]
    mine = reports[(reports["strategy"] == "single") & (reports["repeat"] == 1)]
    assert list(mine["level"]) == ["class"] * 5 + ["macro", "weighted", "accuracy"]
    assert mine["accuracy"].iloc[-1] == evaluation["accuracy"]
    found = mine[mine["class"] == "COVID"].iloc[0]
    scores = found[["precision", "recall", "f1", "support"]].to_dict()
    assert scores == evaluation["per_class"]["COVID"]
    covid = frames["classes"].set_index("class").loc["COVID"]
    assert covid[list(STAGES)].tolist() == [900, 900, 630, 630, 270]


def test_speedup_is_the_inverse_of_the_ratio(three):
    speedup = three[1]["speedup"]
    assert set(speedup["strategy"]) == {"horovod-mpi", "horovod-gloo"}
    row = _row(speedup, "horovod-mpi")
    assert row["matches"] == 3
    assert 0.5 < row["ratio_low"] <= row["ratio"] <= row["ratio_high"] < 0.65
    assert row["speedup"] == pytest.approx(1 / row["ratio"])
    assert row["speedup_high"] == pytest.approx(1 / row["ratio_low"])
    assert row["efficiency"] == pytest.approx(row["speedup"] / 2)
    assert row["verdict"] == "no verdict" and pd.isna(row["detectable_decrease"])
    assert _row(speedup, "horovod-gloo")["matches"] == 2


def test_a_further_reference_that_a_workload_lacks_is_left_out_and_the_main_one_is_not(three):
    """An experiment of several workloads lists the references of all."""
    strategies = ("torch-single", "single", "mirrored")
    listed = tuple({"strategy": each, "layout": "1x1"} for each in strategies)
    speedup = tabled(three[0], references=listed)["speedup"]
    of_mpi = speedup[(speedup["strategy"] == "horovod-mpi") & (speedup["basis"] == "epoch")]
    found = of_mpi.set_index("reference")
    assert list(found["kind"]) == ["unavailable", "measured"] and list(found.index) == [1, 2]
    assert "has no torch-single 1x1 tuned" in found.loc[1, "reason"]


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
    configurations = tabled(experiment)["configurations"]
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
    experiment.add("single", "1x1", 10.0, len(single))
    experiment.add("horovod-mpi", "1x2", 10.0, len(parallel))
    # The epochs of another variant do not count, nor those of runs that failed.
    experiment.add("single", "1x1", 10.0, 5, variant="other")
    _reach_target(experiment, [*single, *parallel, *[1] * 5])
    changed(experiment.runs[-5:-2], variant="tuned", status="failed", reason="no luck")
    run = read_json(experiment.runs[len(single)])
    row = {name: run[name] for name in CONFIGURATION} | {"ranks": 2, "global_batch": batch}
    row |= {"basis": "predicted", "reason": None}
    row |= {
        f"predicted{end}_seconds_per_epoch": seconds
        for end, seconds in (("", 8.0), ("_low", 7.0), ("_high", 9.0))
    }
    one = row | {"strategy": "single", "layout": "1x1", "ranks": 1, "global_batch": 32}
    file = tmp_path / "predictions.json"
    machine = run["ranks"]["machines"][0]
    write_json(file, {"machine": machine, "configurations": [row, one]})
    frames = tabled(experiment, predictions_file=file)
    found, alone = frames["predictions"].to_dict("records")
    seconds = found["predicted_seconds_to_target"]
    assert (None if pd.isna(seconds) else seconds) == expected
    # Its own runs predict nothing.
    assert pd.isna(alone["predicted_seconds_to_target"])


def test_predictions_are_compared_row_by_row(tmp_path):
    experiment = FakeExperiment(tmp_path, seeds=(4, 5)).add_dataset()
    experiment.add("single", "1x1", 10.0, repeats=2, accuracy=1)
    experiment.add("horovod-mpi", "1x2", 10.0, repeats=3, accuracy=1)
    missed = experiment.runs[2].with_name("predictions.npy")
    predictions = np.load(missed)
    predictions[:27] = 1
    np.save(missed, predictions)
    table = tabled(experiment)["score_differences"]
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
    covid = tabled(experiment)["score_differences"].set_index("class").loc["COVID"]
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


@pytest.mark.parametrize(
    ("made", "name", "score", "rows", "expected"),
    [
        (regression, "scores", "rmse", 6, ERRORS["single"]),
        (with_epoch_scores, "epoch_scores", "bleu", 12, [0.1, 0.3, 0.2, 0.2, 0.3, 0.4]),
    ],
)
def test_scores_that_a_workload_brings_are_a_table(
    tmp_path, three, made, name, score, rows, expected
):
    experiment = made(tmp_path)
    frames = tabled(experiment)
    scores = frames[name]
    assert set(scores["score"]) == {score} and len(scores) == rows and three[1][name].empty
    assert scores[scores["strategy"] == "single"]["value"].tolist() == list(expected)
    if made is regression:
        for other in ("pooled", "reports", "confusion", "leakage"):
            assert frames[other].empty
    tables.write(frames, tmp_path / "tables")
    pd.testing.assert_frame_equal(tables.read(tmp_path / "tables")[name], scores)
    changed(experiment.runs[:1], training={"steps_per_epoch": 1000})
    left = len(tabled(experiment)[name])
    assert left == rows - rows // len(experiment.runs), "an epoch that was cut has no scores"


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
    means = tabled(experiment)["mean_scores"].set_index("strategy")
    single, parallel = means.loc["single"], means.loc["horovod-mpi"]
    assert pd.isna(single["reference"]) and single["kind"] == "unavailable"
    expected = stats.ttest_1samp(ERRORS["single"], 0).confidence_interval()
    assert single[["mean_low", "mean_high"]].tolist() == pytest.approx(list(expected))
    expected = stats.ttest_rel(ERRORS["horovod-mpi"], ERRORS["single"]).confidence_interval()
    assert parallel["difference"] == pytest.approx(0.1) and parallel["matches"] == 3
    ends = parallel[["difference_low", "difference_high"]].tolist()
    assert ends == pytest.approx(list(expected))
    changed(experiment.runs[:1], repeat=7)
    alone = tabled(experiment)["mean_scores"].set_index("strategy").loc["horovod-mpi"]
    assert alone["matches"] == 2, "runs of other repeats have other seeds and are no match"


def test_a_score_that_a_run_leaves_out_is_the_mean_of_the_other_runs(tmp_path):
    experiment = regression(tmp_path)
    changed(experiment.runs[:1], evaluation={"rows": 705, "scores": {"bias": 0.3}})
    means = tabled(experiment)["mean_scores"].set_index(["strategy", "score"])
    assert means.loc[("single", "bias"), ["runs", "mean"]].tolist() == [1, 0.3]
    single, parallel = (means.loc[(name, "rmse")] for name in ERRORS)
    assert single["runs"] == 2 and single["mean"] == pytest.approx(np.mean(ERRORS["single"][1:]))
    assert parallel["runs"] == 3 and parallel["matches"] == 2


def test_resources_have_a_row_for_each_process_and_one_for_a_run_that_failed(tmp_path):
    frame = tables.tables(probe_files=sampled(tmp_path))["resources"]
    assert frame["status"].tolist() == ["ok", "ok", "failed"]
    assert frame["rank"].tolist()[:2] == [0, 1] and pd.isna(frame["rank"].iloc[2])
    assert frame["sent_bytes"].isna().all(), "what was not read is no zero"
    tables.write({"resources": frame}, tmp_path)


def _with_second_runs(root, slower=0.0, duplicate=1.0, seconds=None):
    experiment, again = twice(root, slower)
    for path in again:
        parts = read_json(path)["seconds"]
        changed([path], seconds=parts | {"train": duplicate * parts["train"]})
    frames = tabled(experiment, series_files=again[:seconds])
    tables.write(frames, root / "tables")
    return tables.read(root / "tables")


def test_the_noise_floor_is_the_ratio_of_a_reference_to_itself(tmp_path):
    frames = _with_second_runs(tmp_path)
    (row,) = frames["noise"].itertuples()
    assert (row.strategy, row.matches, row.sessions, row.kind) == ("single", 7, 1, "measured")
    expected = ratio_interval(DUPLICATE_RATIOS)
    assert (row.ratio, row.ratio_low, row.ratio_high) == pytest.approx(expected)
    assert row.floor == pytest.approx(expected.estimate - 1) and row.floor > 0
    assert len(frames["runs"]) == 3 * len(DUPLICATE_RATIOS)


def test_an_effect_within_the_noise_floor_gets_no_verdict(tmp_path):
    frames = _with_second_runs(tmp_path, duplicate=1.03)
    mpi, gloo = (_row(frames["speedup"], name) for name in ("horovod-mpi", "horovod-gloo"))
    assert mpi["noise_floor"] == gloo["noise_floor"] == pytest.approx(0.0345, abs=0.001)
    assert mpi["verdict"] == "faster" and mpi["sessions"] == 1
    assert gloo["verdict"] == "not distinguishable"
    assert gloo["detectable_decrease"] > 1 - 1 / (1 + gloo["noise_floor"])
    few = _with_second_runs(tmp_path, seconds=5)
    assert few["noise"]["matches"].tolist() == [5] and few["noise"]["floor"].isna().all()
    without = _with_second_runs(tmp_path, seconds=0)
    assert without["noise"].empty


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
        (row,) = tabled(experiment, series_files=files)["noise"].itertuples()
        assert (row.matches, row.kind) == (0, "unavailable") and reason in row.reason


@pytest.mark.parametrize("slower", [0.0, 0.01])
def test_a_drift_of_a_session_is_detected(tmp_path, slower):
    """28 runs a minute apart, each 1 % slower than the one before, or none."""
    frames = _with_second_runs(tmp_path, slower)
    (row,) = frames["drift"].itertuples()
    assert (row.session, row.runs, row.configurations, row.seconds) == (SESSION, 28, 3, 27 * 60)
    assert row.kind == "measured" and row.change_low <= row.change <= row.change_high
    if slower:
        assert row.detected and row.change == pytest.approx(1.01**27 - 1, abs=0.05)
    else:
        assert row.change_low <= 0 <= row.change_high and not row.detected


def test_a_session_of_few_runs_or_of_one_moment_is_not_judged(tmp_path, three):
    (row,) = three[1]["drift"].itertuples()
    assert row.kind == "unavailable" and "same moment" in row.reason and pd.isna(row.detected)
    experiment, _ = twice(tmp_path)
    (row,) = tables.tables(experiment.runs[:5], experiment.dataset_files)["drift"].itertuples()
    assert row.reason == "5 runs, and a drift is judged by at least 6"


PILOT = {"half_width": "2 %", "repeats": 4, "at_most": 7}


def _piloted(root, **matches):
    """The tables of an experiment of seven repeats, four of which are the pilot."""
    experiment, again = twice(root)
    pilot_runs = [path for path in experiment.runs if int(path.parent.name[3:]) <= PILOT["repeats"]]
    plan = pilot.plan(tables.Evidence(pilot_runs), PILOT | matches)
    write_json(root / "pilot.json", plan)
    frames = tabled(experiment, series_files=again, pilot_file=root / "pilot.json")
    tables.write(frames, root / "tables")
    return plan, tables.read(root / "tables")


def _ratios(frames, strategy):
    runs = frames["runs"].set_index(["strategy", "repeat"])["train_seconds_per_epoch"]
    return (runs[strategy] / runs["single"]).to_numpy(float)


def test_a_pilot_asks_for_as_many_pairs_as_its_most_varied_ratio(tmp_path):
    plan, frames = _piloted(tmp_path)
    for row in plan["comparisons"]:
        ratios = _ratios(frames, row["strategy"])[:4]
        assert row["pilot_matches"] == 4
        assert row["deviation"] == pytest.approx(np.std(np.log(ratios), ddof=1))
        # The rule, computed with Student's quantile of three degrees of freedom.
        asked = (3.182446 * row["deviation"] / np.log(1.02)) ** 2
        # Two configurations are compared, and a verdict on the best of them takes six.
        assert row["needed"] == max(6, int(np.ceil(asked)))
    assert plan["repeats"] == max(row["needed"] for row in plan["comparisons"])
    table = frames["pilot"].set_index("strategy")
    assert table["needed"].to_dict() == {r["strategy"]: r["needed"] for r in plan["comparisons"]}
    assert not table["cut"].any()


def test_a_pilot_whose_runs_failed_asks_for_nothing(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset()
    failed = dict.fromkeys((1, 2, 3), ("failed", "rank 1 was ended by signal 9"))
    experiment.add("single", "1x1", 5.0).add("horovod-mpi", "1x2", 3.0, failed=failed)
    plan = pilot.plan(tables.Evidence(experiment.runs), PILOT)
    assert plan["repeats"] == 4
    (row,) = plan["comparisons"]
    assert (row["pilot_matches"], row["deviation"], row["needed"]) == (0, None, None)
