"""What a run.json may hold, and what it must."""

from __future__ import annotations

import copy

import pytest
import yaml
from fixtures_runs import OF_STEPS
from jsonschema import Draft202012Validator

from escala.record.schema import SCHEMA, validate_run
from escala.strategies.knobs import of_workload
from tests.conftest import KNOBS

DIGEST = "0" * 64
SCORES = {"precision": 0.5, "recall": 1.0, "f1": 0.6, "support": 3}
THREADS = {"intra_op": 1, "inter_op": 1}


@pytest.fixture
def ok() -> dict:
    """A run of two ranks that ended well."""
    return {
        "format": 8,
        "status": "ok",
        "reason": None,
        "experiment": "demo",
        "dataset": "demo-1000",
        "workload": "virus-cnn",
        "strategy": "horovod-mpi",
        "layout": "1x2",
        "variant": "tuned",
        "network": "native",
        "repeat": 1,
        "pair": None,
        "instrument": None,
        "session": "20260101T000000Z-1",
        "started": "2026-01-01T00:00:00+00:00",
        "wall_seconds": 20.5,
        "ranks": {
            "asked": 2,
            "obtained": 2,
            "launcher": "mpirun",
            "hosts": ["example"],
            "machines": [
                {"cpu": "x", "cores_available": 2, "cores_total": 2, "memory_bytes": 2**33}
            ],
            "interface": "lo",
            "oversubscribed": False,
            "one_clock": True,
            "shares": [0.5, 0.5],
            "cores": [[0], [1]],
            "threads": THREADS,
        },
        "training": {
            "kind": "steps",
            "global_batch": 64,
            "rows_per_rank": 32,
            "learning_rate": 0.001,
            "optimizer": "RMSprop",
            "epochs_asked": 1,
            "steps_per_epoch": 4,
            "epochs_done": 1,
            "stopped_early": False,
            "resumed_after": [],
            "parameters": 2067181,
            "train_rows": 210,
            "test_rows": 6,
            "validated_on": None,
            "target_accuracy": None,
        },
        "epochs": [
            {
                "epoch": 1,
                "steps": 4,
                "rows": 210,
                "train_seconds": 0.4,
                "epoch_wall_seconds": 0.5,
                "validation_seconds": None,
                "loss": 1.6,
                "accuracy": 0.2,
                "validation_accuracy": None,
            }
        ],
        "seconds": dict.fromkeys(
            (
                "startup",
                "loading",
                "build",
                "first_step",
                "first_prediction",
                "broadcast",
                "checkpoint",
                "train",
                "evaluation",
                "save",
            ),
            0.1,
        ),
        "step_seconds": {
            "median": 0.1,
            "p90": 0.2,
            "count": 4,
            "per_rank": [{"rank": 0, "median": 0.1, "p90": 0.2}],
        },
        "samples_per_second": 525.0,
        "evaluation": {
            "rows": 6,
            "accuracy": 0.5,
            "classes": ["COVID", "SARS"],
            "per_class": {"COVID": SCORES, "SARS": SCORES},
            "macro": SCORES,
            "weighted": SCORES,
            "confusion_matrix": [[3, 0], [3, 0]],
        },
        "weights_sha256": DIGEST,
        "data": {
            "provenance": "simulated",
            "leaky": False,
            "split_seed": 4,
            "sha256": dict.fromkeys(
                ("train.npy", "train_labels.npy", "test.npy", "test_labels.npy"), DIGEST
            ),
        },
        "machine": {
            "cpu": "a CPU",
            "cores_available": 2,
            "cores_total": 2,
            "memory_bytes": 2**33,
            "kernel": "6.1",
            "hostname": "host",
        },
        "versions": dict.fromkeys(
            (
                "python",
                "tensorflow-cpu",
                "tensorflow",
                "horovod",
                "openmpi",
                "numpy",
                "scikit-learn",
                "imbalanced-learn",
                "biopython",
                "snakemake",
            ),
            "1.0",
        ),
        "source_sha256": DIGEST,
        "knobs": {
            "cores_per_process": 1,
            "threads": THREADS,
            **{k: v for k, v in KNOBS.items() if k not in ("cores_per_process", "threads")},
        },
        "link": None,
        "energy": None,
        "collectives": None,
        "resources": None,
        "seeds": {"weights": 0, "shuffle": 0},
    }


@pytest.fixture
def fitted(ok: dict) -> dict:
    """A run that was fitted at once: one epoch of one step, and nothing compiled or drawn."""
    ok["training"] |= {"kind": "fit", "learning_rate": None, "optimizer": "lbfgs"}
    ok["seconds"] |= dict.fromkeys(OF_STEPS)
    ok["seeds"] = {"weights": None, "shuffle": None}
    return ok


@pytest.fixture
def failed(ok: dict) -> dict:
    """The same run, whose rank 1 died."""
    nothing = ("seconds", "step_seconds", "samples_per_second", "evaluation", "weights_sha256")
    ok |= dict.fromkeys(nothing) | {"epochs": [], "status": "failed", "reason": "rank 1 died"}
    ok["ranks"]["obtained"] = ok["training"]["optimizer"] = ok["training"]["parameters"] = None
    ok["training"]["epochs_done"] = 0
    return ok


