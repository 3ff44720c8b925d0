"""Checking and forgetting failed runs, and the scripts behind the report's rules."""

from __future__ import annotations

import json

import pytest
from fixtures_runs import FakeExperiment, three_configurations

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.record.schema import FORMAT, read_result
from escala.report.tables import tables
from tests.calls import python
from tests.conftest import ROOT


def _script(name: str, *arguments: object, code: int = 0) -> str:
    variables = {"PYTHONPATH": str(ROOT), "ESCALA_STORE": "off"}
    file = ROOT / "scripts" / f"{name}.py"
    done = python(file, *arguments, variables=variables, cwd=None)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_runs_that_failed_are_listed_and_forgotten(tmp_path):
    experiment = three_configurations(tmp_path)
    timeline = experiment.add_timeline("horovod-gloo", "1x2", status="failed")
    (failed,) = [run for run in experiment.runs if read_json(run)["status"] != "ok"]
    said = _script("check_runs", "--runs", *experiment.runs, code=1)
    assert f"{failed}: failed: rank 1 was ended by signal 9" in said
    assert "1 of 9 runs" in said
    assert "uv run escala retry results/demo" in said
    said = _script("retry", experiment.folder)
    assert f"removed {failed}" in said
    assert not failed.exists()
    assert not timeline.exists()
    assert all(run.exists() for run in experiment.runs if run != failed)
    assert "0 of 8" in _script("retry", experiment.folder)


@pytest.mark.parametrize("left", [b"", b'{"status": "o', b"[]", b"\xff\x00", b"{}"])
def test_a_run_that_is_not_whole_is_refused_with_the_remedy(tmp_path, left):
    path = tmp_path / "results" / "demo" / "runs" / "rep1" / "run.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(left)
    with pytest.raises(InputError) as error:
        read_result(path)
    assert f"{path}: '{len(left)} bytes': is empty, cut off" in str(error.value)
    assert f"uv run escala retry {tmp_path}/results/demo" in error.value.remedy


@pytest.mark.parametrize("form", [{}, {"format": FORMAT - 1}])
def test_a_run_of_another_format_or_of_none_is_not_taken_for_one_of_the_present(tmp_path, form):
    (tmp_path / "run.json").write_text(json.dumps({"status": "ok"} | form))
    with pytest.raises(InputError, match=f"is not the present one, {FORMAT}"):
        read_result(tmp_path / "run.json")


def test_a_run_that_cannot_be_read_is_named_and_forgotten(tmp_path, capsys):
    experiment = three_configurations(tmp_path)
    cut, kept = experiment.runs[0], experiment.runs[1]
    session = kept.parent / "sessions" / "20250101-000000-older.json"
    for path in (cut, session):
        path.write_bytes(b"")
    said = _script("check_runs", "--runs", *experiment.runs, code=2)
    assert f"{cut}: '0 bytes': is empty, cut off" in said
    # An older measurement is needed by nothing else. It is named once, and left out.
    for _ in range(2):
        tables(experiment.runs[1:], experiment.dataset_files)
    said_of_it = capsys.readouterr().err
    assert said_of_it.count(str(session)) == 1 and "is empty, cut off" in said_of_it
    said = _script("retry", experiment.folder)
    assert f"removed {cut}: it cannot be read" in said
    assert not cut.exists() and not session.exists() and kept.exists()


def test_nothing_failed(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    assert "All 3 runs ended ok" in _script("check_runs", "--runs", *experiment.runs)
    said = _script("check_runs", "--runs", experiment.runs[0])
    assert "The only run ended ok" in said and f"Results: {experiment.runs[0]}" in said


def test_the_answer_is_named_only_by_a_call_that_made_the_page(tmp_path, monkeypatch):
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    folder = tmp_path / "results" / "demo"
    (folder / "index.html").touch()
    monkeypatch.chdir(tmp_path)
    assert "Answer:" not in _script("check_runs", "--runs", *experiment.runs)
    said = _script("check_runs", "--page", "--runs", *experiment.runs)
    assert "Answer: results/demo/index.html" in said


def test_a_folder_without_runs_is_wrong_input(tmp_path):
    assert "holds no runs" in _script("retry", tmp_path, code=2)
