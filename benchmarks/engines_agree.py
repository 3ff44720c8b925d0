"""How far another engine agrees with TensorFlow on the same weights and rows of each workload.

Prints, for each workload, the loss, the largest relative difference of a gradient, and that of the
losses of an epoch, computed with numbers of 64 bits and of 32. It needs the engine's environment.

    python benchmarks/engines_agree.py [--engine jax] [--small]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.engines import DEFAULT, ENGINES
from escala.data.base import Spec
from escala.engines import environments

FOLDER = Path(__file__).parents[1]
STEPS, SEED = 10, 3
PRECISIONS = ("float64", "float32")


@dataclass(frozen=True)
class Case:
    """A network with rows drawn at random.

    Attributes
    ----------
    inputs : specs of the rows.
    outputs : shape of the output for one row.
    batch : rows of a step.
    rate : learning rate.
    parameters : how many the network has in all.
    settings : those of the workload that are not the defaults. Dropout is always 0.
    """

    workload: str
    inputs: tuple[Spec, ...]
    outputs: tuple[int, ...]
    batch: int
    rate: float
    parameters: int
    settings: Mapping[str, Any] = field(default_factory=dict)


#: The network by which Cruz Varona (2021) compared the two frameworks.
FISH_MNIST = {
    "neurons": [192],
    "activation": "sigmoid",
    "cost": "mean-square",
    "optimizer": "sgd",
}
_DIGITS = (Spec("image", (28, 28, 1), "uint8", 256),)
_FISH = (Spec("outline", (148, 197, 1), "float16"),)
_TABLE = (Spec("features", (30,), "float32"),)
#: The networks of the source works in their sizes.
WHOLE = {
    "virus-cnn": Case(
        "virus-cnn", (Spec("codes", (1000,), "uint8", 5),), (5,), 32, 1e-4, 2_067_181
    ),
    "mnist-mlp": Case("mnist-mlp", _DIGITS, (10,), 128, 1e-3, 669_706),
    "mnist-mlp (S4)": Case("mnist-mlp", _DIGITS, (10,), 50, 0.5, 152_650, FISH_MNIST),
    "resnet34": Case("resnet34", _FISH, (9,), 16, 0.01, 21_283_017 + 17_024),
    "resnet34 (form: pytorch)": Case(
        "resnet34", _FISH, (9,), 16, 0.01, 21_283_017 + 17_024, {"form": "pytorch"}
    ),
    "mlp": Case("mlp", _TABLE, (2,), 32, 0.1, 2_114),
}
_MASK = (Spec("image", (45, 48, 1), "float16"),)
#: Small ones of the same layers.
SMALL = {
    "virus-cnn": Case("virus-cnn", (Spec("codes", (63,), "uint8", 5),), (5,), 16, 1e-3, 150_253),
    "mnist-mlp": Case(
        "mnist-mlp", (Spec("image", (8, 8, 1), "uint8", 256),), (3,), 16, 1e-3, 1_363,
        {"neurons": [16, 16]},
    ),
    "mnist-mlp (S4)": WHOLE["mnist-mlp (S4)"],
    "resnet34": Case("resnet34", _MASK, (3,), 8, 0.05, 20_119, {"depth": 10, "width": 4}),
    "resnet34 (form: pytorch)": Case(
        "resnet34", _MASK, (3,), 8, 0.05, 20_119, {"depth": 10, "width": 4, "form": "pytorch"}
    ),
    "mlp": WHOLE["mlp"],
    "mlp (half-mean-square)": Case(
        "mlp", _TABLE, (2,), 32, 0.1, 2_114,
        {"activation": "leaky-relu", "cost": "half-mean-square", "output": "softmax"},
    ),
}  # fmt: skip


def settings_of(case: Case) -> dict[str, Any]:
    """Return all settings of a case's workload."""
    from escala.workloads import WORKLOADS

    defaults = WORKLOADS[case.workload].setting_defaults
    dropout = {"dropout": 0.0} if "dropout" in defaults else {}
    return defaults | dropout | case.settings


def knobs_of(case: Case) -> dict[str, Any]:
    """Return the knobs of a case's workload."""
    from escala.workloads import WORKLOADS

    return WORKLOADS[case.workload].knob_defaults


def drawn(case: Case) -> tuple[list[np.ndarray], np.ndarray]:
    """Return inputs and targets of `STEPS` batches."""
    random, count = np.random.default_rng(SEED), STEPS * case.batch
    [spec] = case.inputs
    shape = (count, *spec.shape)
    if spec.below:
        inputs = random.integers(0, spec.below, shape, dtype=spec.dtype)
    elif spec.dtype == "float16":
        brightness = random.random((count, 1, 1, 1)) if spec.name == "outline" else 1
        inputs = (random.random(shape) * brightness).astype(np.float16)
    else:
        inputs = random.standard_normal(shape).astype(spec.dtype)
    return [inputs], random.integers(0, case.outputs[0], count)


