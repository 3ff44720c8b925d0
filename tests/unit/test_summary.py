"""The summary says what the tables hold, and no more."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import (
    REFERENCES,
    FakeExperiment,
    changed,
    clocked,
    fair,
    regression,
    three_configurations,
    with_epoch_scores,
    with_fits,
)

from escala.analysis import statistics
from escala.core.files import read_json, write_json
from escala.report import tables
from escala.report.findings import answers
from escala.report.summary import summary


@pytest.fixture(scope="module", autouse=True)
def few_resamples():
    """Draw few bootstrap samples: what the sentences say does not depend on the last digit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "RESAMPLES", 199)
        yield


def _sentences(experiment: FakeExperiment) -> list[str]:
    frames = tables.tables(experiment.runs, experiment.dataset_files, experiment.class_files)
    text = summary(frames, "demo", "A title", ["figures/speedup.svg"])
    title, *sentences = text.split("\n\n")[:7]
    assert title == "# A title"
    assert "- [speedup.svg](figures/speedup.svg)" in text
    return sentences


@pytest.fixture(scope="module")
def three(few_resamples, tmp_path_factory):
    return _sentences(three_configurations(tmp_path_factory.mktemp("three")))


def test_it_says_what_was_run_on_what_and_where(three):
    setting = three[1]
    assert setting.startswith(
        "3 configurations were timed on Example CPU @ 2.00GHz (2 cores available, 8.0 GiB), each 2 "
        "to 3 times. They train virus-cnn on demo-1000 (simulated data, "
    )


