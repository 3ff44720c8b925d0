"""The time a dry run announces, and what it is taken from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from escala.core.files import write_json
from escala.experiment import Experiment, Run, read
from escala.experiment.files import ROOT
from escala.record.estimate import duration, sentence


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
        {"strategy": "horovod-mpi", "layouts": ["1x2"]},
        {"strategy": "horovod-gloo", "layouts": ["1x2"]},
    ]
    del settings["references"]
    return settings | {"repeats": 3, "timeline": {"enabled": True}}


@pytest.fixture
def experiment(tmp_path, monkeypatch) -> Experiment:
    monkeypatch.chdir(tmp_path)
    return Experiment(demo(), "config.yaml")


def measured(run: Run, seconds: float, status: str = "ok", session: str = "first") -> None:
    record = {"status": status, "wall_seconds": seconds}
    write_json(Path(run.folder) / "sessions" / f"{session}.json", record)


def of(experiment: Experiment, strategy: str, repeat: int) -> Run:
    return experiment.run("demo-1000", "virus-cnn", strategy, *place(strategy), repeat)


def place(strategy: str) -> tuple[str, str, str]:
    return "1x1" if strategy == "single" else "1x2", "tuned", "native"


def said(runs: list[Run], experiment: Experiment) -> str:
    def named(name: str) -> Experiment:
        assert name == "demo"
        return experiment

    return sentence(runs, named)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (42.4, "42 s"),
        (59.6, "1 min 0 s"),
        (185, "3 min 5 s"),
        (3599.6, "1 h 0 min"),
        (7499, "2 h 4 min"),
        (360000, "100 h 0 min"),
    ],
)
def test_durations_are_written_as_people_do(seconds, text):
    assert duration(seconds) == text


def test_nothing_to_run_takes_no_time(experiment):
    assert "none" in said([], experiment)


def test_a_run_takes_the_median_of_its_own_configuration(experiment):
    for repeat, seconds in ((1, 10), (2, 30)):
        measured(of(experiment, "single", repeat), seconds)
    measured(of(experiment, "single", 2), 500, session="second")
    measured(of(experiment, "horovod-mpi", 1), 7)
    runs = [of(experiment, "single", 3), of(experiment, "horovod-mpi", 2)]
    assert ": 30 s for 1 from earlier runs" in said(runs[:1], experiment)
    assert ": 37 s for 2 from earlier runs" in said(runs, experiment)


def test_a_configuration_never_run_takes_what_others_of_its_dataset_took(experiment):
    measured(of(experiment, "single", 1), 10)
    measured(of(experiment, "horovod-mpi", 1), 20)
    text = said([of(experiment, "horovod-gloo", 1)], experiment)
    assert ": 15 s for 1 from earlier runs" in text


def test_without_earlier_runs_the_rate_is_named_as_rough(experiment):
    """Five classes of 900 × 0.7 rows, three epochs: 9450 rows; 6400 take 5.65 s, a start 7 s."""
    single = said([of(experiment, "single", 1)], experiment)
    assert ": 15 s for 1 from a reference rate, only an order of magnitude." in single
    two_ranks = said([of(experiment, "horovod-mpi", 1)], experiment)
    assert ": 11 s for 1 from a reference rate" in two_ranks


def test_the_rows_are_those_of_the_arrays_once_they_stand(experiment):
    rows = {"train": 64_000, "test": 900}
    write_json("results/demo/data/demo-1000/split4/dataset.json", {"rows": rows})
    text = said([of(experiment, "single", 1)], experiment)
    assert f": {duration(3 * 56.5 + 7)} for 1 from a reference rate" in text


def test_a_run_of_some_steps_takes_as_long_as_their_rows(tmp_path, monkeypatch):
    """Batches of 32 rows on each of two ranks; probe runs, and timing runs over a slow link."""
    monkeypatch.chdir(tmp_path)
    settings = demo() | {"timeline": {"steps": 3000}, "networks": {"slow": {"steps": 1000}}}
    settings["workloads"]["virus-cnn"] |= {"batch": {"rows": 32, "per": "rank"}}
    settings["configurations"] = [{"strategy": "horovod-mpi", "layouts": ["2x1"]}]
    cut = Experiment(settings, "config.yaml")
    for run, steps in ((cut.probed("timeline")[0], 3000), (cut.runs[0], 1000)):
        seconds = steps * 64 * 5.65 / 6400 / 2 + 7
        assert f": {duration(seconds)} for 1 from a reference rate" in said([run], cut)


@pytest.mark.parametrize(
    ("oversample", "rows"),
    [
        ({"method": "none"}, 2350),
        ({}, 5 * 900),
        ({"rows": {"SARS": 2250, "COVID": 100}}, 2350 + 2000),
    ],
)
def test_simulated_rows_are_counted_before_they_are_made(experiment, oversample, rows):
    settings = demo()
    settings["datasets"]["demo-1000"]["oversample"] = oversample
    settings["workloads"]["virus-cnn"]["epochs"] = 1000
    changed = Experiment(settings, "config.yaml")
    seconds = 1000 * rows * 0.7 * 5.65 / 6400 + 7
    assert f": {duration(seconds)} for 1" in said([of(changed, "single", 1)], changed)


def test_a_fit_has_a_reference_rate_of_its_own(tmp_path, monkeypatch):
    """5 × 900 × 0.7 rows of 1000 letters, 10 million letters a second, a start 3 s."""
    monkeypatch.chdir(tmp_path)
    settings = demo()
    settings["workloads"] = {"kmer-logreg": {}}
    fits = Experiment(settings, "config.yaml")
    assert f": {duration(3.15e6 / 10e6 + 3)} for 1 from a reference" in said(fits.runs[:1], fits)
    tiles = demo() | {"workloads": {"kmer-logreg": {}}}
    tiles["datasets"]["demo-1000"]["window"] = {"method": "tiles"}
    tiled = Experiment(tiles, "config.yaml")
    assert "unavailable for 1, whose number of rows is not known" in said(tiled.runs[:1], tiled)
    settings["datasets"]["demo-1000"]["source"] = {"type": "files", "folder": "x"}
    files = Experiment(settings, "config.yaml")
    assert "unavailable for 1, whose number of rows is not known" in said(files.runs[:1], files)


def test_runs_that_failed_say_nothing_about_the_time(experiment):
    measured(of(experiment, "single", 1), 1000, status="timeout")
    text = said([of(experiment, "single", 2)], experiment)
    assert "earlier runs" not in text


def test_timing_and_instrumented_runs_say_nothing_about_each_other(experiment):
    timeline = experiment.probed("timeline")[0]
    timing = of(experiment, timeline.strategy, 1)
    measured(timeline, 1000)
    assert "earlier runs" not in said([timing], experiment)
    assert ": 16 min 40 s for 1 from earlier runs" in said([timeline], experiment)
    (Path(timeline.folder) / "sessions" / "first.json").unlink()
    measured(timing, 1000)
    assert "earlier runs" not in said([timeline], experiment)


def test_what_is_unknown_is_counted_apart_and_has_no_figure(experiment):
    settings = demo()
    files = settings["datasets"]["demo-1000"] | {"source": {"type": "files", "folder": "x"}}
    settings["datasets"]["other"] = files
    both = Experiment(settings, "config.yaml")
    other = [run for run in both.runs if run.dataset == "other"][:3]
    text = said(other, both)
    assert "unavailable for 3, whose number of rows is not known yet" in text
    assert not re.search(r"\d+ (s|min|h)\b", text)
    measured(of(both, "single", 1), 10)
    text = said([of(both, "single", 2), of(both, "single", 3), *other], both)
    assert "of 5 runs: 20 s for 2 from earlier runs" in text
    assert "unavailable for 3" in text
