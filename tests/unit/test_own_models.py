"""Networks of a user's own: what is built, what the check requires, and what it refuses by name."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from escala.check import network as contract
from escala.check import rows
from escala.check import workload as subjects
from escala.check.workload import FIT_CHECKS, STEPS_CHECKS, answers
from escala.core.errors import InputError, Refused
from escala.data import reader

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

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, registries: None) -> Write:
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


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    """Leave the thread pools as they are: TensorFlow may be in use in this process."""
    monkeypatch.setattr("escala.engines.tensorflow.engine.set_threads", lambda threads: None)


def subject(folder: Path) -> subjects.Subject:
    (scratch := folder.parent / "scratch").mkdir()
    return subjects.subject(folder, scratch, None, None, {})


def network(folder: Path) -> contract.Network:
    return contract.Network(subject(folder).plan)


#: A part of `model.py` that a run would ignore, and a part of the message.
IGNORED = {
    "its own train_step": """
        class Own(tf.keras.Sequential):
            def train_step(self, data):
                raise RuntimeError

        def build(specs, outputs, settings, knobs):
            return Own([layers.Input((4,)), layers.Dense(1), layers.Reshape(())])
        """,
    "is compiled": """
        def build(specs, outputs, settings, knobs):
            model = tf.keras.Sequential([layers.Input((4,)), layers.Dense(1), layers.Reshape(())])
            model.compile("adam", "mse")
            return model
        """,
    "callback slower is never": """
        slower = [tf.keras.callbacks.ReduceLROnPlateau(monitor="loss")]
        """,
    "callback kept is never": """
        MIXED = {1: "a", "b": 2}

        def build(specs, outputs, settings, knobs):
            model = tf.keras.Sequential([layers.Input((4,)), layers.Dense(1), layers.Reshape(())])
            model.kept = [tf.keras.callbacks.EarlyStopping()]
            return model
        """,
    "class_weight of the module": "class_weight = {0: 1.0, 1: 5.0}\n",
    "use_ema": """
        def optimizer(settings, learning_rate, knobs):
            return tf.keras.optimizers.Adam(learning_rate, use_ema=True)
        """,
    "scales the loss": """
        def optimizer(settings, learning_rate, knobs):
            inner = tf.keras.optimizers.SGD(learning_rate)
            return tf.keras.mixed_precision.LossScaleOptimizer(inner)
        """,
    "optimizer returns str": """
        def optimizer(settings, learning_rate, knobs):
            return "adam"
        """,
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
    "2 outputs, as a list": """
        def build(specs, outputs, settings, knobs):
            given = layers.Input((4,))
            return tf.keras.Model(given, [layers.Dense(1)(given), layers.Dense(2)(given)])
        """,
}


@pytest.mark.parametrize("reason", IGNORED)
def test_what_a_run_would_ignore_is_refused_by_name(write, reason):
    with pytest.raises(InputError, match=reason) as refused:
        contract.CHECKS["build"](network(write(IGNORED[reason])))
    assert refused.value.where.endswith("mine/model.py") and refused.value.remedy


def test_a_fit_needs_one_class_for_each_row(write):
    folder = write(
        "OPTIMIZER = 'mean'\n"
        "def fit(inputs, targets, counts, settings): ...\n"
        "def shapes(specs, outputs, settings): ...\n"
        "def probabilities(weights, inputs): ...\n"
    )
    (folder / "model.py").rename(folder / "model_fit.py")
    with pytest.raises(InputError, match="the dataset has no classes, and a fit needs one class"):
        FIT_CHECKS["fit"](subject(folder))


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
        (LOSS_OF + "tf.nn.softmax(outputs) * targets\n",
         "among 8 rows, and .* by itself$", "contrastive"),
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


PLACES = """
inputs: [{shape: [6, 2], dtype: float32, from: 0, below: 1}]
targets: {shape: [6], dtype: int64}
classes: [loop, helix, strand]
"""
#: A model without variables before its first call. It has a wrapper with a layer that is never
#: built, in a layer in a layer.
WRAPPED = """
class Block(layers.Layer):
    def __init__(self):
        super().__init__()
        cell = layers.LSTM(4, dropout=0.2, return_sequences=True)
        self.inner = [layers.Dropout(0.1), layers.Bidirectional(cell)]

    def call(self, rows, training=None):
        for each in self.inner:
            rows = each(rows, training=training)
        return rows


