"""The check of a workload finds each way to break the contract, and what a run would ignore."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
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


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    """Leave the thread pools as they are: TensorFlow may be in use in this process."""
    monkeypatch.setattr("escala.engines.tensorflow.engine.set_threads", lambda threads: None)


def subject(folder: Path, **data: Path) -> subjects.Subject:
    (scratch := folder.parent / "scratch").mkdir()
    return subjects.subject(folder, scratch, data.get("dataset"), None, {})


def network(folder: Path, **data: Path) -> contract.Network:
    return contract.Network(subject(folder, **data).plan)


@pytest.mark.parametrize(
    ("check", "old", "new", "reason"),
    [
        ("build", 'settings["words"]', 'next(iter(NUMBERS)) + settings["words"]', "two calls of"),
        ("build", "def optimizer", "def optimiser", "model.py has no optimizer"),
        ("build", "Dense(*outputs", "Dense(3", r"shape \(3,\) for a row, .* outputs is \(5,\)"),
        ("row losses", LOSS, f"{LOSS} / tf.reduce_sum({LOSS})", "among 8 rows, and 1 by itself"),
        ("row losses", "(one_hot(given))",
         "(one_hot(given) - tf.reduce_mean(one_hot(given), axis=0))", "depends on the other rows"),
        ("gradients", LOSS, f"tf.stop_gradient({LOSS})", "no gradient for conv1d"),
        ("gradients", LOSS, f"{LOSS} * float('inf')", "infinite or not a number"),
        ("loss falls", "Adam(learning_rate)", "Adam(0.0)", "after 50 steps"),
        ("loss falls", "(found)", "(layers.BatchNormalization()(found))", None),
    ],
)  # fmt: skip
def test_a_broken_promise_is_refused(own_workload, check, old, new, reason):
    changed(own_workload / "model.py", old, new)
    with open(own_workload / "model.py", "a") as code:
        code.write("\n\nNUMBERS = iter(range(9))\n")
    found = network(own_workload)
    if reason is None:
        assert "depends on the rows together" in contract.CHECKS[check](found)
        return
    with pytest.raises(Refused, match=reason):
        contract.CHECKS[check](found)


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
        (HITS, "{}", r"shape \(8,\) for 8 rows and \(0,\) for none"),
        (f"{HITS}.reshape(-1, 1)[:3]", "{}", r"shape \(3, 1\) for 8 rows and \(0, 1\) for none"),
        (f"({HITS}.reshape(-1, 1) if len(targets) else {HITS})", "{}",
         r"shape \(8, 1\) for 8 rows and \(0,\) for none"),
        (f"{HITS}.reshape(-1, 1) - {HITS}.sum()", "{}", "depend on the other rows"),
        (f"{HITS}.reshape(-1, 1)", "{'rate': float('nan')}", "score rate is nan"),
        (f"{HITS}.reshape(-1, 1)", None, "scores.py has only counts"),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("check", "old", "new", "reason"),
    [
        ("fit", '": outputs}', '": (3,)}', r"fit gives fractions \(2,\), and shapes"),
        ("fit", "counts / ", "np.random.random(2) / ", "two fits to the same rows"),
        ("probabilities", "len(inputs[0])", "1", r"shape \(1, 2\), or rows whose sum"),
        ("probabilities", "counts.sum()", "1", r"shape \(\d+, 2\), or rows whose sum"),
        ("fit", "", "", None),
    ],
)
def test_a_broken_promise_of_a_fit_is_refused(fitted_workload, check, old, new, reason):
    if reason is None:
        assert FIT_CHECKS[check](subject(fitted_workload)) == "fractions (2,), twice the same"
        return
    changed(fitted_workload / "model_fit.py", old, new)
    with pytest.raises(Refused, match=reason):
        FIT_CHECKS[check](subject(fitted_workload))


@pytest.mark.usefixtures("as_forks")
def test_a_no_ends_with_1_and_an_error_is_named_by_file_and_line(own_workload):
    changed(own_workload / "model.py", "    [codes] = specs\n", "    codes = specs[3]\n")
    (own_workload / "model_torch.py").touch()
    call = [sys.executable, "-m", "escala.command", "check", str(own_workload)]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    summary, declared, build = done.stdout.splitlines()
    assert "cannot be measured" in summary
    assert declared.split()[:2] == ["declaration", "yes"]
    assert "(other networks: --engine torch)" in declared
    assert build.split()[:2] == ["build", "no"]
    assert f"tuple index out of range. Remedy: see {own_workload}/model.py, line" in build


#: What the loss of every row becomes, and the check of it that says no, with the reason.
BROKEN = [
    ("torch", "", None, None),
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
        assert list(given) == list(contract.CHECKS) and found.facts["rows_are_independent"] is True


HEAD = "import tensorflow as tf\nfrom tensorflow.keras import layers\n"
#: A complete regression from four numbers to one.
BUILD = """
def build(specs, outputs, settings, knobs):
    given = layers.Input((4,))
    return tf.keras.Model(given, layers.Reshape(outputs)(layers.Dense(1)(given)))
