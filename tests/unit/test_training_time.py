"""The figure of the first screen shows the values of the tables, and tells them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pandas as pd
import pytest
from fixtures_runs import REFERENCES, FakeExperiment, changed, fair, three_configurations, twice
from pages import tabled

from escala.analysis.comparable import CONFIGURATION
from escala.core.files import read_json
from escala.core.readable import number as significant
from escala.report.figures import common, seconds_per_epoch

pytestmark = pytest.mark.usefixtures("few_resamples")

SVG = "{http://www.w3.org/2000/svg}"
ONE, THREADS = "one process", "one process with two threads"
TWO = "two processes on one node"


def _shown(frames: dict[str, pd.DataFrame], folder: Path) -> tuple[list[dict[str, str]], str]:
    """Return what each row tells, its name first, and all words of the figure."""
    path = folder / "figure.svg"
    with common.style():
        common.save(seconds_per_epoch.draw(frames), path)
    root = ET.parse(path).getroot()
    assert float(root.get("width").removesuffix("pt")) < 360, "it fits a phone"
    titles = [part.find(f"{SVG}title").text for part in root.iter(f"{SVG}g") if part.get("class")]
    rows = []
    for name, *values in (title.split("\n") for title in titles):
        rows.append({"name": name} | dict(value.split(": ", 1) for value in values))
    return rows, " ".join("".join(text.itertext()) for text in root.iter(f"{SVG}text"))


def _by_name(rows: list[dict[str, str]]) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in reversed(rows)}


@pytest.fixture(scope="module")
def frames(few_resamples, tmp_path_factory):
    return tabled(fair(tmp_path_factory.mktemp("fair"), 5.6, 4.6, 3.9), references=REFERENCES)


def _with_other_batches(folder: Path, reaching: bool = True) -> dict[str, pd.DataFrame]:
    """Return the tables of `fair` where the batch of two differs, which reach the target or not."""
    experiment = fair(folder, 5.6, 4.6, 3.9)
    for path in experiment.runs:
        if "horovod-mpi" in path.parts:
            low = {} if reaching else {"validation_accuracy": 0.2}
            epochs = [epoch | low for epoch in read_json(path)["epochs"]]
            changed([path], training={"global_batch": 128}, epochs=epochs)
    return tabled(experiment, references=REFERENCES)


def test_times_intervals_and_runs_are_those_of_the_tables(frames, tmp_path):
    rows, words = _shown(frames, tmp_path)
    assert [row["name"] for row in rows[:3]] == [ONE, THREADS, TWO]
    known = frames["configurations"].set_index(["strategy", "variant"])
    runs = frames["runs"].set_index(["strategy", "variant"])["train_seconds_per_epoch"]
    for row, key in zip(rows, (("single", "tuned"), ("single", "threads")), strict=False):
        columns = [f"train{end}_seconds_per_epoch" for end in ("", "_low", "_high")]
        middle, low, high = map(significant, known.loc[key, columns])
        assert row["training time"] == f"{middle} s ({low}–{high})" and f"{middle} s" in words
        told = row["single runs"].removesuffix(" s").split(", ")
        assert told == list(map(significant, runs.sort_index(kind="stable").loc[key]))
    assert rows[0]["ratio"] == "1 (the main reference)" and "ideal" not in rows[0]
    one = known.loc[("single", "tuned"), "train_seconds_per_epoch"]
    assert rows[1]["ideal"] == rows[2]["ideal"] == f"{significant(one / 2)} s"
    assert rows[2]["verdict"] == "faster" and rows[2]["runs ok"] == "7 of 7"
    assert "the ideal" in words.replace("\n", " ")
    assert "Grey bands" not in words and "Yellow" not in words


def test_where_batches_differ_the_times_to_the_accuracy_come_first(frames, tmp_path):
    target, epoch = "training time to accuracy 0.95 (s)", "training time per epoch (s)"
    _, words = _shown(frames, tmp_path)
    assert words.index(epoch) < words.index(target)
    measured = _with_other_batches(tmp_path)
    rows, words = _shown(measured, tmp_path)
    assert words.index(target) < words.index(epoch)
    expected = measured["configurations"].set_index("strategy").loc["horovod-mpi"]
    row = _by_name(rows)[TWO]
    seconds = significant(expected["time_to_target_seconds"])
    assert row["training time"].startswith(f"{seconds} s") and "ideal" not in row
    assert row["ratio to the main reference"] != "–"


def test_a_time_that_did_not_reach_the_accuracy_is_a_bound(tmp_path):
    rows, words = _shown(_with_other_batches(tmp_path, reaching=False), tmp_path)
    bounds = {name: row["training time"][:2] == "> " for name, row in _by_name(rows).items()}
    assert bounds[TWO] and not bounds[ONE] and "After >, some runs did not reach" in words


def test_the_noise_floor_is_a_band_around_the_time_of_the_reference(tmp_path):
    experiment, again = twice(tmp_path)
    for path in again:
        seconds = read_json(path)["seconds"]
        changed([path], seconds=seconds | {"train": 1.03 * seconds["train"]})
    measured = tabled(experiment, series_files=again)
    rows, words = _shown(measured, tmp_path)
    floor, number = measured["noise"]["floor"].iloc[0], len(measured["configurations"])
    assert floor > 0.01 and "Yellow bands: the noise floor" in words
    told = {row["noise floor of the main reference"] for row in rows[:number]}
    assert told == {f"{100 * floor:.1f} %"}
    assert _by_name(rows)[f"{TWO} (Horovod over Gloo)"]["verdict"] == "not distinguishable"
    with common.style():
        axes = seconds_per_epoch.draw(measured).axes[0]
    known = measured["configurations"].set_index("strategy")["train_seconds_per_epoch"]
    bands = [bar.get_bbox() for bar in axes.patches]
    bands = [box for box in bands if 0 < box.x0 < known["single"] < box.x1]
    assert len(bands) == number
    for box in bands:
        expected = known["single"] / (1 + floor), known["single"] * (1 + floor)
        assert (box.x0, box.x1) == pytest.approx(expected)
        assert box.x0 < known["horovod-gloo"] < box.x1


def test_each_variant_has_ideal_and_noise_floor_of_its_own_reference(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset()
    for variant, one, two in (("slow", 5.0, 2.5), ("fast", 1.0, 0.8)):
        experiment.add("single", "1x1", one, 7, variant=variant, rows=64)
        experiment.add("horovod-mpi", "1x2", two, 7, variant=variant, rows=64)
    measured = tabled(experiment)
    references = measured["configurations"][lambda frame: frame["reference"] == 1]
    measured["noise"] = references[list(CONFIGURATION)].assign(floor=[0.1, 0.2])
    rows = _by_name(_shown(measured, tmp_path)[0])
    for row, floor in zip(references.itertuples(), ("10.0 %", "20.0 %"), strict=True):
        two = rows[f"{TWO} ({row.variant})"]
        assert two["ideal"] == f"{significant(row.train_seconds_per_epoch / 2)} s"
        assert two["noise floor of the main reference"] == floor


def test_estimated_times_and_extrapolated_predictions_are_marked(frames, tmp_path):
    two = frames["configurations"]["strategy"] == "horovod-mpi"
    kinds = frames["configurations"]["kind"].mask(two, "estimated")
    configurations = frames["configurations"].assign(kind=kinds)
    columns = [f"predicted{end}_seconds_per_epoch" for end in ("", "_low", "_high")]
    predicted = configurations[list(CONFIGURATION)].assign(
        **dict(zip(columns, (4.0, 3.0, 5.0), strict=True)),
        basis=["extrapolated" if each else "predicted" for each in two],
    )
    several = frames | {"configurations": configurations, "predictions": predicted}
    rows, words = _shown(several, tmp_path)
    for row in rows[:3]:
        assert row["training time"].startswith("≈ ") == (row["name"] == TWO)
        assert row["predicted"] == "4.00 s (3.00–5.00)"
    for expected in ("≈: estimated", "Hatched ones", "90 % interval"):
        assert expected in words


def test_several_workloads_have_panels_with_their_names(tmp_path):
    first = three_configurations(tmp_path)
    second = FakeExperiment(tmp_path, dataset="other", runs=first.runs).add_dataset()
    second.add("single", "1x1", 50.0).add("horovod-mpi", "1x2", 60.0)
    _, words = _shown(tabled(second), tmp_path)
    # Each has a panel of times per epoch and one of times to the accuracy.
    assert words.count("demo-1000 (simulated), virus-cnn") == 2
    assert words.count("other (simulated), virus-cnn") == 2