class Own(tf.keras.Model):
    def __init__(self, classes):
        super().__init__()
        self.block, self.last = Block(), layers.Dense(classes, activation="softmax")

    def call(self, rows, training=None):
        return self.last(self.block(rows, training=training))


def build(specs, outputs, settings, knobs):
    return Own(outputs[-1])


def row_losses(targets, outputs, settings):
    losses = tf.keras.losses.sparse_categorical_crossentropy(targets, outputs)
    return tf.reduce_mean(losses, axis=1)
"""
RIGHT = """
def correct(targets, outputs):
    right = tf.argmax(outputs, axis=-1) == targets
    return tf.reduce_mean(tf.cast(right, tf.float32), axis=1)
"""


def test_the_classes_of_several_places_need_a_fraction_and_scores(write):
    folder = write(WRAPPED, "def correct_of_one(): ...\n", example=PLACES, scores="")
    code = folder / "model.py"
    code.write_text(code.read_text().replace(OFFERS, ""))
    with pytest.raises(InputError, match=r"several classes.*no correct, scores\.py") as refused:
        contract.CHECKS["build"](network(folder))
    assert "(rows,)" in refused.value.remedy


@pytest.mark.usefixtures("as_forks")
def test_a_wrapper_in_a_model_without_variables_is_trained_by_one_and_by_two_ranks(write, tmp_path):
    folder = write(WRAPPED, RIGHT, example=PLACES)
    (tmp_path / "scratch").mkdir()
    found = [*answers(folder, tmp_path / "scratch")]
    assert all(answer.able for answer in found), [*map(str, found)]
    assert len(found) == 1 + len(contract.CHECKS) + len(STEPS_CHECKS)


@pytest.mark.parametrize(
    ("array", "held"),
    [
        ("dtype: float32", lambda n: n.min() < -1 and n.max() > 1),
        ("dtype: float64, below: 1", lambda n: 0 <= n.min() < 0.1 and 0.9 < n.max() < 1),
        ("dtype: float32, values: [0, 1]", lambda n: set(n.ravel()) == {0.0, 1.0}),
        ("dtype: int8, from: -1, below: 2", lambda n: set(n.ravel()) == {-1, 0, 1}),
        ("dtype: uint8, below: 256", lambda n: n.max() > 127),
        ("dtype: bool", lambda n: set(n.ravel()) == {False, True}),
    ],
)
def test_an_example_says_which_numbers_its_arrays_hold(write, array, held):
    folder = write(example=f"inputs: [{{shape: [4], {array}}}]\ntargets: {{shape: [], {array}}}\n")
    arrays = reader(subject(folder).split)
    (inputs,), targets = arrays.gather("train", slice(None))
    assert held(inputs) and len(np.unique(targets)) > 1


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        ("dtype: uint8, from: -1", "-1 is too small for uint8"),
        ("dtype: uint8, below: 257", "too large for uint8.*give at most 255"),
        ("dtype: int8, below: 2.5", "not whole"),
        ("dtype: float16, below: 100000", "too large for float16"),
        ("dtype: float32, from: 1", "from has no below"),
        ("dtype: float32, from: 1, below: 1", "not above"),
        ("dtype: int8, values: [0, 1], below: 2", "values, and from or below too"),
    ],
)
def test_numbers_that_an_array_cannot_hold_are_refused(write, array, reason):
    folder = write(example=f"inputs: [{{shape: [4], {array}}}]\ntargets: {{shape: [], {array}}}\n")
    with pytest.raises(InputError, match=reason):
        subject(folder)


def test_a_word_that_yaml_reads_as_no_text_is_named(write):
    folder = write(example=PLACES.replace("loop, helix, strand", "true, false"))
    with pytest.raises(InputError, match=r"classes\.0.*is not text.*in quotes.*true, false"):
        rows.draw_rows(folder, folder)
