"""The time that a dry run announces, and what it is taken from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from escala.core.files import write_json
from escala.core.readable import duration, size
from escala.experiment import Experiment, Run, read
from escala.experiment.files import ROOT
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


def test_durations_are_written_as_people_do():
    texts = {42.4: "42 s", 59.6: "1 min 0 s", 3599.6: "1 h 0 min", 7499: "2 h 4 min"}
    for seconds, text in texts.items():
        assert duration(seconds) == text


def test_a_run_takes_the_median_of_its_own_configuration_or_of_others_of_its_dataset(experiment):
    assert "none" in sentence([])
    measured(of(experiment, "single", 1), 1000, status="timeout")
    timeline = experiment.probed("timeline")[0]
    measured(timeline, 1000)
    assert "unknown for 1" in sentence([of(experiment, "single", 3)])
    assert ": 16 min 40 s for 1 from earlier runs" in sentence([timeline])
    for repeat, seconds in ((1, 10), (2, 30)):
        measured(of(experiment, "single", repeat), seconds)
    measured(of(experiment, "single", 2), 500, session="second")
    measured(of(experiment, "horovod-mpi", 1), 20)
    runs = [of(experiment, "single", 3), of(experiment, "horovod-mpi", 2)]
    assert ": 30 s for 1 from earlier runs" in sentence(runs[:1])
    assert ": 50 s for 2 from earlier runs" in sentence(runs)
    assert ": 25 s for 1 from earlier runs" in sentence([of(experiment, "horovod-gloo", 1)])


def test_a_run_of_a_probe_takes_as_long_as_a_timing_run_until_it_is_measured(experiment):
    timeline = experiment.probed("timeline")[0]
    measured(of(experiment, timeline.strategy, 1), 10)
    assert ": 10 s for 1 from earlier runs" in sentence([timeline])
    measured(timeline, 1000)
    assert ": 16 min 40 s for 1 from earlier runs" in sentence([timeline])


def test_each_file_is_read_once_and_a_damaged_one_is_left_out(experiment, monkeypatch, capsys):
    for repeat in (1, 2, 3):
        measured(of(experiment, "single", repeat), 10)
    (Path(of(experiment, "single", 3).folder) / "sessions" / "first.json").write_text("")
    read, read_bytes = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or read_bytes(path))
    new = [of(experiment, name, n) for name in ("horovod-mpi", "horovod-gloo") for n in (1, 2, 3)]
    assert ": 1 min 0 s for 6 from earlier runs" in sentence(new)
    assert len(read) == len(set(read)) == 3
    assert capsys.readouterr().err.count("first.json") == 1


def test_what_is_unknown_is_counted_apart_and_has_no_figure(experiment):
    settings = demo()
    settings["datasets"]["other"] = settings["datasets"]["demo-1000"]
    both = Experiment(settings, "config.yaml")
    other = [run for run in both.runs if run.dataset == "other"][:3]
    text = sentence(other)
    assert "unknown for 3" in text and not re.search(r"\d+ (s|min|h)\b", text)
    measured(of(both, "single", 1), 10)
    text = sentence([of(both, "single", 2), of(both, "single", 3), *other])
    assert "of 5 runs: 20 s for 2 from earlier runs" in text and "unknown for 3" in text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (2**31, "2.0 GiB")],
)
def test_sizes_are_written_as_people_do(number, text):
    assert size(number) == text