"""
OPTIMIZER = """
def optimizer(settings, learning_rate, knobs):
    return tf.keras.optimizers.SGD(learning_rate)
"""
LOSSES = """
def row_losses(targets, outputs, settings):
    return tf.square(targets - outputs)
"""
OFFERS = """
def predict(outputs):
    return outputs

def correct(targets, outputs):
    return tf.cast(tf.abs(targets - outputs) < 1, tf.float32)
"""
SCORES = "def score(targets, predictions, description):\n    return {'rows': float(len(targets))}\n"
NUMBERS = """
inputs: [{shape: [4], dtype: float32}]
targets: {shape: [], dtype: float32, values: [0, 1]}
"""


@pytest.fixture
def write(tmp_path: Path, registries: None) -> Callable[..., Path]:
    """Return a function that writes the folder of a workload from parts of its `model.py`."""

    def written(*parts: str, example: str = NUMBERS, scores: str = SCORES) -> Path:
        folder = tmp_path / "mine"
        folder.mkdir()
        declared = "description: One.\ndata_kind: numbers\nsettings: "
        declared += "{type: object, additionalProperties: false, properties: {}}\nexample:\n"
        (folder / "workload.yaml").write_text(declared + textwrap.indent(example, "  "))
        code = "".join(map(textwrap.dedent, parts))
        names = ("build", "optimizer", "row_losses", "correct")
        for name, default in zip(names, (BUILD, OPTIMIZER, LOSSES, OFFERS), strict=True):
            code += "" if f"def {name}(" in code else default
        (folder / "model.py").write_text(HEAD + code)
        if scores:
            (folder / "scores.py").write_text(scores)
        return folder

    return written


SEQUENTIAL = "[layers.Input((4,)), layers.Dense(1), layers.Reshape(())]"
#: A part of `model.py` that a run would ignore, and a part of the message.
IGNORED = {
    "its own train_step": f"""
        class Own(tf.keras.Sequential):
            def train_step(self, data):
                raise RuntimeError

        def build(specs, outputs, settings, knobs):
            return Own({SEQUENTIAL})
        """,
    "is compiled": f"""
        def build(specs, outputs, settings, knobs):
            model = tf.keras.Sequential({SEQUENTIAL})
            model.compile("adam", "mse")
            return model
        """,
    "callback kept is never": f"""
        def build(specs, outputs, settings, knobs):
            model = tf.keras.Sequential({SEQUENTIAL})
            model.kept = [tf.keras.callbacks.EarlyStopping()]
            return model
        """,
    "class_weight of the module": "class_weight = {0: 1.0, 1: 5.0}\n",
    "scales the loss": """
        def optimizer(settings, learning_rate, knobs):
            inner = tf.keras.optimizers.SGD(learning_rate)
            return tf.keras.mixed_precision.LossScaleOptimizer(inner)
        """,
    "optimizer returns str": "def optimizer(settings, learning_rate, knobs):\n    return 'adam'\n",
    "exchanged twice": """
        def optimizer(settings, learning_rate, knobs):
            # So Horovod makes its own, in the module that wraps those of Keras.
            base = tf.keras.optimizers.SGD
            return type("SGD", (base,), {"__module__": "horovod._keras"})(learning_rate)
        """,
    "float16": """
        def build(specs, outputs, settings, knobs):
            given = layers.Input((4,))
            found = layers.Dense(1, dtype="mixed_float16")(given)
            return tf.keras.Model(given, layers.Reshape(outputs, dtype="float32")(found))
        """,
}


@pytest.mark.parametrize("reason", IGNORED)
def test_what_a_run_would_ignore_is_refused_by_name(write, reason):
    with pytest.raises(InputError, match=reason) as refused:
        contract.CHECKS["build"](network(write(IGNORED[reason])))
    assert refused.value.where.endswith("mine/model.py") and refused.value.remedy


def test_a_complete_regression_is_accepted_and_may_use_what_keras_offers(write):
    """Neither clipping nor decay, nor a policy without scaled losses, is ignored."""
    folder = write("""
        from tensorflow.keras import callbacks, losses, metrics

        def build(specs, outputs, settings, knobs):
            # Without an input layer, they get their variables from the rows.
            dense = layers.Dense(1, dtype="mixed_bfloat16", kernel_regularizer="l2")
            return tf.keras.Sequential([dense, layers.Reshape(outputs, dtype="float32")])

        def optimizer(settings, learning_rate, knobs):
            return tf.keras.optimizers.AdamW(learning_rate, clipnorm=1.0, ema_momentum=0.9)
        """)
    assert "2 variables, 5 parameters" in contract.CHECKS["build"](network(folder))


FOUR_TO_ONE = """
def build(specs, outputs, settings, knobs):
    return tf.keras.Sequential([layers.Input((4,)), layers.Dense(1)])