def by_tensorflow(case: Case, precision: str = "float32") -> dict[str, np.ndarray]:
    """Return weights, rows, and what TensorFlow computes with them.

    The names are `weight0…`, `input0…`, `targets`; of the first batch `loss` and `gradient0…` in
    training, and with 32 bits each row's `losses`, `correct` and `predictions` in an evaluation;
    `curve`, the loss of each step; and `end0…`, the weights after these steps.
    """
    import tensorflow as tf

    from escala.engines.tensorflow.functions import Functions
    from escala.engines.tensorflow.layers import initialise
    from escala.workloads import workload
    from escala.workloads.models import as_model_input

    work, settings, knobs = workload(case.workload), settings_of(case), knobs_of(case)
    tf.keras.backend.clear_session()
    tf.keras.backend.set_floatx(precision)
    functions = Functions(work, settings)
    model = functions.build(case.inputs, case.outputs, knobs)
    initialise(model, SEED)
    weights = perturbed(model.get_weights())
    model.set_weights(weights)
    inputs, targets = drawn(case)
    optimizer = work.optimizer(settings, case.rate, knobs)
    optimizer.build(model.trainable_variables)

    @tf.function
    def computed(inputs, targets):
        with tf.GradientTape() as tape:
            outputs = model(as_model_input(inputs), training=True)
            loss = tf.reduce_mean(work.row_losses(targets, outputs, settings))
        found = tape.gradient(loss, model.trainable_variables)
        return loss, [tf.convert_to_tensor(each) for each in found]

    @tf.function
    def stepped(inputs, targets):
        loss, gradients = computed(inputs, targets)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def evaluated(inputs, targets):
        outputs = model(as_model_input(inputs), training=False)
        losses, correct = (f(targets, outputs) for f in (functions.row_losses, functions.correct))
        return losses, correct, functions.predictions(model, inputs, outputs)

    first = next(batches(case, inputs, targets))
    names = ("losses", "correct", "predictions")
    # Some workloads state the type of what they generate.
    found = zip(names, evaluated(*first), strict=True) if precision == "float32" else ()
    evaluation = {name: each.numpy() for name, each in found}
    loss, gradients = computed(*first)
    model.set_weights(weights)
    curve = [float(stepped(*rows)) for rows in batches(case, inputs, targets)]
    tf.keras.backend.set_floatx("float32")
    return {
        **_numbered("weight", weights),
        **_numbered("input", inputs),
        "targets": targets,
        "loss": loss.numpy(),
        **evaluation,
        **_numbered("gradient", [each.numpy() for each in gradients]),
        "curve": np.array(curve),
        **_numbered("end", model.get_weights()),
    }


def perturbed(weights: Iterable[np.ndarray]) -> list[np.ndarray]:
    """Return weights with other biases: they begin at 0, which would hide a mistake.

    Statistics of a normalisation stay positive.
    """
    random = np.random.default_rng(SEED)
    return [
        each + random.uniform(0, 0.1, each.shape).astype(each.dtype) if each.ndim == 1 else each
        for each in weights
    ]


def batches(case: Case, inputs: Sequence, targets: Any) -> Iterator[tuple[list, Any]]:
    """Yield the inputs and the targets of each step."""
    for start in range(0, STEPS * case.batch, case.batch):
        rows = slice(start, start + case.batch)
        yield [each[rows] for each in inputs], targets[rows]


