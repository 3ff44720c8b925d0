"""The time, disk space and memory that a dry run announces, and what they are taken from."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from escala import data
from escala.core.errors import InputError
from escala.core.files import write_json
from escala.core.readable import duration, size
from escala.data import kind_of
from escala.data.base import description
from escala.experiment import Experiment, Run, read
from escala.experiment.files import ROOT
from escala.experiment.schema import validated
from escala.measure import estimate
from escala.measure.estimate import sentence
from escala.record.schema import FORMAT


def demo() -> dict:
    """The default experiment with the settings that the expectations below are made for."""
    settings = read(ROOT / "config.yaml")
    counts = {"COVID": 900, "DENGUE": 700, "EBOLA": 250, "MERS": 250, "SARS": 250}
    dataset = settings["datasets"]["demo-1000"]
    dataset["source"]["records"] = counts
    dataset |= {"oversample": {}, "split": {"test_fraction": 0.3, "seeds": [4]}}
    settings["workloads"] = {"virus-cnn": {"epochs": 3}}
    settings["variants"] = {"tuned": {}}
    settings["configurations"] = [
        {"strategy": "single", "layouts": ["1x1"]},
        *({"strategy": f"horovod-{way}", "layouts": ["1x2"]} for way in ("mpi", "gloo")),
    ]
    del settings["references"]
    return settings | {"repeats": 3, "timeline": {"enabled": True}}


@pytest.fixture
def experiment(tmp_path, monkeypatch) -> Experiment:
    monkeypatch.chdir(tmp_path)
    return Experiment(demo(), "config.yaml")


def measured(run: Run, seconds: float, status: str = "ok", session: str = "first") -> None:
    record = {"format": FORMAT, "status": status, "layout": run.layout, "wall_seconds": seconds}
    write_json(Path(run.folder) / "sessions" / f"{session}.json", record)


def of(experiment: Experiment, strategy: str, repeat: int) -> Run:
    layout = "1x1" if strategy == "single" else "1x2"
    return experiment.run("demo-1000", "virus-cnn", strategy, layout, "tuned", "native", repeat)


def said(runs: list[Run], experiment: Experiment) -> str:
    return sentence(runs, {"demo": experiment}.__getitem__)


def test_durations_are_written_as_people_do():
    texts = {42.4: "42 s", 59.6: "1 min 0 s", 3599.6: "1 h 0 min", 7499: "2 h 4 min"}
    for seconds, text in texts.items():
        assert duration(seconds) == text


def test_a_run_takes_the_median_of_its_own_configuration_or_of_others_of_its_dataset(experiment):
    assert "none" in said([], experiment)
    measured(of(experiment, "single", 1), 1000, status="timeout")
    timeline = experiment.probed("timeline")[0]
    measured(timeline, 1000)
    assert "unknown for 1" in said([of(experiment, "single", 3)], experiment)
    assert ": 16 min 40 s for 1 from earlier runs" in said([timeline], experiment)
    for repeat, seconds in ((1, 10), (2, 30)):
        measured(of(experiment, "single", repeat), seconds)
    measured(of(experiment, "single", 2), 500, session="second")
    measured(of(experiment, "horovod-mpi", 1), 20)
    runs = [of(experiment, "single", 3), of(experiment, "horovod-mpi", 2)]
    assert ": 30 s for 1 from earlier runs" in said(runs[:1], experiment)
    assert ": 50 s for 2 from earlier runs" in said(runs, experiment)
    assert ": 25 s for 1 from earlier runs" in said([of(experiment, "horovod-gloo", 1)], experiment)


def test_a_run_of_a_probe_takes_as_long_as_a_timing_run_until_it_is_measured(experiment):
    timeline = experiment.probed("timeline")[0]
    measured(of(experiment, timeline.strategy, 1), 10)
    assert ": 10 s for 1 from earlier runs" in said([timeline], experiment)
    measured(timeline, 1000)
    assert ": 16 min 40 s for 1 from earlier runs" in said([timeline], experiment)


def test_each_file_is_read_once_and_a_damaged_one_is_left_out(experiment, monkeypatch, capsys):
    for repeat in (1, 2, 3):
        measured(of(experiment, "single", repeat), 10)
    (Path(of(experiment, "single", 3).folder) / "sessions" / "first.json").write_text("")
    read, read_bytes = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or read_bytes(path))
    new = [of(experiment, name, n) for name in ("horovod-mpi", "horovod-gloo") for n in (1, 2, 3)]
    assert ": 1 min 0 s for 6 from earlier runs" in said(new, experiment)
    assert len(read) == len(set(read)) == 3
    assert capsys.readouterr().err.count("first.json") == 1


@pytest.mark.parametrize(
    ("settings", "train", "test"),
    [
        ({"oversample": {"method": "none"}}, 2350, 2350),
        ({}, 5 * 900, 2350),
        ({"oversample": {"order": "before-split"}}, 5 * 900, 5 * 900),
        ({"oversample": {"rows": {"SARS": 2250, "COVID": 100}}}, 2350 + 2000, 2350),
        # Windows of genomes, and of their other strand.
        ({"oversample": {"method": "none"},
          "window": {"method": "random", "per_genome": 3, "reverse_complement": True}},
         2350 * 6, 2350 * 6),
    ],
)  # fmt: skip
def test_simulated_rows_are_counted_before_they_are_made(settings, train, test):
    written = demo()
    written["datasets"]["demo-1000"] |= settings
    found = data.size_of(Experiment(written, "config.yaml").datasets["demo-1000"])
    assert found.rows == pytest.approx({"train": train * 0.7, "test": test * 0.3})


def test_lists_of_pictures_give_the_disk_and_their_features_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ESCALA_FLICKR8K", str(tmp_path))
    photographs = Experiment(read(ROOT / "experiments/captions/flickr8k.yaml"), "flickr8k.yaml")
    text = sentence(photographs.runs, lambda name: photographs)
    assert "flickr8k: the features of the pictures, whose time is not known." in text
    for side, pictures in (("train", 300), ("dev", 100), ("test", 100)):
        names = "".join(f"{number}.jpg\n" for number in range(pictures))
        (tmp_path / f"Flickr_8k.{side}Images.txt").write_text(names)
    assert "the features of 500 pictures" in sentence(photographs.runs, lambda name: photographs)
    disk = estimate.disk(photographs.runs, lambda name: photographs)
    assert disk.arrays == 500 * (4096 * 2 + 2 * 5 * 34 * 2) and not disk.unknown


def test_what_is_unknown_is_counted_apart_and_has_no_figure(experiment):
    settings = demo()
    settings["datasets"]["other"] = settings["datasets"]["demo-1000"]
    both = Experiment(settings, "config.yaml")
    other = [run for run in both.runs if run.dataset == "other"][:3]
    text = said(other, both)
    assert "unknown for 3" in text and not re.search(r"\d+ (s|min|h)\b", text)
    measured(of(both, "single", 1), 10)
    text = said([of(both, "single", 2), of(both, "single", 3), *other], both)
    assert "of 5 runs: 20 s for 2 from earlier runs" in text and "unknown for 3" in text


# A dataset of each kind whose rows are known before there are any.
EXPECTED = {
    "outlines": {
        "kind": "images",
        "source": {"type": "outlines", "per_class": 10},
        "size": [8, 10],
        "store": "float16",
        "split": {"test_fraction": 0.2, "validation_fraction": 0.1, "seeds": [1]},
    },
    "motifs": {
        "kind": "motifs",
        "source": {"type": "simulated", "rows": {"train": 20, "validation": 0, "test": 6}},
        "length": 40,
        "split": {"seeds": [1]},
    },
    "scenes": {
        "kind": "captions",
        "source": {"type": "simulated", "pictures": {"train": 20, "validation": 4, "test": 5}},
        "split": {"seeds": [1]},
    },
    "sample": {
        "kind": "tabular",
        "source": {"type": "scikit-learn", "name": "breast_cancer"},
        "split": {"test_fraction": 0.3, "seeds": [1]},
    },
}
TRAINING = {
    "epochs": 1,
    "batch": {"rows": 32, "per": "global"},
    "learning_rate": {"value": 0.1, "reference_batch": 32},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_expected_of_a_split_is_what_its_arrays_turn_out_to_be(name, tmp_path):
    settings = demo() | {"datasets": {name: EXPECTED[name]}}
    dataset, kind = validated(settings, "e.yaml")["datasets"][name], kind_of(EXPECTED[name])
    if kind.has("source"):
        (tmp_path / "source").mkdir()
        acquisition = kind.load("settings").acquisition(dataset)
        kind.load("source").acquire(acquisition, [], tmp_path / "source")
    inputs = kind.load("settings").prepared_from(dataset, tmp_path)
    split = tmp_path / "split"
    split.mkdir()
    preparation = kind.load("settings").preparation(dataset)
    kind.load("arrays").prepare(name, preparation, 1, inputs, split)
    found, made = data.size_of(dataset), description(split)
    assert found.rows.keys() == made["rows"].keys()
    for side, rows in made["rows"].items():
        assert found.rows[side] == pytest.approx(rows, abs=1)
    for entry, array in zip(found.inputs, made["inputs"], strict=True):
        assert dict(entry) | {"shape": [*entry["shape"]]} == {name: array[name] for name in entry}
    assert [*found.targets["shape"]] == made["targets"]["shape"]
    assert found.targets["dtype"] == made["targets"]["dtype"]
    headers = 128 * 2 * len(made["rows"])
    on_disk = sum(path.stat().st_size for path in split.glob("*.npy")) - headers
    assert found.bytes == pytest.approx(on_disk, rel=0.05)


def test_a_kind_whose_size_is_no_size_is_refused(experiment, monkeypatch):
    dataset = experiment.datasets["demo-1000"]
    monkeypatch.setattr(kind_of(dataset).load("settings"), "size", lambda settings: (7, None))
    with pytest.raises(InputError, match=r"settings\.py: \(7, None\): is what `size` returns"):
        said([of(experiment, "single", 1)], experiment)


def test_disk_space_is_that_of_arrays_not_there_yet(experiment):
    """4500 × 0.7 + 2350 × 0.3 rows of 1000 letters and an int64 label."""
    runs, named = [of(experiment, "single", n) for n in (1, 2)], lambda name: experiment
    arrays = (4500 * 0.7 + 2350 * 0.3) * 1008
    found = estimate.disk(runs, named)
    assert (found.arrays, found.splits) == (pytest.approx(arrays), 1)
    write_json("results/demo/data/demo-1000/split4/dataset.json", {"rows": {"train": 1}})
    assert estimate.disk(runs, named).arrays == 0


def test_runs_that_do_not_fit_on_the_disk_are_refused(monkeypatch, tmp_path):
    results, found = tmp_path / "results", estimate.Disk(3 * 2**20, 2, 1)
    text = estimate.disk_sentence(found, results)
    assert "3.0 MiB for the arrays of 1 split; unavailable for the arrays of 1 split" in text
    free = SimpleNamespace(free=4 * 2**20)
    monkeypatch.setattr(estimate.shutil, "disk_usage", lambda folder: free)
    monkeypatch.setenv("ESCALA_STORE", str(tmp_path / "store"))
    estimate.require_disk(found, results)
    text = estimate.disk_sentence(found, results)
    assert "need up to 6.0 MiB there, and 4.0 MiB are free" in text
    free.free = 2 * 2**20
    with pytest.raises(InputError, match=r"results: '3\.0 MiB': is needed .* 2\.0 MiB are free"):
        estimate.require_disk(found, results)
    assert "it does not fit" in estimate.disk_sentence(found, results)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (2**31, "2.0 GiB")],
)
def test_sizes_are_written_as_people_do(number, text):
    assert size(number) == text
