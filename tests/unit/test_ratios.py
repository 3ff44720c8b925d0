"""The lines that the target `ratios` prints of an experiment's tables."""

from __future__ import annotations

from fixtures_runs import FakeExperiment, clocked

from escala.analysis.statistics import ratio_interval
from escala.report import ratios, tables


def test_each_configuration_has_its_ratio_step_and_parts(tmp_path):
    experiment, runs = clocked(tmp_path)
    frames = tables.tables(
        experiment.runs, experiment.dataset_files, experiment.class_files, probe_files=runs
    )
    text = "\n".join(ratios.lines(frames))
    ratio = frames["speedup"].set_index("strategy").loc["horovod-mpi", "ratio"]
    assert f"horovod-mpi 1x2 tuned native\n  ratio to single 1x1: {ratio:.3f} (0." in text
    assert "parts of a step of rank 1 (109.0 ms" in text
    assert "skew 20.0" in text


def test_one_process_is_compared_under_two_variants(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 10.0, variant="plain")
    experiment.add("single", "1x1", 3.0, variant="fast")
    frames = tables.tables(experiment.runs, experiment.dataset_files, experiment.class_files)
    seconds = frames["runs"].set_index(["variant", "repeat"])["train_seconds_per_epoch"]
    ratio = ratio_interval(seconds["fast"] / seconds["plain"]).estimate
    assert f"single 1x1, fast against plain: {ratio:.3f} (0." in "\n".join(ratios.lines(frames))