def test_schema_is_a_schema():
    Draft202012Validator.check_schema(yaml.safe_load(SCHEMA.read_text()))


def test_every_key_is_described():
    def undescribed(node: object, path: str = "") -> list[str]:
        if not isinstance(node, dict):
            return []
        missing = [
            f"{path}.{key}"
            for key, child in node.get("properties", {}).items()
            if "description" not in child
        ]
        inner = {k: v for k, v in node.items() if k != "allOf"}
        return missing + [m for k, v in inner.items() for m in undescribed(v, f"{path}.{k}")]

    assert undescribed(yaml.safe_load(SCHEMA.read_text())) == []


def test_an_ok_run_is_valid(ok):
    validate_run(ok)


def test_losses_and_scores_after_an_epoch_may_be_recorded_or_absent(ok):
    epoch = ok["epochs"][0]
    assert not {"validation_loss", "scores"} & set(epoch)
    epoch |= {"validation_loss": 0.3, "scores": {"bleu": 0.2}}
    ok["training"]["best_epoch"] = 1
    validate_run(ok)
    epoch["scores"] = {"bleu": None}
    with pytest.raises(ValueError, match="scores"):
        validate_run(ok)


def test_a_workload_may_have_scores_of_its_own_and_must_have_some(ok):
    ok["evaluation"] = {"rows": 9, "scores": {"bleu": 0.25}}
    validate_run(ok)
    ok["evaluation"] = {"rows": 9}
    with pytest.raises(ValueError, match="evaluation"):
        validate_run(ok)


def test_a_fit_is_valid_and_has_no_rate(fitted):
    validate_run(fitted)
    fitted["training"]["learning_rate"] = 0.001
    with pytest.raises(ValueError, match="learning_rate"):
        validate_run(fitted)


@pytest.mark.parametrize("part", OF_STEPS)
def test_gradient_steps_have_every_part(ok, part):
    ok["seconds"][part] = None
    with pytest.raises(ValueError, match=part):
        validate_run(ok)


def test_the_digests_of_the_arrays_are_those_of_any_files(ok):
    ok["data"]["sha256"] = {"test/pictures.npy": DIGEST}
    validate_run(ok)
    ok["data"]["sha256"] = {"test/pictures.npy": "0"}
    with pytest.raises(ValueError, match=r"data\.sha256"):
        validate_run(ok)
    ok["data"]["sha256"] = {}
    with pytest.raises(ValueError, match=r"data\.sha256"):
        validate_run(ok)


def test_a_class_has_scores_just_where_it_has_test_rows(ok):
    unknown = {"precision": None, "recall": None, "f1": None, "support": 0}
    ok["evaluation"]["per_class"]["SARS"] = unknown
    validate_run(ok)
    for wrong in (unknown | {"support": 3}, unknown | {"recall": 0.0}):
        ok["evaluation"]["per_class"]["SARS"] = wrong
        with pytest.raises(ValueError, match="SARS"):
            validate_run(ok)


@pytest.mark.parametrize("status", ["failed", "out-of-memory", "timeout", "diverged"])
def test_failed_runs_are_valid(failed, status):
    validate_run(failed | {"status": status})


def test_a_timing_run_has_a_repeat_and_a_probe_run_may_have_one(ok):
    validate_run(ok | {"instrument": "timeline", "repeat": None})
    validate_run(ok | {"instrument": "energy", "repeat": 2})
    with pytest.raises(ValueError, match="repeat"):
        validate_run(ok | {"repeat": None})


@pytest.mark.parametrize(
    "key",
    [
        "seconds",
        "step_seconds",
        "samples_per_second",
        "evaluation",
        "weights_sha256",
        "ranks.obtained",
        "training.optimizer",
        "training.parameters",
    ],
)
def test_an_ok_run_has_every_measurement(ok, key):
    *parents, last = key.split(".")
    node = ok
    for parent in parents:
        node = node[parent]
    node[last] = None
    with pytest.raises(ValueError, match=key):
        validate_run(ok)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"reason": "none"}, "reason"),
        ({"epochs": []}, "epochs"),
        ({"status": "fine"}, "status"),
        ({"layout": "two"}, "layout"),
        ({"extra": 1}, "extra"),
        ({"wall_seconds": -1.0}, "wall_seconds"),
        ({"started": "yesterday"}, "started"),
    ],
)
def test_what_is_wrong_is_named(ok, changes, named):
    with pytest.raises(ValueError, match=named):
        validate_run(ok | changes)


@pytest.mark.parametrize("reason", [None, ""])
def test_a_failure_has_a_reason(failed, reason):
    with pytest.raises(ValueError, match="reason"):
        validate_run(failed | {"reason": reason})


def test_no_key_may_be_missing(ok):
    def holders(node: object):
        if isinstance(node, dict):
            yield node
            for child in node.values():
                yield from holders(child)

    for index, holder in enumerate(holders(ok)):
        # What they hold depends on the data.
        if holder is ok["evaluation"]["per_class"] or holder is ok["data"]["sha256"]:
            continue
        for key in holder.keys() - (of_workload("virus-cnn") if holder is ok["knobs"] else {}):
            damaged = copy.deepcopy(ok)
            del list(holders(damaged))[index][key]
            with pytest.raises(ValueError, match=key):
                validate_run(damaged)
