"""Functions of a workload as every engine calls them: losses, scores, predictions, a kept model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from escala.data.base import Spec
from escala.workloads.models import SUMMED


class Functions(ABC):
    """Functions of a workload's module, in the form that a framework takes.

    Attributes
    ----------
    correct : of targets and outputs the correctness of each row, float32.
    """

    def __init__(self, work: ModuleType, settings: Mapping):
        self.work, self.settings = work, settings
        self._row_losses = self.function("row_losses")
        self._row_scores = self.function("row_scores", lambda targets, outputs: {})
        self.correct = self.function("correct", self.is_most_probable)
        if hasattr(work, "generate"):
            self._generate = self.function("generate")
        else:
            self._generate = None
            self._predict = self.function("predict", self.most_probable)

    def function(self, name: str, *default: Callable) -> Callable:
        """Return a function of the module; the default, or an AttributeError, if it has none."""
        return getattr(self.work, name, *default)

    @abstractmethod
    def build(self, specs: Sequence[Spec], outputs: tuple[int, ...], knobs: Mapping) -> Any:
        """Return the model of the workload, untrained."""

    @abstractmethod
    def shapes(self, model: Any) -> Sequence[Sequence[int]]:
        """Return the shapes of a model's weights, in the order in which a run keeps them."""

    @abstractmethod
    def trained(self, model: Any, weights: Sequence[np.ndarray]) -> Any:
        """Return a model with weights."""

    @abstractmethod
    def output_form(self, model: Any, specs: Sequence[Spec]) -> tuple:
        """Return the shape of a model's output for one row."""

    @abstractmethod
    def outputs(self, model: Any, inputs: Sequence[Any]) -> Any:
        """Return what a model gives for the inputs of some rows when it does not train."""

    @abstractmethod
    def compiled(self, model: Any, function: Callable, specs: Sequence[Spec]) -> Callable:
        """Return a function of tensors of rows, such as `specs`, as one of arrays of NumPy.

        It calls `model`, which does not train. What it returns, one tensor or several, stays in
        this form.
        """

    @abstractmethod
    def most_probable(self, outputs: Any) -> Any:
        """Return the numbers of the most probable classes, int64."""

    @abstractmethod
    def is_most_probable(self, targets: Any, outputs: Any) -> Any:
        """Return 1 for each row whose most probable class is its target, 0 otherwise, float32."""

    def fits(self, shape: Any, rows: Any) -> bool:
        """Return whether the shape of losses is that of the rows."""
        return shape == rows

    def added(self, model: Any) -> Sequence[Any]:
        """Return what the model adds to the loss of each row, such as of regularisers."""
        return ()

    def row_losses(self, targets: Any, outputs: Any) -> Any:
        """Return the loss of every row, shape (rows,).

        A mean over the rows, or a loss for each place in a row, would be broadcast over the weights
        of the rows, so that training would minimise another quantity.

        Raises
        ------
        ValueError : the workload's `row_losses` returns another shape; with its file and line.
        """
        losses = self._row_losses(targets, outputs, self.settings)
        if not self.fits(losses.shape, targets.shape[:1]):
            code = self.work.row_losses.__code__
            raise ValueError(
                f"row_losses gives the shape {tuple(losses.shape)} in place of (rows,), a loss for "
                f'each row: File "{code.co_filename}", line {code.co_firstlineno}'
            )
        return losses

    def predictions(self, model: Any, inputs: Sequence[Any], outputs: Any) -> Any:
        """Return the predictions of some rows."""
        if self._generate:
            return self._generate(model, inputs, self.settings)
        return self._predict(outputs)

    def evaluated(
        self, model: Any, inputs: Sequence[Any], targets: Any, total: Callable
    ) -> tuple[Any, dict[str, Any]]:
        """Return the predictions of some rows, and the `total` of each loss and score.

        They are `SUMMED`, and the workload's `row_scores`.

        Raises
        ------
        ValueError : `row_scores` gives a score one of the names in `SUMMED`.
        """
        outputs = self.outputs(model, inputs)
        losses = self.row_losses(targets, outputs)
        for each in self.added(model):
            losses = losses + each
        scores = dict(zip(SUMMED, (losses, self.correct(targets, outputs)), strict=True))
        further = self._row_scores(targets, outputs)
        if taken := further.keys() & scores.keys():
            raise ValueError(f"`row_scores` gives the score {min(taken)}, which is a reserved name")
        sums = {name: total(each) for name, each in (scores | further).items()}
        return self.predictions(model, inputs, outputs), sums

    def evaluating(self, model: Any, specs: Sequence[Spec], total: Callable) -> Callable:
        """Return `evaluated` as a function of arrays: the inputs of some rows, and their targets.

        `specs` are those of inputs and targets. The sums are floats.
        """

        def evaluate(*rows: Any) -> tuple[Any, dict[str, Any]]:
            *inputs, targets = rows
            return self.evaluated(model, inputs, targets, total)

        compiled = self.compiled(model, evaluate, specs)

        def run(*rows: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
            predictions, sums = compiled(*rows)
            return predictions, {name: float(each) for name, each in sums.items()}

        return run

    def restored(
        self,
        specs: Sequence[Spec],
        outputs: tuple[int, ...],
        knobs: Mapping,
        weights: Mapping[str, np.ndarray],
        require: Callable[[Mapping[str, tuple], Mapping[str, np.ndarray]], None],
    ) -> tuple[Callable, Callable, tuple]:
        """Return the outputs and the predictions of a trained model, functions of its inputs.

        The outputs are probabilities if the workload has the function `probabilities`. The third
        value is the shape of the model's output for one row; a size that is not known is None.
        `weights` are arrays by the names that `np.savez` gives. `require` refuses arrays that have
        other names or shapes than the model's.
        """
        model = self.build(specs, outputs, knobs)
        shapes = {f"arr_{number}": tuple(each) for number, each in enumerate(self.shapes(model))}
        require(shapes, weights)
        form = self.output_form(model, specs)
        trained = self.trained(model, [weights[name] for name in shapes])
        probabilities = self.function("probabilities", lambda outputs, settings: outputs)

        def computed(*inputs: Any) -> Any:
            return probabilities(self.outputs(trained, inputs), self.settings)

        def predicted(*inputs: Any) -> Any:
            return self.predictions(trained, inputs, self.outputs(trained, inputs))

        return *(self.compiled(trained, each, specs) for each in (computed, predicted)), form
