"""Check the network of a workload against its contract, in the Python of an engine.

    python -m escala.check.network

It reads the plan of a run of one process on its standard input, and prints each answer as a line
of JSON. If all answers are yes, the last line holds the `facts` of `escala.check.workload.Subject`.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from functools import cached_property, partial
from types import ModuleType

import numpy as np

from escala import engines
from escala.core.errors import Refused, answer_of
from escala.data import reader
from escala.data.base import output_shape
from escala.engines.base import Engine
from escala.strategies.base import Place
from escala.strategies.knobs import model_knobs
from escala.training.shards import gather_steps
from escala.workloads import WORKLOADS, models, workload

#: The rows of the checked batch, and the number of steps on this batch.
BATCH, STEPS = 8, 50
#: The largest relative difference between values of a row that is computed alone and in a batch.
ROWS_TOLERANCE = 1e-3
_ALL = slice(None)


class Network:
    """The network of the workload of a plan, in the engine of its strategy, and a batch of rows."""

    def __init__(self, plan: dict):
        self.workload = plan["workload"]
        self._engine_name = engines.engine_name(plan["strategy"])
        self.data = reader(plan["data"])
        self.inputs, self.targets = self.data.gather("train", slice(0, BATCH))
        self.knobs = model_knobs(plan["knobs"], self.workload)
        cores = sorted(os.sched_getaffinity(0))
        place = Place(
            process=0,
            processes=1,
            ranks=[0],
            node=0,
            nodes=1,
            local=0,
            processes_per_node=1,
            host="localhost",
            cores=cores,
            addresses=[],
            extra_addresses=[],
        )
        self.engine = engines.create_engine(plan, place)
        self.engine.start()

    @cached_property
    def module(self) -> ModuleType:
        """The workload's module for the engine. The first check reports an error in it."""
        return workload(self.workload, self._engine_name)

    @cached_property
    def built(self) -> Engine:
        """The engine, after it has built the model."""
        self.engine.build(self.module, self.data, self.knobs)
        return self.engine

    def outputs(self, rows: slice = _ALL) -> np.ndarray:
        """Return the outputs of rows of the batch, outside training."""
        engine, inputs = self.built, [array[rows] for array in self.inputs]
        return engine.functions.outputs_of(engine.model, engine.weights()[0], inputs)

    def losses(self, outputs: np.ndarray, rows: slice = _ALL) -> tuple[np.ndarray, set[str]]:
        """Return the losses of rows of the batch for some outputs, and the names of scores."""
        return self.built.functions.losses_of(self.targets[rows], outputs)

    def gradients(self) -> list[tuple[str, np.ndarray | None]]:
        """Return the gradient of each trained variable, or None, with the name of the variable."""
        engine, weights = self.built, self.built.weights()[0]
        return engine.functions.gradients(engine.model, weights, self.inputs, self.targets)

    def train(self, *steps: np.ndarray) -> float:
        """Make a step for each array of row numbers; return the sum of the losses of all rows."""
        made = self.built.make_steps(
            ([rows] for rows in steps),
            partial(gather_steps, self.data, "rows"),  # weighting: the mean over rows
        )
        return sum(float(step.loss) for step in made)

    @cached_property
    def rows_are_independent(self) -> bool:
        """Whether the loss of a row in training depends on this row only.

        Batch normalisation lets the loss depend on other rows; dropout lets it depend on chance.
        """
        rows, losses = np.arange(len(self.targets)), []
        for part in (rows, *np.split(rows, [len(rows) // 2])):
            with self.built.preserve():
                self.built.seed(0)
                losses.append(self.train(part))
        whole, *halves = losses
        return bool(np.isclose(whole, sum(halves), ROWS_TOLERANCE))


def require(module: ModuleType, *names: str) -> None:
    """Refuse a module of a workload without one of `names`."""
    if missing := [name for name in names if not hasattr(module, name)]:
        raise Refused(
            f"{module.__file__} has no {', '.join(missing)}",
            "add what is missing, as the docstring of escala.workloads describes",
        )


def build(network: Network) -> str:
    """Check the functions of the module, and the variables and the output of the model."""
    require(network.module, "build", "optimizer", "row_losses")
    engine, variables = network.engine, []
    for _ in range(2):
        engine.build(network.module, network.data, network.knobs)
        variables.append([(array.shape, array.dtype) for array in engine.weights()[0]])
    if variables[0] != variables[1]:
        raise Refused(
            "two calls of build with the same arguments give different variables",
            "let shapes and order depend on the arguments and on nothing else",
        )
    description = network.data.description
    wanted, shape = output_shape(description), network.outputs().shape[1:]
    # Without classes, the shape may have further axes, such as one for the words.
    compared = shape if description.get("classes") else shape[: len(wanted)]
    if compared != wanted:
        raise Refused(
            f"the model gives the shape {shape} for a row, and the argument outputs is {wanted}",
            "let the last layer give the shape outputs",
        )
    models.require_functions(network.module, description, WORKLOADS[network.workload].scores)
    return (
        f"{len(variables[0])} variables, {engine.about()['parameters']} parameters, twice the same"
    )


def row_losses(network: Network) -> str:
    """Check that each row has a loss, and that the loss depends on this row only."""
    outputs, targets, rows = network.outputs(), network.targets, len(network.targets)
    losses, score_names = network.losses(outputs)
    cause = ""
    if not network.data.description.get("classes") and targets.shape != outputs.shape:
        # The framework may have broadcast the targets or the outputs to a common shape.
        cause = (
            f"; the likely cause is that targets are {targets.shape} and outputs {outputs.shape}: "
            f"reshape the outputs to the argument outputs, {output_shape(network.data.description)}"
        )
    if losses.shape != (rows,):
        raise Refused(
            f"row_losses gives the shape {losses.shape} for {rows} rows{cause}",
            "give one number for each row, shape (rows,), and no mean over them; losses of "
            "frameworks may take the mean over the last axis",
        )
    if not np.allclose(outputs, network.outputs(), ROWS_TOLERANCE, 1e-5, equal_nan=True):
        raise Refused(
            "two calls of the model with the same rows, outside training, give different outputs",
            "draw random numbers only in training, and keep no state between calls; give noise as "
            "an input of the dataset. A generator that is trained against another network cannot "
            "be measured as a workload",
        )
    for row in range(rows):
        one = slice(row, row + 1)
        by_itself, _ = network.losses(outputs[one], one)
        if not np.allclose(network.outputs(one), outputs[one], ROWS_TOLERANCE, 1e-5):
            raise Refused(
                f"what the model gives for row {row} depends on the other rows",
                "let no layer mix rows, neither by a sum or a mean over them nor by a shape that "
                "joins them",
            )
        if not np.allclose(by_itself, losses[one], ROWS_TOLERANCE, 1e-6):
            raise Refused(
                f"the loss of row {row} is {losses[row]:g} among {rows} rows, and "
                f"{float(by_itself.flat[0]):g} by itself{cause}",
                "compute each row's loss from this row only; a training whose loss compares the "
                "rows of a batch, such as a contrastive one, cannot be measured as a workload",
            )
    if reserved := score_names.intersection(models.SUMMED):
        raise Refused(
            f"row_scores gives the score {min(reserved)}, a name that every run has already",
            "rename this score",
        )
    return "one for each row, of this row only"


def gradients(network: Network) -> str:
    """Check that every trained variable has a finite gradient."""
    gradients = network.gradients()
    without = [name for name, gradient in gradients if gradient is None]
    if without or not gradients:
        raise Refused(
            f"no gradient for {', '.join(without)}" if without else "nothing is trainable",
            "let the loss depend on every trainable variable, or make it no trainable one",
        )
    if not all(np.isfinite(gradient).all() for _, gradient in gradients):
        raise Refused(
            "a gradient is infinite or not a number", "correct the loss or its logarithms"
        )
    return f"for all {len(gradients)} trainable variables"


def loss_falls(network: Network) -> str:
    """Check that steps on one batch make its loss smaller."""
    rows = np.arange(len(network.targets))

    def loss() -> float:
        return network.built.evaluate(network.inputs, network.targets)[1]["loss"] / len(rows)

    before = loss()
    with network.built.preserve():
        network.train(*[rows] * STEPS)
        after = loss()
    if not after < before:
        raise Refused(
            f"the loss of one batch is {before:.4g}, and {after:.4g} after {STEPS} steps on it",
            "correct the loss, or change the learning rate with --settings",
        )
    fall = f"from {before:.4g} to {after:.4g} in {STEPS} steps on one batch"
    note = "; in training, the loss of a row depends on the rows together, or on chance"
    return fall if network.rows_are_independent else fall + note


#: The checks, in their order.
CHECKS = {
    "build": build,
    "row losses": row_losses,
    "gradients": gradients,
    "loss falls": loss_falls,
}
#: If one of these checks is a no, later checks are not made: they would fail for the same reason.
#: "network" is the check of `escala.check.workload` that this module can be started.
PRECONDITIONS = frozenset({"network", "build", "row losses"})


def main() -> None:
    """Read the plan, and print the answers."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # The output of the user's code is no answer, so it goes to standard error.
    os.dup2(2, 1)
    network = Network(json.load(sys.stdin))
    all_able = True
    for name, check in CHECKS.items():
        answer = answer_of(name, check, network, WORKLOADS[network.workload].folder)
        print(json.dumps(asdict(answer)), file=answers, flush=True)
        if name in PRECONDITIONS and not answer.able:
            return
        all_able &= answer.able
    if all_able:
        _, score_names = network.losses(network.outputs())
        facts = {
            "rows_are_independent": network.rows_are_independent,
            "row_scores": sorted(score_names),
        }
        print(json.dumps(facts), file=answers, flush=True)


if __name__ == "__main__":
    main()
