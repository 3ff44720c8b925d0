"""The time a dry run announces, and what it is taken from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from escala.config import ROOT, Experiment, Run, read
from escala.files import write_json
from escala.measure.estimate import duration, sentence


@pytest.fixture
def experiment(tmp_path, monkeypatch) -> Experiment:
    monkeypatch.chdir(tmp_path)
    return Experiment(read(ROOT / "config.yaml"), "config.yaml")


def measured(run: Run, seconds: float, status: str = "ok", file: str = "run.json") -> None:
    write_json(Path(run.folder) / file, {"status": status, "wall_seconds": seconds})


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


def test_without_earlier_runs_no_figure_is_made_up(experiment):
    assert "unavailable" in said(experiment.runs, experiment)
    assert not re.search(r"\d+ (s|min|h)\b", said(experiment.runs, experiment))


def test_nothing_to_run_takes_no_time(experiment):
    assert "none" in said([], experiment)


def test_a_run_takes_the_median_of_its_own_configuration(experiment):
    for repeat, seconds in ((1, 10), (2, 30)):
        measured(of(experiment, "single", repeat), seconds)
    measured(of(experiment, "single", 2), 500, file="sessions/old.json")
    measured(of(experiment, "horovod-mpi", 1), 7)
    runs = [of(experiment, "single", 3), of(experiment, "horovod-mpi", 2)]
    assert " 30 s," in said(runs[:1], experiment)
    assert " 37 s," in said(runs, experiment)


def test_a_configuration_never_run_takes_what_others_of_its_dataset_took(experiment):
    measured(of(experiment, "single", 1), 10)
    measured(of(experiment, "horovod-mpi", 1), 20)
    assert " 15 s," in said([of(experiment, "horovod-gloo", 1)], experiment)


def test_runs_that_failed_say_nothing_about_the_time(experiment):
    measured(of(experiment, "single", 1), 10, status="timeout")
    assert "unavailable" in said([of(experiment, "single", 2)], experiment)


def test_an_instrumented_run_says_nothing_about_a_timing_run(experiment):
    timeline = experiment.timelines[0]
    measured(timeline, 10)
    assert "unavailable" in said([of(experiment, timeline.strategy, 1)], experiment)
    assert " 10 s," in said([timeline], experiment)


def test_what_is_unknown_is_counted_apart(experiment):
    settings = read(ROOT / "config.yaml")
    settings["datasets"]["other"] = settings["datasets"]["demo-1000"]
    both = Experiment(settings, "config.yaml")
    measured(of(both, "single", 1), 10)
    other = [run for run in both.runs if run.dataset == "other"][:3]
    text = said([of(both, "single", 2), *other], both)
    assert " 10 s," in text
    assert "3 more without" in text
