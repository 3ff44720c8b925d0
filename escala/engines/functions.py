"""Functions of a workload for every engine: losses, scores, predictions, a kept model.

`python -m escala.engines.functions MODEL OUTPUT`, in the Python of an engine, describes gradients
for a calibration. The file MODEL names the model.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from escala import engines
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.data import reader
from escala.data.base import Arrays, Spec, output_shape
from escala.strategies.knobs import complete, model_knobs
from escala.workloads import workload
from escala.workloads.models import SUMMED

#: The reason why a part of a workload is ignored, as the end of a sentence.
WHY_IGNORED = "Escala makes the steps and computes `row_losses` itself"


class Functions(ABC):
    """Functions of a workload's module, adapted to a framework.

    Attributes
    ----------
    work, settings : the module, and the workload's settings.
    correct : a function of targets and outputs, which returns the correctness of each row, 0 to 1.
    """

    #: The result of a workload's `build`, in words.
    a_model: ClassVar[str]
    #: `tensor` converts an array to a tensor on the processor, and `array` a tensor to an array.
    tensor = array = staticmethod(np.asarray)

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
        """Return a function of the module, or the default; with neither, an AttributeError."""
        return getattr(self.work, name, *default)

    def build(self, specs: Sequence[Spec], outputs: tuple[int, ...], knobs: Mapping) -> Any:
        """Return the untrained model of the workload's `build` for these arguments.

        Raises
        ------
        InputError : the result is not a model that can be trained.
        """
        model = self.work.build(specs, outputs, self.settings, knobs)
        if not self.is_model(model):
            reason = f"build returns {type(model).__name__}, and not {self.a_model}"
            raise InputError(file_of(self.work), None, reason, f"return {self.a_model}")
        self.require_trainable(model, specs)
        return model

    @abstractmethod
    def is_model(self, model: Any) -> bool:
        """Return whether an object is a model of the framework."""

    def refuse_ignored(self, model: Any, optimizer: Any) -> None:
        """Refuse a workload with a part that a run would ignore; the message has a remedy.

        Raises
        ------
        InputError : a part would be ignored; the message names the first such part.
        """
        for reason, remedy in self.find_ignored(model, optimizer):
            raise InputError(file_of(self.work), None, reason, remedy)

    def find_ignored(self, model: Any, optimizer: Any) -> Iterable[tuple[str, str]]:
        """Yield every part that a run would ignore, and a remedy."""
        return ()

    def require_trainable(self, model: Any, specs: Sequence[Spec]) -> None:  # noqa: B027
        """Refuse a model that cannot be trained by steps; see `build`."""

    @abstractmethod
    def shapes(self, model: Any) -> Sequence[Sequence[int]]:
        """Return the shapes of a model's weights, in the order of a kept model."""

    @abstractmethod
    def with_weights(self, model: Any, weights: Sequence[np.ndarray]) -> Any:
        """Return a model with weights."""

    @abstractmethod
    def output_form(self, model: Any, specs: Sequence[Spec]) -> tuple:
        """Return the shape of a model's output for one row."""

    def require_one_output(self, is_one: bool, kind: str) -> None:
        """Refuse a model whose output for a row is not one tensor; `kind` describes this output."""
        if not is_one:
            remedy = "give one tensor with the rows in front, such as all outputs joined, and one "
            remedy += "target array, and take them apart in row_losses"
            raise InputError(
                file_of(self.work), None, f"the model gives {kind} for one row", remedy
            )

    @abstractmethod
    def outputs(self, model: Any, inputs: Sequence[Any]) -> Any:
        """Return the outputs of a model for some rows outside training."""

    @abstractmethod
    def compile(self, model: Any, function: Callable, specs: Sequence[Spec]) -> Callable:
        """Return, for a function of tensors, a compiled function of arrays of NumPy.

        `function` takes tensors of rows with the specs `specs`, and calls `model` outside training.
        The compiled function returns an array for each tensor.
        """

    @abstractmethod
    def most_probable(self, outputs: Any) -> Any:
        """Return the numbers of the most probable classes, int64."""

    @abstractmethod
    def is_most_probable(self, targets: Any, outputs: Any) -> Any:
        """Return 1 for each row whose most probable class is the target, otherwise 0, float32."""

    def fits(self, shape: Any, rows: Any) -> bool:
        """Return whether losses of the shape `shape` fit `rows`, the shape (rows,)."""
        return shape == rows

    def extra_losses(self, model: Any) -> Sequence[Any]:
        """Return the losses that the model adds to each row's loss, such as of regularisers."""
        return ()

    def row_losses(self, targets: Any, outputs: Any) -> Any:
        """Return the loss of every row, shape (rows,).

        A mean over the rows, or a loss for each position in a row, is refused. It would be
        broadcast over the weights of the rows, and training would minimise another quantity.

        Raises
        ------
        ValueError : the workload's `row_losses` returns another shape; with file and line.
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

    def evaluate_rows(
        self, model: Any, inputs: Sequence[Any], targets: Any, total: Callable
    ) -> tuple[Any, dict[str, Any]]:
        """Return the predictions of some rows, and by name the `total` of each score over the rows.

        The scores are `SUMMED`, and the scores of the workload's `row_scores`.

        Raises
        ------
        ValueError : `row_scores` gives a score one of the names in `SUMMED`.
        """
        outputs = self.outputs(model, inputs)
        losses = self.row_losses(targets, outputs)
        for extra in self.extra_losses(model):
            losses = losses + extra
        scores = dict(zip(SUMMED, (losses, self.correct(targets, outputs)), strict=True))
        further = self._row_scores(targets, outputs)
        if taken := further.keys() & scores.keys():
            raise ValueError(f"`row_scores` gives the score {min(taken)}, which is a reserved name")
        sums = {name: total(values) for name, values in (scores | further).items()}
        return self.predictions(model, inputs, outputs), sums

    def compile_evaluation(self, model: Any, specs: Sequence[Spec], total: Callable) -> Callable:
        """Return `evaluate_rows` as a function of arrays: the inputs of some rows, and the targets.

        `specs` are the specs of inputs and targets. The sums are floats.
        """

        def evaluate(*rows: Any) -> tuple[Any, dict[str, Any]]:
            *inputs, targets = rows
            return self.evaluate_rows(model, inputs, targets, total)

        compiled = self.compile(model, evaluate, specs)

        def run(*rows: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
            predictions, sums = compiled(*rows)
            return predictions, {name: float(value) for name, value in sums.items()}

        return run

    def build_trained(
        self,
        specs: Sequence[Spec],
        outputs: tuple[int, ...],
        knobs: Mapping,
        weights: Mapping[str, np.ndarray],
        require: Callable[[Mapping[str, tuple], Mapping[str, np.ndarray]], None],
    ) -> tuple[Callable, Callable, tuple]:
        """Return two functions of a trained model's inputs, and the shape of its output for a row.

        The first function gives the outputs. They are probabilities if the workload has the
        function `probabilities`. The second function gives the predictions. An unknown size in the
        shape is None. `weights` are arrays with the names of `np.savez`. `require` refuses arrays
        whose names or shapes differ from the model's.
        """
        model = self.build(specs, outputs, knobs)
        shapes = {f"arr_{number}": tuple(shape) for number, shape in enumerate(self.shapes(model))}
        require(shapes, weights)
        form = self.output_form(model, specs)
        trained = self.with_weights(model, [weights[name] for name in shapes])
        probabilities = self.function("probabilities", lambda outputs, settings: outputs)

        def compute(*inputs: Any) -> Any:
            return probabilities(self.outputs(trained, inputs), self.settings)

        def predict(*inputs: Any) -> Any:
            return self.predictions(trained, inputs, self.outputs(trained, inputs))

        give_outputs = self.compile(trained, compute, specs)
        give_predictions = self.compile(trained, predict, specs)
        return give_outputs, give_predictions, form

    def outputs_of(
        self, model: Any, weights: Sequence[np.ndarray], inputs: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Return the outputs of a model with these weights for some rows, outside training."""
        trained = self.with_weights(model, weights)
        return self.array(self.outputs(trained, [self.tensor(array) for array in inputs]))

    def losses_of(self, targets: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, set[str]]:
        """Return `row_losses` of some rows, of any shape, and the names of `row_scores`."""
        rows = self.tensor(targets), self.tensor(outputs)
        losses = self.work.row_losses(*rows, self.settings)
        return self.array(losses), {*self._row_scores(*rows)}

    @abstractmethod
    def gradients(
        self,
        model: Any,
        weights: Sequence[np.ndarray],
        inputs: Sequence[np.ndarray],
        targets: np.ndarray,
    ) -> list[tuple[str, np.ndarray | None]]:
        """Return name and gradient of each trained array; None without influence on the loss."""

    @abstractmethod
    def trainable_arrays(self, model: Any) -> Iterable[tuple[str, Sequence[int], int]]:
        """Yield name, shape, and bytes per number of each trained array."""

    def gradient_forms(self, model: Any, data: Arrays) -> list[dict]:
        """Return a calibration's entry for each gradient of a model, without times.

        `factor_rows` is set if ranks may exchange the factors of a dense layer's gradient: the rows
        that the layer receives for one row of the model. `sparse_rows` is set if a gradient holds
        only the rows that were read from a table: the rows that one row of the model reads. `data`
        are arrays that fit the model.
        """
        return [
            {
                "name": name,
                "shape": [*map(int, shape)] or [1],
                "item_bytes": item_bytes,
                "factor_rows": None,
                "sparse_rows": None,
            }
            for name, shape, item_bytes in self.trainable_arrays(model)
        ]


def find_unread(work: ModuleType, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield reason and remedy for each of `names` that a module has and nothing reads."""
    for name in names:
        if callable(value := vars(work).get(name)) or isinstance(value, list | tuple | dict):
            reason = f"{name} of the module is never used: {WHY_IGNORED}"
            yield reason, f"remove {name}, or rename it if your code uses it"


def file_of(work: ModuleType) -> str:
    """Return the file of a workload's module, for messages."""
    return work.__file__ or work.__name__


def describe_gradients(model: Mapping[str, Any]) -> list[dict]:
    """Return `gradient_forms` of a model. This imports a framework.

    `model` has the `engine` and the `workload`, the folder `split`, whose arrays give shapes and
    dtypes of a row, and `training` and `knobs` as in a request.
    """
    engine, name, data = model["engine"], model["workload"], reader(Path(model["split"]))
    module = engines.load(engine, "functions")
    functions = module.Functions(workload(name, engine), model["training"])
    knobs = model_knobs(complete(model["knobs"], name), name)
    built = functions.build(data.inputs, output_shape(data.description), knobs)
    return functions.gradient_forms(built, data)


if __name__ == "__main__":
    write_json(Path(sys.argv[2]), describe_gradients(read_json(Path(sys.argv[1]))))
