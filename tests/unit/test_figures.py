"""Figures: everything asked for is in them, gaps are named, and equal data give equal bytes."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pandas as pd
import pytest
from fixtures_runs import (
    CLASSES,
    FakeExperiment,
    clocked,
    sampled,
    three_configurations,
    timeline_text,
    with_fits,
)

from escala.explain import tables
from escala.figures import (
    FIGURES,
    TIMELINE_FIGURES,
    classification_reports,
    common,
    figure,
)
from escala.figures.timeline_allreduce import largest_allreduce
from escala.figures.timeline_run import covered_seconds
from escala.files import read_json, write_json
from escala.measure import timeline
from escala.measure.timeline import OTHER, family

FAILED = "horovod-gloo 1x2 rep 3 (failed)"


def _tables(experiment: FakeExperiment) -> dict[str, pd.DataFrame]:
    return tables.tables(experiment.runs, experiment.dataset_files, experiment.class_files)


def _texts(path: Path) -> str:
    """Return the words of an SVG as a reader's eye joins them, line by line."""
    root = ET.parse(path).getroot()
    return "\n".join(
        "".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")
    )


def _drawn(folder: Path, name: str, *what) -> str:
    with common.style():
        common.save(figure(name).draw(*what), folder / f"{name}.svg")
    return _texts(folder / f"{name}.svg")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The words of every figure of three configurations, one run of which failed."""
    folder = tmp_path_factory.mktemp("figures")
    frames = _tables(three_configurations(folder))
    return {name: _drawn(folder, name, frames) for name in FIGURES}


@pytest.mark.parametrize("name", FIGURES)
def test_simulated_data_are_called_so(drawn, name):
    assert "demo-1000 (simulated)" in drawn[name]


@pytest.mark.parametrize("name", [name for name in FIGURES if name != "class_distribution"])
def test_a_failed_run_is_named(drawn, name):
    assert FAILED in drawn[name]


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("class_distribution", [*CLASSES, "sequences (count)", "training, oversampled", "900"]),
        ("accuracy_per_epoch", ["epoch", "training accuracy", "test accuracy", "single 1x1"]),
        ("seconds_per_epoch", ["training time per epoch (s)", "single 1x1", "horovod-mpi 1x2"]),
        ("confusion_matrices", [*CLASSES, "predicted class", "true class", "runs: 3", "runs: 2"]),
        ("classification_reports", ["COVID (270)", "precision", "f1", "macro average (705)"]),
        ("speedup", ["1x2", "2 ranks", "efficiency", "horovod-mpi", "horovod-gloo"]),
    ],
)
def test_labels_and_units_are_there(drawn, name, labels):
    for label in labels:
        assert label in drawn[name]


@pytest.fixture(scope="module")
def nothing(tmp_path_factory):
    failed = {1: ("failed", "ValueError: costs $5 and $6 <b>&amp;</b>")}
    experiment = FakeExperiment(tmp_path_factory.mktemp("nothing"), leaky=True).add_dataset()
    experiment.add("single", "1x1", 5.0, 1, failed).add("horovod-mpi", "1x2", 5.0, 1, failed)
    return _tables(experiment)


@pytest.mark.parametrize("name", [name for name in FIGURES if name != "class_distribution"])
def test_a_figure_without_data_says_why(tmp_path, nothing, name):
    words = _drawn(tmp_path, name, nothing).replace("\n", " ").lower()
    assert "demo-1000 (simulated, leaky split)" in words
    assert "no run ended ok" in words
    assert "$5 and $6 <b>&amp;</b>" in words


def test_leaky_splits_are_called_so(tmp_path, nothing):
    assert "leaky split" in _drawn(tmp_path, "class_distribution", nothing)


@pytest.mark.parametrize("name", FIGURES)
def test_one_repeat_is_drawn_without_interval(tmp_path, name):
    frames = _tables(three_configurations(tmp_path, repeats=1))
    assert "Without result" not in _drawn(tmp_path, name, frames)


def test_datasets_and_variants_are_told_apart(tmp_path):
    first = three_configurations(tmp_path)
    second = FakeExperiment(
        tmp_path, dataset="published", provenance="files", leaky=True, runs=first.runs
    ).add_dataset()
    second.add("single", "1x1", 50.0).add("horovod-mpi", "1x2", 60.0, variant="as-published")
    frames = _tables(second)
    for name in FIGURES:
        words = _drawn(tmp_path, name, frames)
        assert "published (files, leaky split)" in words
        assert "demo-1000 (simulated)" in words
    assert "horovod-mpi 1x2 as-published" in _texts(tmp_path / "seconds_per_epoch.svg")
    assert "no single 1x1 beside it" in _texts(tmp_path / "speedup.svg").replace("\n", " ")


BY_EPOCH = ("accuracy_per_epoch", "seconds_per_epoch", "speedup")


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """The words of every figure where two workloads are fitted at once."""
    folder = tmp_path_factory.mktemp("fits")
    frames = _tables(with_fits(folder))
    return {name: _drawn(folder, name, frames) for name in FIGURES}


@pytest.mark.parametrize("name", BY_EPOCH)
def test_epochs_and_fits_are_not_set_side_by_side(fits, name):
    words = fits[name].replace("\n", " ")
    assert "Not shown, as they are fitted at once: kmer-logreg, majority." in words
    assert words.count("kmer-logreg") == 1
    assert "horovod-mpi" in words


@pytest.mark.parametrize("name", ["confusion_matrices", "classification_reports"])
def test_scores_of_fits_stand_beside_the_others(fits, name):
    for workload in ("virus-cnn", "kmer-logreg", "majority"):
        assert f"{workload}, single 1x1" in fits[name]


@pytest.mark.parametrize("name", BY_EPOCH)
def test_fits_alone_leave_figures_of_epochs_empty(tmp_path, name):
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 0.4, workload="kmer-logreg")
    words = _drawn(tmp_path, name, _tables(experiment)).replace("\n", " ")
    assert "fitted at once: kmer-logreg" in words
    assert "No run ended ok" not in words


@pytest.mark.parametrize("name", ["confusion_matrices", "classification_reports"])
def test_a_class_without_test_rows_is_named(tmp_path, fits, name):
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 5.0, untested="SARS")
    words = _drawn(tmp_path, name, _tables(experiment)).replace("\n", " ")
    assert "No test rows, hence no scores: SARS (demo-1000)." in words
    assert "No test rows" not in fits[name]


def test_averages_are_over_the_classes_that_have_test_rows():
    scores = {"precision": [1.0, 0.5, None], "recall": [0.5, None, None], "f1": [0.6, 0.4, None]}
    frame = pd.DataFrame({"class": ["A", "B", "C"], **scores, "actual": [3, 1, 0]})
    report = classification_reports._report(frame)
    assert report.loc["macro average", ["precision", "recall"]].tolist() == [0.75, 0.25]
    assert report.loc["weighted average", "precision"] == pytest.approx((3 * 1 + 0.5) / 4)
    assert report.loc["C", ["precision", "recall", "f1"]].isna().all()


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_equal_data_give_equal_bytes(tmp_path, suffix):
    frames = _tables(three_configurations(tmp_path))
    paths = [tmp_path / f"{n}{suffix}" for n in range(2)]
    for path in paths:
        with common.style():
            common.save(figure("speedup").draw(frames), path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert b"<dc:date>" not in first


@pytest.mark.parametrize(
    ("value", "text"), [(2.2, "2.20"), (0.05123, "0.0512"), (63.64, "63.6"), (1234.5, "1230")]
)
def test_seconds_keep_three_digits(value, text):
    assert common.significant(value) == text


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return read_json(
        FakeExperiment(tmp_path_factory.mktemp("t")).add_timeline("horovod-mpi", "1x2")
    )


def test_the_timeline_of_a_run_shows_tensors_and_times(tmp_path, run):
    words = _drawn(tmp_path, "timeline_run", run, timeline.repair(timeline_text(5)))
    for part in ("horovod-mpi 1x2", "simulated", "dense/kernel", "HorovodBroadcast", "(s)"):
        assert part in words
    # Five allreduces of 2 ms and a broadcast of 0.8 ms; step n waits n ms, the broadcast one.
    assert "communication:\n0.011 s" in words
    assert "waiting for all ranks (negotiation):\n0.016 s" in words


def test_scores_by_split_name_the_runs_they_are_of(tmp_path, drawn):
    assert "Points: runs of single 1x1, each" in drawn["splits"]
    experiment = FakeExperiment(tmp_path).add_dataset().add("horovod-mpi", "1x2", 4.0)
    assert "Points: runs of horovod-mpi 1x2, each" in _drawn(
        tmp_path, "splits", _tables(experiment)
    )


def test_the_rest_of_an_operation_is_what_its_parts_leave():
    phases = timeline.intervals(timeline.repair(timeline_text(1)))
    # 0.2 ms of the broadcast, and 0.103 ms after the allreduce's last part.
    assert covered_seconds(phases)[OTHER] == pytest.approx(0.000303)


def test_one_allreduce_is_the_typical_one_of_most_bytes():
    phases = timeline.intervals(timeline.repair(timeline_text(5)))
    chosen = largest_allreduce(phases)
    assert list(chosen["bytes"]) == [4000, 16]
    assert chosen["start_seconds"].iloc[0] in phases["start_seconds"].to_numpy()
    assert largest_allreduce(phases[phases["phase"] != "ALLREDUCE"]) is None


def test_one_allreduce_is_drawn_with_its_durations(tmp_path, run):
    words = _drawn(tmp_path, "timeline_allreduce", run, timeline.repair(timeline_text(5)))
    for part in ("2 fused tensors, 4.0 kB", "time (ms)", "rank 0", "rank 1", "simulated"):
        assert part in words
    assert "MPI_ALLREDUCE:\n2.00 ms" in words
    assert "MEMCPY_IN_FUSION_BUFFER:\n1.00 ms" in words


@pytest.mark.parametrize("name", TIMELINE_FIGURES)
def test_a_missing_timeline_is_said(tmp_path, name):
    path = FakeExperiment(tmp_path).add_timeline("horovod-gloo", "1x2", status="failed")
    words = _drawn(tmp_path, name, read_json(path), []).replace("\n", " ")
    assert "the run left no timeline" in words
    assert "rank 1 was ended by signal 9" in words


def test_a_timeline_without_allreduce_is_said(tmp_path, run):
    events = timeline.repair(timeline_text(0))
    words = _drawn(tmp_path, "timeline_allreduce", run, events)
    assert "holds no finished allreduce" in words


def test_more_tensors_than_fit_are_counted(tmp_path, run):
    events = timeline.repair(timeline_text(1))
    for pid in range(4, 80):
        name = {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"tensor {pid}"}}
        begin = {"ph": "B", "name": "BROADCAST", "ts": pid, "pid": pid}
        events += [name, begin, {"ph": "E", "ts": pid + 1, "pid": pid}]
    words = _drawn(tmp_path, "timeline_run", run, events)
    assert "19 more tensors are in trace.json" in words


@pytest.mark.parametrize(
    ("phase", "name"),
    [
        ("NEGOTIATE_ALLGATHER", "waiting for all ranks (negotiation)"),
        ("QUEUE", "waiting for data or other tensors"),
        ("GLOO_ALLREDUCE", "communication"),
        ("MEMCPY_OUT_FUSION_BUFFER", "copying to and from the fusion buffer"),
        ("ALLREDUCE", OTHER),
    ],
)
def test_phases_belong_to_families(phase, name):
    assert family(phase) == name


def test_time_by_nodes_names_the_networks_and_the_rates_measured(tmp_path):
    experiment = three_configurations(tmp_path).add("horovod-mpi", "2x1", 4.0)
    for path in experiment.runs:
        run = read_json(path)
        if run["layout"] == "2x1":
            link = {"rate": "100mbit", "mbit_per_second": 95.5, "latency_ms": 0.06}
            write_json(path, run | {"network": "slow", "link": link})
    words = _drawn(tmp_path, "nodes_and_rates", _tables(experiment))
    for expected in ("slow: 95.5", "2x1", "nodes", "demo-1000 (simulated)"):
        assert expected in words
    alone = three_configurations(tmp_path / "alone")
    assert "No layout of several nodes" in _drawn(tmp_path, "nodes_and_rates", _tables(alone))


def test_resources_are_drawn_for_each_process_and_gaps_are_named(tmp_path):
    frames = tables.tables([], [], [], sampled(tmp_path))
    words = _drawn(tmp_path, "resources", frames)
    for expected in ("processor (%)", "horovod-mpi 1x2", "unavailable", "No samples: horovod-gloo"):
        assert expected in words


def test_the_parts_of_a_step_are_drawn_for_each_rank_and_gaps_are_named(tmp_path):
    experiment, runs = clocked(tmp_path)
    frames = tables.tables(
        experiment.runs, experiment.dataset_files, experiment.class_files, clock_files=runs
    )
    words = _drawn(tmp_path, "attribution", frames)
    for expected in (
        "horovod-mpi 1x2, rank 1",
        "forward and backward",
        "5.0 ms overlapped",
        "No clocks: horovod-gloo",
        "Step against that of the timing runs: single 1x1",
    ):
        assert expected in words