def _numbered(name: str, found: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{name}{number}": each for number, each in enumerate(found)}


def offering(engine: str, cases: Mapping[str, Case]) -> dict[str, Case]:
    """Return the cases whose workloads have a model for an engine."""
    from escala.workloads import WORKLOADS

    return {
        name: each for name, each in cases.items() if engine in WORKLOADS[each.workload].engines
    }


def compared(
    cases: Mapping[str, Case], engines: Iterable[str]
) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """Return how the results of engines differ from TensorFlow's.

    They are by the name of an engine, of a case for which it has a model, and precision.
    Differences are relative to the largest number of an array. One process of an engine computes
    all cases, by the `engines_agree_ENGINE.py` alongside.
    """
    with tempfile.TemporaryDirectory() as folder:
        folders = {name: Path(folder, str(number)) for number, name in enumerate(cases)}
        for name, case in cases.items():
            folders[name].mkdir()
            for precision in PRECISIONS:
                np.savez(folders[name] / f"{precision}.npz", **by_tensorflow(case, precision))
            described = asdict(case) | {"settings": settings_of(case), "knobs": knobs_of(case)}
            (folders[name] / "case.json").write_text(json.dumps(described))
        paths = os.pathsep.join([str(FOLDER), str(FOLDER / "benchmarks")])
        found = {}
        for engine in engines:
            names = list(offering(engine, cases))
            side = Path(__file__).with_name(f"engines_agree_{engine}.py")
            done = subprocess.run(
                [environments.python(engine), str(side), *(str(folders[name]) for name in names)],
                env={"PATH": os.environ["PATH"], "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            found[engine] = dict(zip(names, map(json.loads, done.stdout.splitlines()), strict=True))
        return found


def print_differences(engine: str, computed: Callable[..., dict[str, Any]]) -> None:
    """Print, in an engine's process, a line of JSON for each folder that its arguments name.

    Parameters
    ----------
    computed : a function of the workload's module, the case, its knobs, the precision and what
        `by_tensorflow` returned. It returns the number of `parameters`; the arrays `begun` by the
        seed; the `loss`, the `gradients` by name and the `evaluation` of the first batch; the
        `curve`; and the arrays at the `end`.
    """
    for folder in map(Path, sys.argv[1:]):
        described = json.loads((folder / "case.json").read_text())
        knobs = described.pop("knobs")
        specs = tuple(Spec(n, tuple(s), *rest) for n, s, *rest in described.pop("inputs"))
        case = Case(**described | {"inputs": specs, "outputs": tuple(described["outputs"])})
        name = case.workload.replace("-", "_")
        work = import_module(f"escala.workloads.{name}.{ENGINES[engine].module}")
        found = {}
        for precision in PRECISIONS:
            with np.load(folder / f"{precision}.npz") as stored:
                theirs = dict(stored)
            found[precision] = _differences(computed(work, case, knobs, precision, theirs), theirs)
        print(json.dumps(found))


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return how far what an engine computes differs from what TensorFlow has computed."""
    expected = numbered(theirs, "gradient")
    gradients = {
        name: difference(mine, other)
        for (name, mine), other in zip(ours["gradients"].items(), expected, strict=True)
    }
    worst = max(gradients, key=gradients.get)
    return {
        "parameters": ours["parameters"],
        "initial_difference": max(
            map(difference, perturbed(ours["begun"]), numbered(theirs, "weight"))
        ),
        "loss_difference": abs(ours["loss"] / float(theirs["loss"]) - 1),
        "evaluation_difference": max(
            (
                difference(mine.astype(np.float64), theirs[name])
                for name, mine in ours["evaluation"].items()
                if name in theirs
            ),
            default=None,
        ),
        "gradient": worst,
        "gradient_difference": gradients[worst],
        "curve": [ours["curve"][0], ours["curve"][-1]],
        "curve_difference": float(np.abs(np.array(ours["curve"]) / theirs["curve"] - 1).max()),
        "end_difference": max(map(difference, ours["end"], numbered(theirs, "end"))),
    }


def numbered(stored: Mapping[str, np.ndarray], name: str) -> list[np.ndarray]:
    """Return the arrays `name0`, `name1`, …"""
    count = sum(each.startswith(name) for each in stored)
    return [stored[f"{name}{number}"] for number in range(count)]


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the largest difference of two arrays, relative to the largest number in them."""
    return float(np.abs(ours - theirs).max() / (np.abs(theirs).max() or 1.0))


def row(name: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a row of the table: of a curve its first and last loss."""
    single = found["float32"]
    first, last = single["curve"]
    gradients, curves = (
        " · ".join(f"{found[precision][f'{each}_difference']:.0e}" for precision in PRECISIONS)
        for each in ("gradient", "curve")
    )
    return (
        f"| `{name}` | {single['parameters']:,} | {single['loss_difference']:.0e} | {gradients} | "
        f"{first:.4f} → {last:.4f} | {curves} |"
    ).replace(",", " ")


HEADER = """\
| workload | parameters | loss | gradient | losses of 10 steps | curve |
| --- | --- | --- | --- | --- | --- |"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--small", action="store_true", help="small networks of the same layers")
    parser.add_argument("--only", nargs="*", help="names of rows")
    others = [name for name in ENGINES if name != DEFAULT]
    parser.add_argument("--engine", choices=others, default="torch")
    arguments = parser.parse_args()
    cases = offering(arguments.engine, SMALL if arguments.small else WHOLE)
    print(HEADER)
    for name in arguments.only or cases:
        found = compared({name: cases[name]}, [arguments.engine])
        print(row(name, found[arguments.engine][name]), flush=True)


if __name__ == "__main__":
    main()
