"""YAML 1.2: what a user writes is what is read, by every way."""

from __future__ import annotations

import copy
import math

import pytest
import yaml
from test_experiment import SMALL

from escala.core.errors import InputError
from escala.core.files import read_yaml
from escala.core.yaml12 import Dumper, read
from escala.experiment import load
from escala.workflow.study import Study
from tests.conftest import ROOT

SCALARS = {
    "1:30": "1:30", "190:20:30": "190:20:30", "1_000": "1_000", "0b11": "0b11",
    "2026-11-28": "2026-11-28", "yes": "yes", "No": "No", "off": "off", "=": "=", "0o8": "0o8",
    "010": 10, "-08": -8, "0o17": 15, "0x1F": 31, "12": 12, "+1": 1,
    "1e-3": 0.001, "1E3": 1000.0, ".5": 0.5, "5.": 5.0, "-1.5e+3": -1500.0, "-.inf": -math.inf,
    "true": True, "False": False, "~": None, "": None, "Null": None, "'1e-3'": "1e-3",
}  # fmt: skip


def test_scalars_are_those_of_version_1_2(tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text("\n".join(f"- {text}" for text in SCALARS) + "\n- {a: 1e-3, <<: {b: 010}}\n")
    found = read_yaml(file)
    assert found == read(file) == [*SCALARS.values(), {"a": 0.001, "b": 10}]
    assert [*map(type, found)] == [*map(type, [*SCALARS.values(), {}])]


def test_a_written_text_stays_one_for_either_version(tmp_path):
    texts = [*SCALARS, "<<", "1.0", "null", "a: b"]
    file = tmp_path / "file.yaml"
    file.write_text(yaml.dump(texts, Dumper=Dumper))
    assert read_yaml(file) == read(file) == yaml.safe_load(file.read_text()) == texts
    numbers = [1, -8, 0.001, 1e-05, 1e22, math.inf, True, None]
    file.write_text(yaml.dump(numbers, Dumper=Dumper))
    assert read_yaml(file) == yaml.safe_load(file.read_text()) == numbers


def test_a_call_of_snakemake_reads_a_file_as_every_other_call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = copy.deepcopy(SMALL) | {"time_limit_minutes": "LIMIT"}
    settings["workloads"]["virus-cnn"] |= {
        "batch": {"rows": 8, "per": "global"},
        "learning_rate": {"value": "RATE", "reference_batch": 64},
    }
    whole = yaml.safe_dump(settings).replace("RATE", "1e-3")
    file = tmp_path / "small.yaml"
    file.write_text(whole.replace("LIMIT", "010"))
    for e in (load(file), Study(ROOT, tmp_path, [file], {}).default):
        assert e.settings["time_limit_minutes"] == 10
        assert e.settings["workloads"]["virus-cnn"]["learning_rate"]["value"] == 0.001
    file.write_text(whole.replace("LIMIT", "1:30"))
    named = r"small\.yaml: time_limit_minutes: '1:30': is not a (whole )?number"
    with pytest.raises(InputError, match=named):
        load(file)
    with pytest.raises(SystemExit, match=named):
        Study(ROOT, tmp_path, [file], {})
