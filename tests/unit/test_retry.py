"""What a run.json may hold and must, and scripts that check and forget failed runs."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path

import pytest
from fixtures_runs import STEP_TIMES, FakeExperiment, three_configurations

from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.record.schema import FORMAT, merge_records, read_result, validate_run
from escala.report.steps import list_failures
from escala.report.tables import tables
from escala.strategies.knobs import workload_knobs
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
    assert not list_failures(experiment.runs, page=False)
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
    path.write_text(json.dumps({"status": "ok", "format": FORMAT - 1}))
    with pytest.raises(InputError, match=f"is not the present one, {FORMAT}"):
        read_result(path)


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
        list_failures(experiment.runs, page=False)
    assert f"{cut}: '0 bytes'" in str(refused.value)
    # An older measurement is needed by nothing else. It is named once, and left out.
    for _ in range(2):
        tables(experiment.runs[1:], experiment.dataset_files)
    said_of_it = capsys.readouterr().err
    assert said_of_it.count(str(session)) == 1 and "is empty, cut off" in said_of_it
    said = _retry(experiment.folder)
    assert f"removed {cut}: it cannot be read" in said
    assert not cut.exists() and not session.exists() and kept.exists()


def test_nothing_failed_and_the_answer_is_named_by_a_call_that_made_the_page(
    tmp_path, monkeypatch, capsys
):
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    (tmp_path / "results" / "demo" / "index.html").touch()
    monkeypatch.chdir(tmp_path)
    assert list_failures(experiment.runs, page=False)
    said = capsys.readouterr().out
    assert "All 3 runs ended ok" in said and "Answer:" not in said
    assert list_failures(experiment.runs[:1], page=True)
    said = capsys.readouterr().out
    assert "The only run ended ok" in said and "Answer: results/demo/index.html" in said
    (tmp_path / "empty").mkdir()
    assert "holds no runs" in _retry(tmp_path / "empty", code=2)


@pytest.fixture
def ok(tmp_path) -> dict:
    """A run of two ranks that ended well."""
    return read_json(FakeExperiment(tmp_path).add("horovod-mpi", "1x2", 3.0, 1).runs[0])


def test_losses_and_scores_after_an_epoch_may_be_recorded_or_absent(ok):
    validate_run(ok)
    epoch = ok["epochs"][0]
    assert not {"validation_loss", "scores"} & set(epoch)
    epoch |= {"validation_loss": 0.3, "scores": {"bleu": 0.2}}
    # A program may report percents, or a sum of fractions that is a little more than 1.
    for accuracy in (82, 1.0000001):
        epoch["validation_accuracy"] = accuracy
        validate_run(ok)
    ok["training"]["best_epoch"] = 1
    ok["evaluation"] = {"rows": 9, "scores": {"bleu": 0.25}}
    validate_run(ok)
    epoch["scores"] = {"bleu": None}
    with pytest.raises(ValueError, match="scores"):
        validate_run(ok)


def test_a_class_has_scores_just_where_it_has_test_rows(ok):
    unknown = {"precision": None, "recall": None, "f1": None, "support": 0}
    ok["evaluation"]["per_class"]["SARS"] = unknown
    validate_run(ok)
    ok["evaluation"]["per_class"]["SARS"] = unknown | {"support": 3}
    with pytest.raises(ValueError, match="SARS"):
        validate_run(ok)


def test_a_fit_is_valid_and_has_no_rate(ok):
    """It is one epoch of one step, and nothing is compiled or drawn."""
    ok["training"] |= {"steps_per_epoch": None, "learning_rate": None, "optimizer": "lbfgs"}
    ok["seconds"] |= dict.fromkeys(STEP_TIMES)
    ok["seeds"] = {"weights": None, "shuffle": None}
    validate_run(ok)
    ok["training"]["learning_rate"] = 0.001
    with pytest.raises(ValueError, match="learning_rate"):
        validate_run(ok)


def test_no_key_may_be_missing(ok):
    def holders(node: object):
        if isinstance(node, dict):
            yield node
            for child in node.values():
                yield from holders(child)

    del ok["seconds"]["averaging"]
    for index, holder in enumerate(holders(ok)):
        # What they hold depends on the data, or on what trains.
        free = ok["evaluation"]["per_class"], ok["data"]["sha256"], ok["versions"]
        if any(holder is each for each in free):
            continue
        for key in holder.keys() - (workload_knobs("virus-cnn") if holder is ok["knobs"] else {}):
            damaged = copy.deepcopy(ok)
            del list(holders(damaged))[index][key]
            with pytest.raises(ValueError, match=key):
                validate_run(damaged)


def test_a_process_reads_a_file_once_and_again_when_it_has_changed(tmp_path, monkeypatch):
    path, opened = Path(FakeExperiment(tmp_path).add("single", "1x1", 3.0, 1).runs[0]), []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda file: opened.append(file) or read_bytes(file))
    first, again = read_result(path), read_result(path)
    assert first == again and opened == [path]
    first["status"] = "changed by who read it"
    assert read_result(path)["status"] == "ok"
    write_json(path, read_json(path) | {"reason": "another"})
    assert read_result(path)["reason"] == "another" and len(opened) == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, None) for key in ("seconds", "evaluation", "ranks.obtained", "training.optimizer")),
        *((f"seconds.{STEP_TIMES[0]}", None), ("repeat", None), ("reason", "none"), ("epochs", [])),
        *(("layout", "two"), ("started", "yesterday")),
    ],
)
def test_an_ok_run_has_every_measurement_in_its_form(ok, key, value):
    validate_run(ok | {"instrument": "timeline", "repeat": None})
    validate_run(ok | {"instrument": "energy", "repeat": 2})
    *parents, last = key.split(".")
    functools.reduce(dict.get, parents, ok)[last] = value
    with pytest.raises(ValueError, match=key):
        validate_run(ok)


def test_a_failure_has_a_reason(tmp_path):
    experiment = FakeExperiment(tmp_path)
    experiment.add("horovod-mpi", "1x2", 3.0, 1, failed={1: ("failed", "rank 1 died")})
    failed = read_json(experiment.runs[0])
    validate_run(failed)
    for reason in (None, ""):
        with pytest.raises(ValueError, match="reason"):
            validate_run(failed | {"reason": reason})


def test_parts_of_a_record_are_merged_and_their_lists_joined():
    parts = {"a": {"b": 1, "c": [1]}, "d": 1}, {"a": {"c": [2, 3]}, "d": 2}
    assert merge_records(*parts) == {"a": {"b": 1, "c": [1, 2, 3]}, "d": 2}
