"""The check of a workload finds each way to break the contract."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from escala.check import network as contract
from escala.check import workload as subjects
from escala.check.workload import FIT_CHECKS, STEPS_CHECKS, answers
from escala.core.engines import ENGINES
from escala.core.errors import InputError, Refused
from escala.data import reader
from tests.conftest import ROOT
from tests.folders import changed, copied

LOSS = "tf.keras.losses.sparse_categorical_crossentropy(targets, outputs)"
BUILD = 'settings["words"]'


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    """Leave the thread pools as they are: TensorFlow may be in use in this process."""
    monkeypatch.setattr("escala.engines.tensorflow.engine.set_threads", lambda threads: None)


def subject(folder: Path, **data: Path) -> subjects.Subject:
    scratch = folder.parent / "scratch"
    scratch.mkdir()
    given = {"dataset": None, "kind": None, "settings": {}} | data
    return subjects.subject(folder, scratch, *given.values())


def network(folder: Path, **data: Path) -> contract.Network:
    return contract.Network(subject(folder, **data).plan)


@pytest.mark.parametrize(
    ("check", "old", "new", "reason"),
    [
        ("build", BUILD, f"next(iter(NUMBERS)) + {BUILD}", "two calls of build"),
        ("build", "def optimizer", "def optimiser", "model.py has no optimizer"),
        ("build", "Dense(*outputs", "Dense(3", r"shape \(3,\) for a row, .* outputs is \(5,\)"),
        ("row losses", LOSS, f"{LOSS} / tf.reduce_sum({LOSS})", "among 8 rows, and 1 by itself"),
        ("row losses", "(one_hot(given))",
         "(one_hot(given) - tf.reduce_mean(one_hot(given), axis=0))", "depends on the other rows"),
        ("gradients", LOSS, f"tf.stop_gradient({LOSS})", "no gradient for conv1d"),
        ("gradients", LOSS, f"{LOSS} * float('inf')", "infinite or not a number"),
        ("loss falls", "Adam(learning_rate)", "Adam(0.0)", "after 50 steps"),
    ],
)  # fmt: skip
def test_a_broken_promise_is_refused(own_workload, check, old, new, reason):
    changed(own_workload / "model.py", old, new)
    with open(own_workload / "model.py", "a") as code:
        code.write("\n\nNUMBERS = iter(range(9))\n")
    found = network(own_workload)
    with pytest.raises(Refused, match=reason):
        contract.CHECKS[check](found)


def test_after_wrong_losses_of_rows_nothing_more_is_checked(own_workload, tmp_path):
    changed(own_workload / "model.py", LOSS, f"tf.reduce_mean({LOSS})")
    (tmp_path / "scratch").mkdir()
    found = [*answers(own_workload, tmp_path / "scratch")]
    names = ["declaration", "build", "row losses"]
    assert [(answer.name, answer.able) for answer in found] == list(
        zip(names, (True, True, False), strict=True)
    )
    assert "gives the shape () for 8 rows" in str(found[-1])


def test_numbers_instead_of_classes_need_predictions_and_scores(tmp_path, registries):
    copied(tmp_path, "signals")
    found = network(tmp_path / "signals")
    assert all(contract.CHECKS[name](found) for name in ("build", "row losses", "gradients"))
    del found.module.predict
    (tmp_path / "signals" / "scores.py").unlink()
    with pytest.raises(InputError, match=r"outputs are \(\) and there are no classes") as refused:
        contract.CHECKS["build"](found)
    assert refused.value.reason.endswith("has no predict, scores.py")


HITS = "(targets == predictions)"


@pytest.mark.parametrize(
    ("counts", "scores_of", "reason"),
    [
        (f"{HITS}.reshape(-1, 1)", "{'rate': sums[0] / 8}", None),
        (HITS, "{'rate': sums[0] / 8}", r"gives the shape \(8,\) for 8 rows and \(0,\) for none"),
        (f"{HITS}.reshape(-1, 1) - {HITS}.sum()", "{}", "depend on the other rows"),
        (f"{HITS}.reshape(-1, 1)", "{'rate': float('nan')}", "score rate is nan"),
        (f"{HITS}.reshape(-1, 1)", None, "scores.py has only counts"),
    ],
)
def test_counts_must_be_of_rows_and_scores_of_their_sums_numbers(
    own_workload, counts, scores_of, reason
):
    code = f"def counts(targets, predictions):\n    return 1.0 * {counts}\n"
    code += f"def scores_of(sums):\n    return {scores_of}\n" if scores_of else ""
    (own_workload / "scores.py").write_text(code)
    found = subject(own_workload)
    vars(found)["predictions"] = np.array([0, 1, 2, 3, 4, 0, 1, 2])
    if reason is None:
        assert STEPS_CHECKS["scores"](found) == "rate from 1 sums over rows"
        return
    with pytest.raises(Refused, match=reason):
        STEPS_CHECKS["scores"](found)


def test_a_score_of_rows_by_a_name_that_is_taken_is_refused(own_workload):
    (own_workload / "scores.py").write_text(
        f"def counts(targets, predictions):\n    return 1.0 * {HITS}[:, None]\n"
        "def scores_of(sums):\n    return {'hits': sums[0]}\n"
    )
    with open(own_workload / "model.py", "a") as code:
        code.write("\n\ndef row_scores(targets, outputs):\n    return {NAME: targets}\n")
    found = subject(own_workload)
    checked = contract.Network(found.plan)
    checked.module.NAME = "hits"
    found.told["row_scores"] = checked.losses(checked.outputs())[1]
    vars(found)["predictions"] = np.array([0, 1, 2, 3, 4, 0, 1, 2])
    with pytest.raises(Refused, match="score hits is given by row_scores and by scores_of"):
        STEPS_CHECKS["scores"](found)
    checked.module.NAME = "loss"
    with pytest.raises(Refused, match="row_scores gives the score loss"):
        contract.CHECKS["row losses"](checked)


def test_batch_normalisation_is_told(own_workload):
    changed(own_workload / "model.py", "(found)", "(layers.BatchNormalization()(found))")
    assert "depends on the rows together" in contract.CHECKS["loss falls"](network(own_workload))


def test_rows_of_a_dataset_are_taken_or_those_of_an_example(own_workload, small_split, tmp_path):
    found = network(own_workload, dataset=small_split)
    inputs, _ = found.data.gather("train", slice(None))
    expected, _ = reader(small_split).gather("train", slice(24))
    assert (inputs[0] == expected[0]).all()
    assert "for all 4" in contract.CHECKS["gradients"](found)
    file = own_workload / "workload.yaml"
    file.write_text(file.read_text().partition("example:")[0])
    with pytest.raises(InputError, match="has no example"):
        subjects.subject(own_workload, tmp_path, None, None, {})


@pytest.fixture
def fitted_workload(tmp_path, registries) -> Path:
    """Return a workload that is trained by a fit, with an example of two classes."""
    folder = shutil.copytree(ROOT / "escala" / "workloads" / "majority", tmp_path / "constant")
    example = {
        "inputs": [{"shape": [3], "dtype": "float32"}],
        "targets": {"shape": [], "dtype": "int64"},
        "classes": ["a", "b"],
    }
    with open(folder / "workload.yaml", "a") as file:
        file.write(f"example: {example}\n")
    return folder


def test_a_fit_is_checked(fitted_workload):
    found = subject(fitted_workload)
    said = {name: check(found) for name, check in FIT_CHECKS.items()}
    assert said["fit"] == "fractions (2,), twice the same" and all(said.values())


@pytest.mark.parametrize(
    ("check", "old", "new", "reason"),
    [
        ("fit", '": outputs}', '": (3,)}', r"fit gives fractions \(2,\), and shapes"),
        ("fit", "counts / ", "np.random.random(2) / ", "two fits to the same rows"),
        ("probabilities", "len(inputs[0])", "1", r"shape \(1, 2\), or rows whose sum"),
        ("probabilities", "counts.sum()", "1", r"shape \(\d+, 2\), or rows whose sum"),
    ],
)
def test_a_broken_promise_of_a_fit_is_refused(fitted_workload, check, old, new, reason):
    changed(fitted_workload / "model_fit.py", old, new)
    with pytest.raises(Refused, match=reason):
        FIT_CHECKS[check](subject(fitted_workload))


@pytest.mark.usefixtures("as_forks")
def test_a_no_ends_with_1_and_an_error_is_named_by_file_and_line(own_workload):
    changed(own_workload / "model.py", "    [codes] = specs\n", "    codes = specs[3]\n")
    call = [sys.executable, "-m", "escala.command", "check", str(own_workload)]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    declared, build = done.stdout.splitlines()
    assert declared.split()[:2] == ["declaration", "yes"]
    assert build.split()[:2] == ["build", "no"]
    assert f"tuple index out of range. Remedy: see {own_workload}/model.py, line" in build


#: What the loss of every row becomes, and the check of it that says no, with the reason.
BROKEN = [
    ("torch", "", None, None),
    ("torch", ".mean()", "row losses", "gives the shape () for 8 rows"),
    ("torch", ".detach()", "gradients", "no gradient for 0.weight"),
    ("jax", "", None, None),
    ("jax", " * 0", "gradients", "no gradient for 0/kernel"),
]


@pytest.mark.parametrize(
    ("engine", "change", "check", "reason"),
    [pytest.param(*case, marks=getattr(pytest.mark, case[0])) for case in BROKEN],
)
def test_networks_of_other_engines_are_checked_in_their_own_python(
    tmp_path, registries, engine, change, check, reason
):
    folder = shutil.copytree(ROOT / "escala" / "workloads" / "mlp", tmp_path / "perceptron")
    (folder / "model.py").unlink()
    example = {
        "inputs": [{"shape": [4], "dtype": "float32"}],
        "targets": {"shape": [], "dtype": "int64"},
        "classes": ["a", "b", "c"],
    }
    with open(folder / "workload.yaml", "a") as file:
        file.write(f"example: {example}\n")
    with open(folder / f"{ENGINES[engine].module}.py", "a") as code:
        code.write("\n\nwhole = row_losses\n")
        code.write(f"def row_losses(*rows):\n    return whole(*rows){change}\n")
    (tmp_path / "scratch").mkdir()
    found = subjects.subject(folder, tmp_path / "scratch", None, None, {}, engine)
    given = {answer.name: answer for answer in found.network_answers()}
    assert "network" not in given, given
    refused = {name: answer.detail for name, answer in given.items() if not answer.able}
    if check:
        assert next(iter(refused)) == check and reason in refused[check]
    else:
        assert not refused
        assert list(given) == list(contract.CHECKS) and found.told["follows"] is True
