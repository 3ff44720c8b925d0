"""What a run.json may hold, and what it must."""

from __future__ import annotations

import copy
import functools
from pathlib import Path

import pytest
import yaml
from fixtures_runs import STEP_TIMES, FakeExperiment

from escala.core.files import read_json, write_json
from escala.record.schema import SCHEMA, read_result, validate_run
from escala.strategies.knobs import workload_knobs


@pytest.fixture
def ok(tmp_path) -> dict:
    """A run of two ranks that ended well."""
    return read_json(FakeExperiment(tmp_path).add("horovod-mpi", "1x2", 3.0, 1).runs[0])


@pytest.fixture
def failed(tmp_path) -> dict:
    """The same run, whose rank 1 died."""
    experiment = FakeExperiment(tmp_path)
    experiment.add("horovod-mpi", "1x2", 3.0, 1, failed={1: ("failed", "rank 1 died")})
    return read_json(experiment.runs[0])


def test_every_key_is_described():
    def undescribed(node: object, path: str = "") -> list[str]:
        if not isinstance(node, dict):
            return []
        missing = [
            f"{path}.{key}"
            for key, child in node.get("properties", {}).items()
            if "description" not in child
        ]
        inner = {k: v for k, v in node.items() if k not in ("allOf", "if")}
        return missing + [m for k, v in inner.items() for m in undescribed(v, f"{path}.{k}")]

    assert undescribed(yaml.safe_load(SCHEMA.read_text())) == []


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


def test_a_fit_is_valid_and_has_no_rate(ok):
    """It is one epoch of one step, and nothing is compiled or drawn."""
    ok["training"] |= {"steps_per_epoch": None, "learning_rate": None, "optimizer": "lbfgs"}
    ok["seconds"] |= dict.fromkeys(STEP_TIMES)
    ok["seeds"] = {"weights": None, "shuffle": None}
    validate_run(ok)
    ok["training"]["learning_rate"] = 0.001
    with pytest.raises(ValueError, match="learning_rate"):
        validate_run(ok)


def test_a_class_has_scores_just_where_it_has_test_rows(ok):
    unknown = {"precision": None, "recall": None, "f1": None, "support": 0}
    ok["evaluation"]["per_class"]["SARS"] = unknown
    validate_run(ok)
    for wrong in (unknown | {"support": 3}, unknown | {"recall": 0.0}):
        ok["evaluation"]["per_class"]["SARS"] = wrong
        with pytest.raises(ValueError, match="SARS"):
            validate_run(ok)


def test_a_timing_run_has_a_repeat_and_a_probe_run_may_have_one(ok):
    validate_run(ok | {"instrument": "timeline", "repeat": None})
    validate_run(ok | {"instrument": "energy", "repeat": 2})
    with pytest.raises(ValueError, match="repeat"):
        validate_run(ok | {"repeat": None})


@pytest.mark.parametrize(
    "key",
    ["seconds", "evaluation", "ranks.obtained", "training.optimizer", f"seconds.{STEP_TIMES[0]}"],
)
def test_an_ok_run_has_every_measurement(ok, key):
    *parents, last = key.split(".")
    functools.reduce(dict.get, parents, ok)[last] = None
    with pytest.raises(ValueError, match=key):
        validate_run(ok)


@pytest.mark.parametrize(
    "changes", [{"reason": "none"}, {"epochs": []}, {"layout": "two"}, {"started": "yesterday"}]
)
def test_what_is_wrong_is_named(ok, changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        validate_run(ok | changes)


def test_a_failure_has_a_reason(failed):
    validate_run(failed)
    for reason in (None, ""):
        with pytest.raises(ValueError, match="reason"):
            validate_run(failed | {"reason": reason})


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
