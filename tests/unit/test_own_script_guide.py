"""The guide for a script of one's own: its experiment is valid, and it knows every placeholder."""

from __future__ import annotations

import pytest
import yaml

from escala.experiment import Experiment
from escala.programs.program import PLACEHOLDERS
from escala.strategies import STRATEGIES
from tests.conftest import ROOT
from tests.documented import files

GUIDE = ROOT / "docs" / "reference" / "scripts.md"


@pytest.mark.usefixtures("registries")
def test_the_experiment_of_the_guide_compares_processes_and_threads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    experiment = Experiment(yaml.safe_load(files(GUIDE)["train.yaml"]), "train.yaml")
    assert {(run.layout, run.variant) for run in experiment.runs} == {
        ("1x1", "tuned"), ("1x2", "tuned"), ("1x1", "threads"),
    }  # fmt: skip
    assert len(experiment.timed) == 21


def test_the_guide_has_every_placeholder_and_every_strategy_of_programs():
    text = GUIDE.read_text()
    assert [name for name in PLACEHOLDERS if f"`{{{name}}}`" not in text] == []
    only = {name for name, each in STRATEGIES.items() if not each.engine}
    assert [name for name in only if f"`{name}`" not in text] == []
