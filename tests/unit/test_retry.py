"""Checking and forgetting failed runs, and the scripts behind the report's rules."""

from __future__ import annotations

import json

import pytest
from fixtures_runs import FakeExperiment, three_configurations

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.record.schema import FORMAT, read_result
from escala.report.check_runs import check_runs
from escala.report.tables import tables
from tests.calls import python
from tests.conftest import ROOT


def _retry(folder: object, code: int = 0) -> str:
    done = python("-m", "escala.command", "retry", folder, variables={"PYTHONPATH": str(ROOT)})
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_runs_that_failed_are_listed_and_forgotten(tmp_path, capsys):
    experiment = three_configurations(tmp_path)
    timeline = experiment.add_timeline("horovod-gloo", "1x2", status="failed")
    (failed,) = [run for run in experiment.runs if read_json(run)["status"] != "ok"]
    assert not check_runs(experiment.runs, page=False)
    said = capsys.readouterr().out
    assert f"{failed}: failed: rank 1 was ended by signal 9" in said
    assert "1 of 9 runs" in said
    assert "uv run escala retry results/demo" in said
    said = _retry(experiment.folder)
    assert f"removed {failed}" in said
    assert not failed.exists()
    assert not timeline.exists()
    assert all(run.exists() for run in experiment.runs if run != failed)
    assert "0 of 8" in _retry(experiment.folder)


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


def test_a_run_of_another_version_is_forgotten_with_its_format(tmp_path):
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    old = experiment.runs[0]
    old.write_text(json.dumps(read_json(old) | {"format": FORMAT - 1}))
    said = _retry(experiment.folder)
    assert f"format {FORMAT - 1}: is not the present one, {FORMAT}" in said
    assert not old.exists() and "1 of 3 runs will be repeated" in said


def test_a_run_that_cannot_be_read_is_named_and_forgotten(tmp_path, capsys):
    experiment = three_configurations(tmp_path)
    cut, kept = experiment.runs[0], experiment.runs[1]
    session = kept.parent / "sessions" / "20250101-000000-older.json"
    for path in (cut, session):
        path.write_bytes(b"")
    with pytest.raises(InputError, match="is empty, cut off") as refused:
        check_runs(experiment.runs, page=False)
    assert f"{cut}: '0 bytes'" in str(refused.value)
    # An older measurement is needed by nothing else. It is named once, and left out.
    for _ in range(2):
        tables(experiment.runs[1:], experiment.dataset_files)
    said_of_it = capsys.readouterr().err
    assert said_of_it.count(str(session)) == 1 and "is empty, cut off" in said_of_it
    said = _retry(experiment.folder)
    assert f"removed {cut}: it cannot be read" in said
    assert not cut.exists() and not session.exists() and kept.exists()


def test_nothing_failed(tmp_path, capsys):
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    assert check_runs(experiment.runs, page=False)
    assert "All 3 runs ended ok" in capsys.readouterr().out
    assert check_runs(experiment.runs[:1], page=False)
    said = capsys.readouterr().out
    assert "The only run ended ok" in said and f"Results: {experiment.runs[0]}" in said


def test_the_answer_is_named_only_by_a_call_that_made_the_page(tmp_path, monkeypatch, capsys):
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    folder = tmp_path / "results" / "demo"
    (folder / "index.html").touch()
    monkeypatch.chdir(tmp_path)
    for page in (False, True):
        check_runs(experiment.runs, page)
        assert ("Answer: results/demo/index.html" in capsys.readouterr().out) is page


def test_a_folder_without_runs_is_wrong_input(tmp_path):
    assert "holds no runs" in _retry(tmp_path, code=2)
