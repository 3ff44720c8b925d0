"""What the benchmark of scaling runs and says, without running it."""

from __future__ import annotations

import pandas as pd
import pytest
import scaling
from fixtures_runs import FakeExperiment, clocked

from escala.errors import InputError
from escala.experiment import Experiment, read
from escala.experiment.files import ROOT
from escala.explain import tables

SCALING = ROOT / "experiments" / "scaling.yaml"


def test_a_selection_is_an_experiment_of_one_process_and_what_was_chosen():
    part = scaling.selection(read(SCALING), 6000, ["horovod-mpi"], ["fast"], [], 9)
    runs = Experiment(part, SCALING).runs
    assert {(run.dataset, run.variant) for run in runs} == {("simulated-6000", "fast")}
    assert {(run.strategy, run.layout) for run in runs} == {
        ("single", "1x1"),
        ("horovod-mpi", "1x2"),
    }
    assert len(runs) == 18


def test_nothing_chosen_is_all_and_what_is_not_there_is_refused():
    assert scaling.chosen("--lengths", None, [1000, 6000, 1000]) == [1000, 6000]
    with pytest.raises(InputError, match="choose of 1000, 6000"):
        scaling.chosen("--lengths", [500], [1000, 6000])


def test_it_says_ratio_step_and_parts(tmp_path):
    experiment, runs = clocked(tmp_path)
    frames = tables.tables(
        experiment.runs, experiment.dataset_files, experiment.class_files, probe_files=runs
    )
    text = "\n".join(scaling.lines(frames))
    ratio = frames["speedup"].set_index("strategy").loc["horovod-mpi", "ratio"]
    assert f"horovod-mpi 1x2 tuned native\n  ratio to single 1x1: {ratio:.3f} (0." in text
    assert "parts of a step of rank 1 (109.0 ms" in text
    assert "skew 20.0" in text


def test_it_compares_one_process_under_two_variants(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 10.0, variant="plain")
    experiment.add("single", "1x1", 3.0, variant="fast")
    frames = tables.tables(experiment.runs, experiment.dataset_files, experiment.class_files)
    seconds = frames["runs"].set_index(["variant", "repeat"])["train_seconds_per_epoch"]
    ratio = pd.Series(seconds["fast"] / seconds["plain"]).median()
    assert f"single 1x1, fast against plain: {ratio:.3f} (0." in "\n".join(scaling.lines(frames))