"""
LOSS_OF = "\ndef row_losses(targets, outputs, settings):\n    return "


@pytest.mark.parametrize(
    ("part", "reason", "remedy"),
    [
        (FOUR_TO_ONE + LOSS_OF + "tf.keras.losses.mean_squared_error(targets, outputs)\n",
         r"row 0 is .* likely cause is that targets are \(8,\) and outputs \(8, 1\)",
         "this row only"),
        (FOUR_TO_ONE, r"shape \(8, 8\) for 8 rows; the likely cause is", "one number for each row"),
        (LOSS_OF + "tf.keras.losses.mean_squared_error(targets, outputs)\n",
         r"shape \(\) for 8 rows$", "mean over the last axis"),
        ("class Noisy(layers.Layer):\n"
         "    def call(self, rows):\n"
         "        return rows + tf.random.normal(tf.shape(rows))\n"
         + FOUR_TO_ONE.replace("Dense(1)", "Dense(1), Noisy(), layers.Reshape(())"),
         "two calls of the model with the same rows", "only in training"),
    ],
)  # fmt: skip
def test_the_likely_cause_of_a_wrong_loss_is_named(write, part, reason, remedy):
    with pytest.raises(Refused, match=reason) as refused:
        contract.CHECKS["row losses"](network(write(part)))
    assert remedy in refused.value.remedy


@pytest.mark.usefixtures("as_forks")
def test_a_whole_workload_is_trained_by_one_and_by_two_ranks(write, tmp_path):
    (tmp_path / "scratch").mkdir()
    found = [*answers(write(), tmp_path / "scratch")]
    assert all(answer.able for answer in found), [*map(str, found)]
    assert len(found) == 1 + len(contract.CHECKS) + len(STEPS_CHECKS)


@pytest.mark.parametrize(
    ("array", "held"),
    [
        ("dtype: float32", lambda n: n.min() < -1 and n.max() > 1),
        ("dtype: float64, below: 1", lambda n: 0 <= n.min() < 0.1 and 0.9 < n.max() < 1),
        ("dtype: float32, values: [0, 1]", lambda n: set(n.ravel()) == {0.0, 1.0}),
        ("dtype: int8, from: -1, below: 2", lambda n: set(n.ravel()) == {-1, 0, 1}),
        ("dtype: uint8, from: -1", "-1: is no number of uint8"),
        ("dtype: uint8, below: 257", "256: is no number of uint8"),
        ("dtype: float16, below: 100000", "is no number of float16"),
        ("dtype: float32, from: 1, below: 1", "not above"),
        ("dtype: int8, values: [0, 1], below: 2", "values, and from or below too"),
    ],
)
def test_an_example_says_which_numbers_its_arrays_hold(write, array, held):
    folder = write(example=f"inputs: [{{shape: [4], {array}}}]\ntargets: {{shape: [], {array}}}\n")
    if isinstance(held, str):
        with pytest.raises(InputError, match=held):
            subject(folder)
        return
    (inputs,), targets = reader(subject(folder).split).gather("train", slice(None))
    assert held(inputs) and len(np.unique(targets)) > 1