def test_machines_of_superseded_runs_are_not_named(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    [newest, *_] = experiment.runs
    run = read_json(newest)
    older = {"session": "20250101T000000Z-1", "started": "2025-01-01T00:00:00+00:00"}
    older["machine"] = run["machine"] | {"cpu": "Old CPU"}
    write_json(newest.parent / "sessions" / "20250101T000000Z-1.json", run | older)
    frames = tables.tables(experiment.runs, experiment.dataset_files, experiment.class_files)
    assert "Old CPU" in set(frames["runs"]["cpu"])
    _, _, setting, *_ = summary(frames, "demo", "A title").split("\n\n")
    assert (
        "timed on Example CPU @ 2.00GHz (2 cores available, 8.0 GiB), 3 times. It trains" in setting
    )


def _of_fair(folder: Path, *seconds: float, repeats: int = 7, change=None) -> str:
    """Return the answer of an experiment with equal batches and two references."""
    experiment = fair(folder, *seconds, repeats)
    if change:
        changed([path for path in experiment.runs if "horovod-mpi" in path.parts], **change)
    frames = tables.tables(
        experiment.runs, experiment.dataset_files, experiment.class_files, references=REFERENCES
    )
    return summary(frames, "demo", "A title").split("\n\n")[1]


def test_the_first_lines_answer_with_equal_batches_and_set_threads_beside(tmp_path):
    answer = _of_fair(tmp_path, 5.6, 4.6, 3.9)
    expected = (
        "**Yes: two processes (horovod-mpi 1x2 tuned) take 0.70 of the time of one process on one "
        "core** (*), with equal batches of 64 rows and the same scores (within 0.000 in every "
        "class). Two processes take less time than one process with 2 cores as threads (single 1x1 "
        "threads): 0.85 of it (*). That reference itself takes 0.83 of the time of one process on "
        "one core (*)."
    )
    assert re.sub(r"95 % interval 0\.\d\d–0\.\d\d, 7 pairs", "*", answer) == expected


@pytest.mark.parametrize(
    ("seconds", "verdict", "threads"),
    [
        ((4.0, 4.0, 5.6), "No", "more time than"),
        ((5.6, 3.0, 3.9), "Yes", "more time than"),
        ((5.6, 3.9, 3.9), "Yes", "are not distinguishable. That"),
        ((4.0, 4.0, 4.0), "Not distinguishable", "are not distinguishable. That"),
    ],
)
def test_an_answer_takes_an_interval_that_excludes_one(tmp_path, seconds, verdict, threads):
    answer = _of_fair(tmp_path, *seconds)
    assert answer.startswith(f"**{verdict}: two processes")
    assert threads in answer.partition("Two processes take")[2]


@pytest.mark.parametrize(("repeats", "verdict"), [(5, "No verdict from 5 pairs"), (6, "Yes")])
def test_a_verdict_takes_as_many_pairs_as_an_interval(tmp_path, repeats, verdict):
    """The range of five values covers their median with a probability of 94 %."""
    experiment = fair(tmp_path, 5.6, 4.6, 3.0, repeats=repeats)
    frames = tables.tables(
        experiment.runs, experiment.dataset_files, experiment.class_files, references=REFERENCES
    )
    answer = summary(frames, "demo", "A title").split("\n\n")[1]
    assert answer.startswith(f"**{verdict}: two processes")
    assert answer.count("No verdict") == (repeats < 6)
    assert ("a verdict needs 6). That reference" in answer) == (repeats < 6)


def test_pairs_that_are_left_out_are_told_after_the_verdict(tmp_path):
    experiment = fair(tmp_path, 5.6, 4.6, 3.0, repeats=8)
    for path in experiment.runs[-2:]:
        run = read_json(path)
        run["ranks"]["machines"] = [run["machine"] | {"cpu": "Faster CPU"}]
        write_json(path, run)
        write_json(path.parent / "sessions" / f"{run['session']}.json", run)
    frames = tables.tables(
        experiment.runs, experiment.dataset_files, experiment.class_files, references=REFERENCES
    )
    answer = summary(frames, "demo", "A title").split("\n\n")[1]
    assert answer.startswith("**Yes: two processes") and "6 pairs" in answer
    assert "`2 of 8 pairs are left out: unlike machines: Faster CPU" in answer


def test_scores_that_chance_can_explain_are_not_called_different(tmp_path, monkeypatch):
    monkeypatch.setattr("escala.report.findings.answers.SAME_SCORES", 0.0)
    experiment = fair(tmp_path, 5.6, 4.6, 3.9, repeats=1)
    missed = experiment.runs[-1].with_name("predictions.npy")
    predictions = np.load(missed)
    predictions[:2] = 1
    np.save(missed, predictions)
    frames = tables.tables(experiment.runs, experiment.dataset_files, experiment.class_files)
    answer = summary(frames, "demo", "A title")
    assert "and no distinguishable score difference: no class differs by more than 0.0" in answer


def test_with_unequal_batches_the_answer_is_the_time_to_the_target(tmp_path):
    batch = {"training": {"global_batch": 128}}
    answer = _of_fair(tmp_path, 5.6, 4.6, 3.9, change=batch)
    epoch = "An epoch takes 0.70 of the time of one process on one core (95 % interval"
    assert re.match(
        r"\*\*[NY][a-z ]+: two processes .* of the time .* to an accuracy of 0.95", answer
    )
    assert "different batches (128 and 64 rows per step)" in answer
    assert 0 < answer.index("to an accuracy of 0.95") < answer.index(epoch)
    assert "with 0.5 times the updates" in answer


def test_without_a_target_unequal_batches_have_no_verdict(tmp_path):
    batch = {"training": {"global_batch": 128, "target_accuracy": None}}
    answer = _of_fair(tmp_path, 5.6, 4.6, 3.9, change=batch)
    assert answer.startswith("**No verdict: two processes (horovod-mpi 1x2 tuned) and one process")
    assert "sets no `target_accuracy`. An epoch takes 0.70" in answer


def test_epochs_that_were_cut_short_have_no_verdict_by_the_target(tmp_path):
    experiment = fair(tmp_path, 5.6, 4.6, 3.9)
    changed(experiment.runs, training={"target_accuracy": None, "steps_per_epoch": 10_000})
    singles = [path for path in experiment.runs if "single" in path.parts]
    changed(singles, training={"global_batch": 6400})
    frames = tables.tables(
        experiment.runs, experiment.dataset_files, experiment.class_files, references=REFERENCES
    )
    answer = summary(frames, "demo", "A title").split("\n\n")[1]
    assert "rows per step)**, and epochs were cut short, so there is no time to an" in answer
    assert "sets no `target_accuracy`" not in answer
    # Powers of ten are not printed.
    assert "with 100 times the updates" in answer


def test_cores_of_a_process_are_not_taken_for_those_of_a_node(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    experiment.add("horovod-mpi", "2x2", 4.0, cores=2)
    assert "four processes with 2 cores each on two nodes" in _sentences(experiment)[0]


def test_each_configuration_has_an_answer(three):
    answers = three[0].splitlines()
    verdicts = [answer.partition(": two p")[0] for answer in answers]
    assert verdicts == ["- **No verdict from 3 pairs", "- **No verdict from 2 pairs"]
    assert "An epoch takes 0.58 of the time of one process on one core (range" in answers[0]
    assert re.search(
        r"\(range 0\.\d\d–0\.\d\d, 2 pairs; a verdict needs 6\), with 0.5 times the updates",
        answers[1],
    )


def test_efficiency_counts_cores(tmp_path):
    experiment = fair(tmp_path, 4.0, 4.0, 4.0)
    frames = tables.tables(
        experiment.runs, experiment.dataset_files, experiment.class_files, references=REFERENCES
    )
    rows = frames["speedup"].set_index(["variant", "reference"])
    shares = (rows["efficiency"] / rows["speedup"]).to_dict()
    assert shares == pytest.approx({("threads", 1): 0.5, ("tuned", 1): 0.5, ("tuned", 2): 1})
    text = summary(frames, "demo", "A title")
    (row,) = [line for line in text.splitlines() if line.startswith("| horovod-mpi")]
    assert row.split(" | ")[-1].startswith(f"{rows.loc[('tuned', 2), 'ratio']:.2f} (")


def test_it_says_where_the_time_goes_outside_the_steps(three):
    assert "single 1x1 spends 3.1 s starting up, 2.5 s in the first" in three[2]
    assert "horovod-mpi 1x2 spends" in three[2]


def test_it_says_how_good_the_models_are(three):
    assert "the lowest precision of a class is" in three[3]
    assert "overlap for every class" in three[3]
    assert "leaky" not in three[3]


def test_it_says_what_failed_and_what_to_do(three):
    assert "1 of 9 timing runs did not end ok: horovod-gloo 1x2 rep 3 (failed" in three[5]
    assert "python scripts/retry.py results/demo" in three[5]


def test_it_says_that_nothing_failed(tmp_path):
    experiment = FakeExperiment(tmp_path, leaky=True, provenance="files").add_dataset()
    experiment.add("single", "1x1", 5.0).add("horovod-mpi", "1x2", 7.0)
    answer, setting, _, quality, _, gaps = _sentences(experiment)
    assert "simulated" not in setting
    assert "An epoch takes 1.4" in answer
    assert gaps == "All 6 timing runs ended ok."
    assert "scores on demo-1000 are too good: its split is leaky" in quality


def test_one_repeat_is_no_verdict(tmp_path):
    answer, *_, gaps = _sentences(three_configurations(tmp_path, repeats=1))
    assert "**No verdict from 1 pair: two processes" in answer and "Yes" not in answer
    assert "one pair; a verdict needs 6" in answer
    assert "set `repeats` to 6 or more" in gaps


def test_different_quality_is_said(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 5.0).add("horovod-mpi", "1x2", 4.0, accuracy=0.7)
    assert "do not all overlap for the precision of COVID" in _sentences(experiment)[3]


def test_scores_of_a_workload_that_brings_its_own_are_said(tmp_path):
    experiment = regression(tmp_path)
    frames = tables.tables(experiment.runs)
    text = summary(frames, "demo", "A title")
    assert (
        "The median of rmse is 0.5 for single 1x1 (range 0.4 to 0.6, 3 runs) and 0.55 for "
        "horovod-mpi 1x2 (range 0.5 to 0.75, 3 runs); scores on demo-1000 are too good"
    ) in text
    assert "All 6 timing runs ended ok." in text
    assert "no run ended ok" not in text and "unavailable" not in text
    both = three_configurations(tmp_path / "classes")
    frames = tables.tables([*both.runs, *experiment.runs], both.dataset_files)
    text = summary(frames, "demo", "A title")
    assert "lowest precision of a class is" in text
    assert "the median of rmse is 0.5 for single 1x1 regression (range" in text


def test_the_epochs_with_the_largest_scores_are_named(tmp_path):
    experiment = with_epoch_scores(tmp_path)
    frames = tables.tables(experiment.runs, experiment.dataset_files)
    text = summary(frames, "demo", "A title")
    assert (
        "The largest scores after an epoch, by the validation rows and as medians over the runs, "
        "are of bleu 0.35 for single 1x1 (epoch 2 to 3) and 0.2 for horovod-mpi 1x2 (epoch 1); "
        "the table `epoch_scores` has all."
    ) in text
    # Of three, the one between the largest and the smallest median is not named.
    scores = frames["epoch_scores"]
    between = scores[scores["strategy"] == "single"].assign(strategy="mirrored")
    between["value"] -= 0.01
    three = frames | {"epoch_scores": pd.concat([scores, between], ignore_index=True)}
    assert summary(three, "demo", "A title") == text


def test_runs_that_ended_ok_are_not_called_failed_where_nothing_is_known_of_them(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    changed(experiment.runs, training={"steps_per_epoch": 1000, "resumed_after": [1]})
    _, _, elsewhere, quality, *_ = _sentences(experiment)
    assert elsewhere.endswith("is unavailable: no run ended ok at one sitting.")
    assert quality.endswith("is unavailable: no run that ended ok trained over whole epochs.")


def test_it_says_how_far_scores_can_differ(tmp_path, three):
    said = "on the same test rows, no class differs in precision or recall by more than 0.0"
    assert f"compared with single 1x1 {said}" in three[3]
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 5.0).add("horovod-mpi", "1x2", 4.0, accuracy=0.7)
    quality = _sentences(experiment)[3]
    assert re.search(
        r"exclude 0 for the precision of .*recall of COVID, horovod-mpi 1x2 \(-", quality
    )


def test_it_says_how_the_times_to_an_accuracy_compare(three):
    assert re.search(
        r"on one core to an accuracy of 0\.95\*\* \(range 0\.\d\d–0\.\d\d, 3", three[0]
    )


def test_the_only_configuration_of_a_dataset_is_not_said_to_equal_itself(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    other = FakeExperiment(tmp_path, dataset="other").add_dataset()
    experiment.runs += other.add("single", "1x1", 5.0, accuracy=0.7).runs
    quality = _sentences(experiment)[3]
    assert "The median accuracy is between" in quality and "overlap" not in quality


def test_what_is_unavailable_is_said(tmp_path):
    failed = dict.fromkeys((1, 2, 3), ("failed", "a `quoted`\nreason | <b>"))
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 5.0, failed=failed)
    experiment.add("horovod-mpi", "1x2", 5.0, failed=failed)
    answer, _, elsewhere, quality, leakage, gaps = _sentences(experiment)
    assert "unavailable" in leakage
    assert "Unavailable: horovod-mpi 1x2 against single 1x1: `no run ended ok" in answer
    assert "unavailable" in elsewhere
    assert "unavailable" in quality
    assert "rep 1, 2, 3 (failed: `a 'quoted' reason | <b>`)" in gaps


def test_rows_that_differ_between_splits_are_said_as_a_range(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    result = read_json(experiment.runs[0])
    result["training"]["train_rows"] -= 50
    write_json(experiment.runs[0], result)
    assert "3100 to 3150 training and 705 test rows" in _sentences(experiment)[1]


def test_a_reference_alone_is_compared_with_nothing(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    assert "Nothing was compared" in _sentences(experiment)[0]


def test_fits_are_there_for_their_scores_and_compared_in_nothing_else(tmp_path):
    experiment = with_fits(tmp_path)
    answer, setting, elsewhere, quality, *_ = _sentences(experiment)
    assert setting.startswith("5 configurations were timed on")
    assert "They train virus-cnn, kmer-logreg and majority on demo-1000 (" in setting
    assert "kmer-logreg" not in answer + elsewhere and "majority" not in answer + elsewhere
    assert "horovod-mpi 1x2" in answer
    reached = r"on demo-1000 an accuracy of 0\.9\d+ is reached by kmer-logreg and 0\.\d+ is reached"
    assert re.search(reached, quality)
    assert re.match(r"The median accuracy is between 0\.99\d \(horovod-mpi 1x2\) and", quality)
    frames = tables.tables(experiment.runs, experiment.dataset_files, experiment.class_files)
    lines = summary(frames, "demo", "A title").splitlines()
    (row,) = [line for line in lines if "kmer-logreg |" in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:4] == ["–", "–"] and cells[5:8] == ["–"] * 3 and cells[9] == "–"
    assert re.fullmatch(r"– \(fit: 0\.\d\d s\)", cells[4])


def test_workloads_that_were_timed_less_often_are_said_to_be(tmp_path):
    experiment = three_configurations(tmp_path)
    experiment.add("single", "1x1", 0.4, 1, workload="kmer-logreg")
    setting = _sentences(experiment)[1]
    assert ", each 2 to 3 times for virus-cnn and 1 time for kmer-logreg. They" in setting


def test_fits_alone_have_scores_and_no_times(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 0.4, workload="kmer-logreg")
    answer, _, elsewhere, quality, *_ = _sentences(experiment)
    assert "Nothing was compared" in answer
    assert elsewhere == "No workload was trained over epochs."
    assert quality.startswith("On demo-1000 an accuracy of")


def test_a_class_without_test_rows_is_said(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 5.0, untested="SARS")
    assert "no test rows and hence no scores: SARS (demo-1000)" in _sentences(experiment)[3]


def test_it_says_what_relatives_in_training_add_by_the_kind_of_split(tmp_path):
    random = with_fits(tmp_path)
    clusters = FakeExperiment(
        tmp_path,
        dataset="demo-cluster",
        split={"by": "cluster"},
        not_separable=["COVID", "SARS"],
        similarity=np.full(705, 0.4),
    )
    clusters.add_dataset().add("single", "1x1", 5.0, accuracy=0.8)
    lineages = FakeExperiment(
        tmp_path,
        dataset="demo-lineage",
        split={"by": "group-file"},
        similarity=np.full(705, 0.97),
    )
    lineages.add_dataset().add("single", "1x1", 5.0, accuracy=0.8)
    random.runs += clusters.runs + lineages.runs
    said = _sentences(random)[4]
    assert "on demo-1000, split by random, 90 % of the test rows have a near-duplicate" in said
    assert re.search(r"virus-cnn 0\.9\d\d and 0\.9\d\d on the rest", said)
    assert re.search(r"kmer-logreg 0\.9\d\d and", said)
    assert "on demo-cluster, split by cluster, 0 %" in said
    assert "COVID and SARS cannot be separated and have no score" in said
    assert "on demo-lineage, split by group-file, 100 %" in said
    assert "accuracy on the rest is unavailable (0 rows)" in said


def test_it_says_where_the_time_of_a_step_goes_if_that_was_measured(tmp_path):
    experiment, runs = clocked(tmp_path)
    frames = tables.tables(
        experiment.runs, experiment.dataset_files, experiment.class_files, probe_files=runs
    )
    within = summary(frames, "demo", "A title").split("\n\n")[4]
    assert within.startswith("Within a training step (medians, rank 0), single 1x1 spends of 109.0")
    assert "46 % computing forward and backward" in within
    assert "18 % waiting for the slowest rank" in within
    assert "and 2.8 % are unexplained" in within


def test_it_says_where_a_step_is_longer_than_that_of_one_process(tmp_path):
    experiment, runs = clocked(tmp_path)
    frames = tables.tables(
        experiment.runs, experiment.dataset_files, experiment.class_files, probe_files=runs
    )
    parts = frames["attribution"].dropna(subset="part").query("rank == 0")
    late = (parts["strategy"] != "single") & parts["part"].isin(["skew", "whole"])
    frames["attribution"].loc[late.index[late], "median_seconds"] += 0.006
    alone = parts[parts["strategy"] == "single"].set_index("part")["median_seconds"]
    two = frames["attribution"].query("strategy == 'horovod-mpi' and rank == 0")
    skew = two.set_index("part")["median_seconds"]["skew"] - alone["skew"]
    within = summary(frames, "demo", "A title").split("\n\n")[4]
    assert f"(+6.0 ms against single 1x1: +{1000 * skew:.1f} ms waiting for the slowest" in within
    beside = 1000 * two.set_index("part")["median_seconds"]["overlap"]
    assert f"; {beside:.1f} ms of exchange go on beside these)" in within


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.5, float("nan"), "No verdict"),
        (float("nan"), 1.5, "No verdict"),
        (float("nan"), 0.9, answers.YES),
        (1.1, float("nan"), answers.NO),
        (0.9, 1.1, answers.NOT_DISTINGUISHABLE),
    ],
)
def test_an_unknown_end_decides_nothing(low, high, verdict):
    assert answers._verdict(low, high, 7) == verdict


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (64, "Two processes take less time than one process on one core (single 1x1): 0.50 of it"),
        (128, "Two processes take 0.50 of the time per epoch of one process on one core"),
    ],
)
def test_a_second_reference_with_another_batch_gives_no_verdict(batch, words):
    row = SimpleNamespace(
        layout="1x2", cores=2, ranks=2, global_batch=batch, pairs=7,
        ratio=0.5, ratio_low=0.4, ratio_high=0.6,
        reference_layout="1x1", reference_cores=1, reference_global_batch=64,
        reference_label="single 1x1", kind="measured", oversubscribed=True, other_hosts=False,
    )  # fmt: skip
    answer = answers._answer_to_other_reference(row, None)
    assert answer.startswith(words)
    assert ("with batches of 128 and 64 rows" in answer) == (batch == 128)
    assert "7 pairs, on shared cores)" in answer
