"""What to do next follows from the verdicts, and from what was not measured or predicted."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures_runs import FakeExperiment, clocked
from pages import failed, tabled
from sentences import told

pytestmark = pytest.mark.usefixtures("few_resamples")


def _variants(folder: Path, slow: tuple[float, float], fast: tuple[float, float]) -> list[str]:
    """Return answer and first step of two variants, each of one process and of two; in seconds."""
    experiment = FakeExperiment(folder).add_dataset()
    for variant, (one, two) in {"slow": slow, "fast": fast}.items():
        experiment.add("single", "1x1", one, 7, variant=variant, rows=64)
        experiment.add("horovod-mpi", "1x2", two, 7, variant=variant, rows=64)
    frames = tabled(experiment)
    return [told(frames, section)[0] for section in ("answer", "next")]


def test_the_least_time_decides_and_not_the_smallest_ratio(tmp_path):
    answer, advice = _variants(tmp_path, slow=(5.0, 2.5), fast=(1.0, 0.8))
    assert answer.startswith("Yes: two processes (`horovod-mpi 1x2 fast`) take 0.79 of the time of")
    assert "of one process (`single 1x1 fast`)" in answer
    assert advice.startswith("To save time, train with `horovod-mpi 1x2 fast`; to save core-hours,")


def test_one_process_of_a_faster_variant_is_what_to_train_with(tmp_path):
    answer, advice = _variants(tmp_path, slow=(5.0, 2.5), fast=(1.0, 1.3))
    assert answer.startswith("No: two processes (`horovod-mpi 1x2 fast`)")
    assert advice.startswith("To save time, train with `single 1x1 fast`: its epoch takes 1.01 s, ")


def test_failed_runs_are_to_be_repeated(tmp_path):
    first, *_ = told(failed(tmp_path), "next")
    assert "remove what prevented it, and run `uv run escala retry results/demo`" in first


def test_more_repeats_do_not_replace_those_that_failed(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 5.0, 7, rows=64)
    failures = dict.fromkeys((1, 2), ("failed", "rank 1 was ended by signal 9"))
    experiment.add("horovod-mpi", "1x2", 4.0, 7, failures, rows=64)
    first, *_ = told(tabled(experiment), "next")
    assert first.startswith("For a verdict on `horovod-mpi 1x2`, run `uv run escala retry results/")


def test_what_was_not_measured_or_predicted_is_named(tmp_path):
    experiment, runs = clocked(tmp_path)
    experiment.runs = [path for path in experiment.runs if "horovod-gloo" not in path.parts]
    for probes in ([], runs):
        texts = told(tabled(experiment, probe_files=probes), "next")
        assert any("clocks" in text for text in texts) == (not probes)
        assert any("`predictions`" in text for text in texts)
