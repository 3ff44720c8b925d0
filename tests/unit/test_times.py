"""The chart of the first screen shows the values of the tables, and what Vega gets is data."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pandas as pd
import pytest
from fixtures_runs import (
    REFERENCES,
    FakeExperiment,
    changed,
    fair,
    three_configurations,
    twice,
    with_fits,
)
from pages import HOSTILE, failed, hostile

from escala.core.files import read_json
from escala.record.comparable import CONFIGURATION
from escala.report import tables
from escala.report.page import times as module
from escala.report.page.times import chart

pytestmark = pytest.mark.usefixtures("few_resamples")


def _tables(experiment: FakeExperiment, **more) -> dict:
    return tables.tables(experiment.runs, experiment.dataset_files, experiment.class_files, **more)


def _values(panel: dict, column: str) -> list[dict]:
    """Return the data of the layers that show a column."""
    sets = [layer["data"]["values"] for layer in panel["layer"]]
    return next(values for values in sets if values and column in values[0])


def _words(svg: str) -> list[str]:
    return [
        "".join(each.itertext()) for each in ET.fromstring(svg).iter() if each.tag.endswith("}text")
    ]


@pytest.fixture(scope="module")
def frames(few_resamples, tmp_path_factory):
    return _tables(fair(tmp_path_factory.mktemp("fair"), 5.6, 4.6, 3.9), references=REFERENCES)


def test_times_intervals_and_runs_are_those_of_the_tables(frames):
    found = chart(frames)
    [panel, _] = found.specification["vconcat"]
    rows = {row["label"]: row for row in _values(panel, "seconds") if "low" in row}
    configurations = frames["configurations"].set_index(["strategy", "variant"])
    for label, names in {
        "single 1x1 tuned": ("single", "tuned"),
        "single 1x1 threads": ("single", "threads"),
        "horovod-mpi 1x2 tuned": ("horovod-mpi", "tuned"),
    }.items():
        row, expected = rows[label], configurations.loc[names]
        assert row["seconds"] == pytest.approx(expected["train_seconds_per_epoch"])
        assert row["low"] == pytest.approx(expected["train_low_seconds_per_epoch"])
        assert row["high"] == pytest.approx(expected["train_high_seconds_per_epoch"])
    sets = [layer["data"]["values"] for layer in panel["layer"]]
    [runs] = [values for values in sets if "low" not in values[0]]
    assert sorted(each["seconds"] for each in runs) == pytest.approx(
        sorted(frames["runs"]["train_seconds_per_epoch"])
    )


def test_where_batches_differ_the_times_to_the_accuracy_come_first(tmp_path):
    experiment = fair(tmp_path, 5.6, 4.6, 3.9)
    larger = [path for path in experiment.runs if "horovod-mpi" in path.parts]
    changed(larger, training={"global_batch": 128})
    measured = _tables(experiment, references=REFERENCES)
    found = chart(measured)
    to_target, per_epoch = found.specification["vconcat"]
    assert "training time to accuracy 0.95 (s)" in json.dumps(to_target)
    assert "training time per epoch (s)" in json.dumps(per_epoch)
    configurations = measured["configurations"].set_index(["strategy", "variant"])
    rows = {row["label"]: row for row in _values(to_target, "low")}
    for label, names in {
        "single 1x1 tuned": ("single", "tuned"),
        "horovod-mpi 1x2 tuned": ("horovod-mpi", "tuned"),
    }.items():
        expected = configurations.loc[names]["time_to_target_seconds"]
        assert rows[label]["seconds"] == pytest.approx(expected)
        assert rows[label]["ideal_s"] is None
    runs = measured["runs"]
    reached = runs[runs["time_to_target_kind"] == "measured"]["time_to_target_seconds"]
    sets = [layer["data"]["values"] for layer in to_target["layer"]]
    [points] = [values for values in sets if "low" not in values[0]]
    assert sorted(each["seconds"] for each in points) == pytest.approx(sorted(reached))
    assert "the time to the accuracy decides" in found.caption
    first, second = _tables_chart(fair(tmp_path / "same", 5.6, 4.6, 3.9))
    assert "per epoch" in json.dumps(first) and "to accuracy 0.95" in json.dumps(second)


def test_a_time_that_did_not_reach_the_accuracy_is_a_bound(tmp_path):
    experiment = fair(tmp_path, 5.6, 4.6, 3.9)
    larger = [path for path in experiment.runs if "horovod-mpi" in path.parts]
    changed(larger, training={"global_batch": 128})
    for path in larger:
        epochs = read_json(path)["epochs"]
        changed([path], epochs=[epoch | {"validation_accuracy": 0.2} for epoch in epochs])
    found = chart(_tables(experiment, references=REFERENCES))
    to_target, _ = found.specification["vconcat"]
    rows = {row["label"]: row for row in _values(to_target, "low")}
    assert rows["horovod-mpi 1x2 tuned"]["value"].startswith("> ")
    assert not rows["single 1x1 tuned"]["value"].startswith("> ")
    assert "After >, some runs did not reach the accuracy." in found.caption


def _tables_chart(experiment: FakeExperiment) -> list[dict]:
    return chart(_tables(experiment, references=REFERENCES)).specification["vconcat"]


def test_the_ideal_is_the_time_of_the_reference_on_as_many_cores(frames):
    [panel, _] = chart(frames).specification["vconcat"]
    rows = {row["label"]: row for row in _values(panel, "ideal_s")}
    one = rows["single 1x1 tuned"]["seconds"]
    assert rows["single 1x1 tuned"]["ideal_s"] is None
    assert rows["single 1x1 threads"]["ideal_s"] == pytest.approx(one / 2)
    assert rows["horovod-mpi 1x2 tuned"]["ideal_s"] == pytest.approx(one / 2)
    assert rows["horovod-mpi 1x2 tuned"]["verdict"] == "faster"


def test_the_noise_floor_is_a_band_around_the_time_of_the_reference(frames, tmp_path):
    experiment, again = twice(tmp_path)
    for path in again:
        seconds = read_json(path)["seconds"]
        changed([path], seconds=seconds | {"train": 1.03 * seconds["train"]})
    measured = _tables(experiment, paired_files=again)
    found = chart(measured)
    [panel, _] = found.specification["vconcat"]
    bands = _values(panel, "floor_low")
    assert len(bands) == len(measured["configurations"])
    assert len({(each["floor_low"], each["floor_high"]) for each in bands}) == 1
    band = bands[0]
    rows = {row["label"]: row for row in _values(panel, "seconds") if "low" in row}
    reference, limit = rows["single 1x1"]["seconds"], 1 + measured["noise"]["floor"].iloc[0]
    assert limit > 1.01
    assert band["floor_low"] == pytest.approx(reference / limit)
    assert band["floor_high"] == pytest.approx(reference * limit)
    assert rows["horovod-gloo 1x2"]["verdict"] == "not distinguishable"
    assert band["floor_low"] < rows["horovod-gloo 1x2"]["seconds"] < band["floor_high"]
    assert "noise floor" in found.caption and "noise floor" not in chart(frames).caption


def _variants(folder: Path) -> FakeExperiment:
    """Return two variants, each of one process and of two."""
    experiment = FakeExperiment(folder).add_dataset()
    for variant, one, two in (("slow", 5.0, 2.5), ("fast", 1.0, 0.8)):
        experiment.add("single", "1x1", one, 7, variant=variant, rows=64)
        experiment.add("horovod-mpi", "1x2", two, 7, variant=variant, rows=64)
    return experiment


def test_each_variant_has_ideal_and_noise_floor_of_its_own_reference(tmp_path):
    measured = _tables(_variants(tmp_path))
    of_references = measured["configurations"][lambda frame: frame["reference"] == 1]
    measured["noise"] = of_references[list(CONFIGURATION)].assign(floor=[0.1, 0.2])
    panel = chart(measured).specification["vconcat"][0]
    rows = {row["label"]: row for row in _values(panel, "ideal_s")}
    bands = {band["label"]: band for band in _values(panel, "floor_low")}
    assert len(bands) == len(rows) == 4
    floors = dict(zip(of_references["variant"], (0.1, 0.2), strict=True))
    for variant, floor in floors.items():
        reference = rows[f"single 1x1 {variant}"]["seconds"]
        assert rows[f"horovod-mpi 1x2 {variant}"]["ideal_s"] == pytest.approx(reference / 2)
        for label in (f"single 1x1 {variant}", f"horovod-mpi 1x2 {variant}"):
            assert bands[label]["floor_high"] == pytest.approx(reference * (1 + floor))
    layers = [each for each in panel["layer"] if each["mark"]["type"] == "rect"]
    assert layers and all("y" in each["encoding"] for each in layers), "each in its own row"


def test_estimated_times_and_extrapolated_predictions_are_marked(frames):
    several = {name: frame.copy() for name, frame in frames.items()}
    configurations = several["configurations"]
    two = configurations["strategy"] == "horovod-mpi"
    configurations["kind"] = configurations["kind"].mask(two, "estimated")
    predicted = configurations[list(CONFIGURATION)].assign(
        predicted_seconds_per_epoch=4.0,
        predicted_low_seconds_per_epoch=3.0,
        predicted_high_seconds_per_epoch=5.0,
        basis=["extrapolated" if each else "predicted" for each in two],
    )
    found = chart(several | {"predictions": predicted})
    rows = {row["label"]: row for row in _values(found.specification["vconcat"][0], "ideal_s")}
    for label, row in rows.items():
        estimated = label.startswith("horovod-mpi")
        assert row["value"].startswith("≈ ") == row["time"].startswith("≈ ") == estimated
        assert row["extrapolated"] == estimated
    assert found.svg.count(module._FAR_BAND) == 1 and found.svg.count(module._BAND) == 2
    for words in ("≈: estimated", "paler", "90\u00a0% confidence"):
        assert words in found.caption and words not in chart(frames).caption


def test_the_end_of_a_long_name_can_be_read(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset()
    names = [f"a-variant-with-a-rather-long-name-{end}" for end in ("1gbit", "100mbit")]
    for name in names:
        experiment.add("single", "1x1", 5.0, variant=name)
    words = _words(chart(_tables(experiment)).svg)
    short = {word for word in words if "…" in word}
    assert sorted(word.rpartition("-")[2] for word in short) == ["100mbit", "1gbit"]
    assert all(word.startswith("single 1x1") and len(word) <= 33 for word in short)


def test_the_drawing_names_configurations_and_times_and_fits_a_phone(frames):
    found = chart(frames)
    words = _words(found.svg)
    for label in ("single 1x1 tuned", "single 1x1 threads", "horovod-mpi 1x2 tuned"):
        assert label in words
    assert "training time per epoch (s)" in words
    assert float(ET.fromstring(found.svg).get("width")) < 360
    assert "ideal" in found.caption and "cost model" not in found.caption


def test_labels_leave_out_what_the_title_of_their_panel_has(frames):
    both = {
        name: pd.concat([frame, frame.assign(dataset="other")]) if "dataset" in frame else frame
        for name, frame in frames.items()
    }
    panels = chart(both).specification["vconcat"]
    assert len(panels) == 4 and "other" in str(panels[2]["title"])
    for panel in panels:
        labels = [row["label"] for row in _values(panel, "low")]
        assert labels == ["single 1x1 tuned", "single 1x1 threads", "horovod-mpi 1x2 tuned"]


def test_equal_tables_give_equal_charts(frames):
    assert chart(frames) == chart(frames)


def test_what_failed_has_a_row_without_a_time(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    experiment.add("horovod-mpi", "1x2", 5.0, 1, {1: ("failed", "no memory")})
    words = _words(chart(_tables(experiment)).svg)
    assert "horovod-mpi 1x2" in words and "no result" in words


def test_without_any_time_there_is_no_chart(tmp_path):
    assert chart(failed(tmp_path / "failed")) is None


def test_fits_are_left_out(tmp_path):
    assert "kmer-logreg" not in json.dumps(chart(_tables(with_fits(tmp_path))).specification)


def test_several_workloads_have_panels_with_their_names(tmp_path):
    first = three_configurations(tmp_path)
    second = FakeExperiment(tmp_path, dataset="other", runs=first.runs).add_dataset()
    second.add("single", "1x1", 50.0).add("horovod-mpi", "1x2", 60.0)
    panels = chart(_tables(second)).specification["vconcat"]
    # Each has a panel of times to the accuracy and one of times per epoch.
    assert [panel["title"] for panel in panels] == [
        *["demo-1000 (simulated), virus-cnn"] * 2,
        *["other (simulated), virus-cnn"] * 2,
    ]


def test_of_many_configurations_the_fastest_and_the_reference_are_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST", 3)
    frames = _tables(fair(tmp_path, 5.6, 4.6, 3.9), references=REFERENCES)
    found = chart(frames)
    labels = [row["label"] for row in _values(found.specification["vconcat"][0], "low")]
    assert set(labels) == {"single 1x1 tuned", "single 1x1 threads", "horovod-mpi 1x2 tuned"}
    monkeypatch.setattr(module, "MOST", 2)
    found = chart(frames)
    labels = [row["label"] for row in _values(found.specification["vconcat"][0], "low")]
    assert set(labels) == {"single 1x1 tuned", "horovod-mpi 1x2 tuned"}
    assert "The 1 slowest" in found.caption


def test_names_are_data_and_never_expressions_or_addresses(frames, tmp_path):
    found = chart(hostile(_tables(three_configurations(tmp_path))))
    text = json.dumps(found.specification)
    assert "signal" not in found.specification and '"href"' not in text and '"url"' not in text
    svg = ET.fromstring(found.svg)
    assert {each.tag.rpartition("}")[2] for each in svg.iter()} <= {
        "svg", "g", "path", "line", "text", "rect", "defs", "clipPath",
    }  # fmt: skip
    assert HOSTILE["tuned"] not in {each.tag for each in svg.iter()}
