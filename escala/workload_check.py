"""Check a workload in a folder of its own against the contract of `escala.workloads`.

Each check is one function. It returns what it found, or raises `Refused` with the reason and the
remedy. An error in the workload's own code is an answer too, with its file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from escala.core import user_code
from escala.core.answer import Answer
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.data import base, reader
from escala.example_rows import DATASET, SEED, copy_rows, draw_rows
from escala.experiment import folders
from escala.experiment.schema import workload_settings
from escala.record.plan import make_plan, split_description
from escala.record.run import measure
from escala.strategies.knobs import of_model
from escala.training.data import not_finite
from escala.workloads import WORKLOADS, load, offers, scores_module, workload
from escala.workloads.models import given

#: What the workload is called here.
NAME = "checked"
BATCH, EPOCHS, STEPS = 8, 2, 50
#: Largest relative difference of the loss of two ranks from that of one, after a few steps.
RANKS_TOLERANCE = 3e-3
ROWS_TOLERANCE = 1e-3
TIME_LIMIT_SECONDS = 300.0


class Refused(Exception):
    """A workload does not do what its contract says."""

    def __init__(self, reason: str, remedy: str):
        self.reason, self.remedy = reason, remedy
        super().__init__(reason)


@dataclass(frozen=True)
class Subject:
    """A workload with rows for it.

    Attributes
    ----------
    settings : of the experiment, with every default filled in.
    split : folder of a split of a few rows.
    scratch : folder for runs.
    """

    settings: dict
    split: Path
    scratch: Path

    @cached_property
    def module(self) -> ModuleType:
        return workload(NAME)

    @cached_property
    def arrays(self) -> base.Arrays:
        return reader(self.split)

    @cached_property
    def form(self) -> tuple[tuple[base.Spec, ...], tuple[int, ...], dict]:
        """The specs of the inputs, the shape of the outputs, and the settings."""
        return self.arrays.inputs, base.output_shape(self.arrays.description), self.settings

    @cached_property
    def plan(self) -> dict:
        return make_plan(self.request("single", "1x1"), self.arrays.description, self.split)

    @cached_property
    def knobs(self) -> dict[str, Any]:
        return of_model(self.plan["knobs"], NAME)

    @cached_property
    def rows(self) -> tuple[list, Any]:
        """The inputs and the targets of one batch, as tensors."""
        import tensorflow as tf

        inputs, targets = self.arrays.gather("train", slice(0, BATCH))
        return [tf.constant(array) for array in inputs], tf.constant(targets)

    @cached_property
    def model(self) -> Any:
        import tensorflow as tf

        tf.keras.utils.set_random_seed(SEED)
        return self.built()

    def built(self) -> Any:
        """Return a newly built model."""
        from escala.training.replicas import use_generators
        from escala.workloads import building

        use_generators()
        return building.build(self.module, *self.form, self.knobs)

    def outputs(self) -> Any:
        """Return what the model gives for the batch, outside training."""
        return self.model(given(self.rows[0]), training=False)

    def optimizer(self) -> Any:
        """Return a new optimizer."""
        return self.module.optimizer(self.settings, self.plan["learning_rate"], self.knobs)

    def losses(self, training: bool) -> Any:
        """Return the loss of every row of the batch."""
        inputs, targets = self.rows
        outputs = self.model(given(inputs), training=training)
        return self.module.row_losses(targets, outputs, self.settings)

    def request(self, strategy: str, layout: str) -> dict:
        """Return the request of a run, as that of an experiment."""
        return {
            "experiment": "check",
            "dataset": DATASET,
            "workload": NAME,
            "strategy": strategy,
            "layout": layout,
            "variant": "plain",
            "network": "native",
            "repeat": 1,
            "pair": None,
            "instrument": None,
            "training": self.settings,
            "knobs": {},
            "link": {"interface": None, "rate": None},
            "launcher": "auto",
            "oversubscribe": True,
            "max_steps": None,
            "probe_settings": None,
        }

    def measured(self, strategy: str, layout: str) -> dict:
        """Run the workload once, and return the `run.json`.

        Raises
        ------
        Refused : the run did not end ok.
        """
        output = self.scratch / strategy / "run.json"
        outcome = measure(self.request(strategy, layout), self.split, output, TIME_LIMIT_SECONDS)
        if outcome.status != "ok":
            reason = f"{strategy} {layout} ended as {outcome.status}: {outcome.reason}"
            raise Refused(reason, "mend what the reason names")
        return read_json(output)

    @cached_property
    def predictions(self) -> np.ndarray:
        """The predictions of the run on one rank for the test rows.

        Raises
        ------
        Refused : that run did not end ok.
        """
        folder = self.scratch / "single"
        if not (folder / "run.json").exists():
            self.measured("single", "1x1")
        elif read_json(folder / "run.json")["status"] != "ok":
            raise Refused("the run on one rank kept none", "mend that run, see above")
        return np.load(folder / "predictions.npy", allow_pickle=False)


Check = Callable[[Subject], str]


def answers(
    folder: Path,
    scratch: Path,
    *,
    dataset: Path | None = None,
    kind: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Answer]:
    """Check a workload and yield an answer for each part of the contract.

    Once the workload cannot be read, has no data, does not build, or computes wrong losses of rows,
    nothing more is checked.

    Parameters
    ----------
    folder : of the workload.
    scratch : an empty folder.
    dataset : folder of a split, whose first rows are taken; absent, rows are drawn at random after
        the `example` that the workload declares.
    kind : folder of the dataset's kind, where that is outside the project.
    settings : of the workload in an experiment; those with a default may be absent.
    """
    try:
        subject = _subject(folder, scratch, dataset, kind, settings or {})
    except InputError as error:
        yield Answer("declaration", False, f"{error.where}: {error.reason}", error.remedy)
        return
    declared = WORKLOADS[NAME]
    yield Answer("declaration", True, f"trained by {declared.kind}, reads {declared.data_kind}")
    checks = {"steps": STEPS_CHECKS, "fit": FIT_CHECKS}[declared.kind]
    for name, check in checks.items():
        answer = _answer(name, check, subject, folder)
        yield answer
        if name in PRECONDITIONS and not answer.able:
            return


def _answer(name: str, check: Check, subject: Subject, folder: Path) -> Answer:
    try:
        return Answer(name, True, check(subject))
    except Refused as error:
        return Answer(name, False, error.reason, error.remedy)
    except InputError as error:
        return Answer(name, False, f"{error.where}: {error.reason}", error.remedy)
    # The code of a user may raise anything.
    except Exception as error:
        place = user_code.location(error, folder.resolve())
        reason = user_code.message(error).splitlines()[0]
        return Answer(name, False, reason, f"see {place or 'the docstring of escala.workloads'}")


def _subject(
    folder: Path,
    scratch: Path,
    dataset: Path | None,
    kind: Path | None,
    settings: Mapping[str, Any],
) -> Subject:
    """Return a workload with its settings and rows.

    Raises
    ------
    InputError : a declaration is not valid, a setting is not allowed, or there are no rows.
    """
    folders.add(folders.WORKLOADS, NAME, str(folder), "workload")
    declared = WORKLOADS[NAME]
    if kind:
        folders.add(folders.KINDS, declared.data_kind, str(kind), "kind")
    common = {"steps": {"epochs": EPOCHS, "batch": {"rows": BATCH, "per": "global"}}, "fit": {}}
    common = common[declared.kind] | dict(settings)
    complete = workload_settings(NAME, common, "settings") | {"save_model": True}
    split = scratch / "split"
    split.mkdir()
    if dataset:
        copy_rows(dataset, split)
    else:
        draw_rows(folder, split)
    split_description(split)
    return Subject(complete, split, scratch)


def _require(names: tuple[str, ...], subject: Subject) -> None:
    """Refuse a workload whose module lacks something that every workload of its sort has.

    Raises
    ------
    Refused : with the names.
    """
    if missing := [name for name in names if not hasattr(subject.module, name)]:
        raise Refused(
            f"{WORKLOADS[NAME].folder / 'model.py'} has no {', '.join(missing)}",
            "add what is missing, as the docstring of escala.workloads describes",
        )


def _build(subject: Subject) -> str:
    from escala.workloads import building

    _require(("build", "optimizer", "row_losses"), subject)
    again = subject.built()
    first, second = ([(tuple(v.shape), v.dtype) for v in m.weights] for m in (subject.model, again))
    if first != second:
        raise Refused(
            "two calls of build with the same arguments give different variables",
            "let shapes and order depend on the arguments and on nothing else",
        )
    building.refuse_ignored(subject.module, subject.model, subject.optimizer())
    _check_outputs(subject)
    offers.require(subject.module, subject.arrays.description, WORKLOADS[NAME].scores)
    return f"{len(first)} variables, {subject.model.count_params()} parameters, twice the same"


def _check_outputs(subject: Subject) -> None:
    """Refuse a model with outputs of another shape.

    Raises
    ------
    Refused : with the shape.
    """
    wanted = subject.form[1]
    shape = tuple(subject.outputs().shape)[1:]
    has_classes = bool(subject.arrays.description.get("classes"))
    if (shape if has_classes else shape[: len(wanted)]) != wanted:
        raise Refused(
            f"the model gives the shape {shape} for a row, and the argument outputs is {wanted}",
            "let the last layer give the shape outputs",
        )


def _row_losses(subject: Subject) -> str:
    inputs, targets = subject.rows
    outputs = subject.outputs()
    losses = np.asarray(subject.module.row_losses(targets, outputs, subject.settings))
    cause = _broadcast(subject, outputs)
    if losses.shape != (BATCH,):
        raise Refused(
            f"row_losses gives the shape {losses.shape} for {BATCH} rows{cause}",
            "give one number for each row, shape (rows,), and no mean over them; Keras's losses "
            "take the mean over the last axis",
        )
    _require_no_chance(subject, outputs)
    for row in range(BATCH):
        one = slice(row, row + 1)
        by_itself = np.asarray(
            subject.module.row_losses(targets[one], outputs[one], subject.settings)
        )
        if not np.allclose(by_itself, losses[one], ROWS_TOLERANCE, 1e-6):
            raise Refused(
                f"the loss of row {row} is {losses[row]:g} among {BATCH} rows, and "
                f"{float(by_itself.flat[0]):g} by itself{cause}",
                "compute each row's loss from this row only; a training whose loss compares the "
                "rows of a batch, such as a contrastive one, cannot be measured as a workload",
            )
        single = subject.model(given([array[one] for array in inputs]), training=False)
        if not np.allclose(single, outputs[one], ROWS_TOLERANCE, 1e-5):
            raise Refused(
                f"what the model gives for row {row} depends on the other rows",
                "let no layer mix rows, neither by a sum or a mean over them nor by a shape that "
                "joins them",
            )
    note = "; in training, its normalisation depends on the rows together"
    return f"one for each row, of this row only{note if _updates_itself(subject) else ''}"


def _broadcast(subject: Subject, outputs: Any) -> str:
    """Return how targets and outputs of unlike shapes are combined, as the cause of a wrong loss.

    It is empty where the shapes are equal, or the targets number classes.
    """
    shapes = tuple(subject.rows[1].shape), tuple(outputs.shape)
    if subject.arrays.description.get("classes") or shapes[0] == shapes[1]:
        return ""
    try:
        result = np.broadcast_shapes(*shapes)
    except ValueError:
        return f"; targets are {shapes[0]} and outputs {shapes[1]}"
    return (
        f"; the likely cause is that targets are {shapes[0]} and outputs {shapes[1]}, so their "
        f"difference is {result}: reshape the outputs to the argument outputs, {subject.form[1]}"
    )


def _require_no_chance(subject: Subject, outputs: Any) -> None:
    """Refuse a model that draws numbers outside training.

    Raises
    ------
    Refused : two calls with the same rows give different outputs.
    """
    if not np.allclose(outputs, subject.outputs(), ROWS_TOLERANCE, 1e-5, equal_nan=True):
        raise Refused(
            "two calls of the model with the same rows and training=False give different outputs",
            "draw random numbers only in training, and keep no state between calls; give noise as "
            "an input of the dataset. A generator that is trained against another network cannot "
            "be measured as a workload",
        )


def _updates_itself(subject: Subject) -> bool:
    """Return whether the model changes variables as it is called, as batch normalisation does."""
    before = [variable.numpy() for variable in subject.model.non_trainable_variables]
    subject.losses(training=True)
    return any(
        not np.array_equal(old, new.numpy())
        for old, new in zip(before, subject.model.non_trainable_variables, strict=True)
    )


def _gradients(subject: Subject) -> str:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(subject.losses(training=True)), *subject.model.losses])
    variables = subject.model.trainable_variables
    gradients = tape.gradient(loss, variables)
    without = [v.name for v, g in zip(variables, gradients, strict=True) if g is None]
    if without or not variables:
        raise Refused(
            f"no gradient for {', '.join(without)}" if without else "nothing is trainable",
            "let the loss depend on every trainable variable, or set trainable=False",
        )
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
    if not all(np.isfinite(gradient).all() for gradient in dense):
        raise Refused("a gradient is infinite or not a number", "mend the loss or its logarithms")
    return f"for all {len(variables)} trainable variables"


def _falls(subject: Subject) -> str:
    import tensorflow as tf

    optimizer = subject.optimizer()
    variables = subject.model.trainable_variables

    def mean() -> float:
        return float(tf.reduce_mean(subject.losses(training=False)))

    before = mean()
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(subject.losses(training=True))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
    after = mean()
    if not after < before:
        raise Refused(
            f"the loss of one batch is {before:.4g}, and {after:.4g} after {STEPS} steps on it",
            "mend the loss, or change the learning rate with --settings",
        )
    return f"from {before:.4g} to {after:.4g} in {STEPS} steps on one batch"


def _ranks(subject: Subject) -> str:
    one, two = subject.measured("single", "1x1"), subject.measured("horovod-mpi", "1x2")
    # A run whose ranks end with different weights does not end ok.
    equal = "both ranks end with equal weights"
    if _updates_itself(subject) or _draws(subject):
        return f"{equal}; with batch normalisation or dropout, they do not follow one rank exactly"
    for first, second in zip(one["epochs"], two["epochs"], strict=True):
        if not np.isclose(first["loss"], second["loss"], RANKS_TOLERANCE, 0):
            raise Refused(
                f"the loss of epoch {first['epoch']} is {first['loss']:.6g} on one rank and "
                f"{second['loss']:.6g} on two",
                "let the loss of a row depend on nothing but this row",
            )
    return f"{equal}, and their loss is that of one rank"


def _draws(subject: Subject) -> bool:
    """Return whether the model draws numbers as it is trained, as dropout does."""
    first, second = (np.asarray(subject.losses(training=True)) for _ in range(2))
    return not np.array_equal(first, second)


def _kept(subject: Subject) -> str:
    inputs, _ = subject.arrays.gather("test", slice(None))
    predictions, model = subject.predictions, load(subject.scratch / "single")
    if not np.allclose(model.predictions(*inputs), predictions, ROWS_TOLERANCE, 1e-5):
        raise Refused(
            "a kept model does not predict what the trained one did",
            "keep all that it has learnt in its variables",
        )
    return f"predicts the same for {len(predictions)} rows"


def _counts(subject: Subject) -> str:
    from escala.training.evaluate import SUMMED

    of_rows = _names_of_row_scores(subject)
    if taken := of_rows.intersection(SUMMED):
        raise Refused(
            f"row_scores gives the score {min(taken)}, which is a name of the run's own",
            "rename this score",
        )
    scores = scores_module(NAME)
    offered = [name for name in ("counts", "scores_of") if hasattr(scores, name)]
    if not offered:
        return "those of a classification" if scores is None else "computed from all rows at once"
    if len(offered) < 2:
        raise Refused(f"scores.py has only {offered[0]}", "offer both counts and scores_of")
    (_, targets), predictions = subject.arrays.gather("test", slice(None)), subject.predictions

    def counts(rows: slice) -> np.ndarray:
        return np.asarray(scores.counts(targets[rows], predictions[rows]))

    whole, rows = counts(slice(None)), len(targets)
    if whole.ndim != 2 or len(whole) != rows or counts(slice(0, 0)).shape != (0, whole.shape[1]):
        raise Refused(
            f"counts gives the shape {whole.shape} for {rows} rows and "
            f"{counts(slice(0, 0)).shape} for none",
            "give the shape (rows, n), with the same n for any rows",
        )
    by_row = np.concatenate([counts(slice(row, row + 1)) for row in range(rows)])
    if not np.allclose(by_row, whole):
        raise Refused(
            "the counts of a row depend on the other rows",
            "compute each row's counts from this row only",
        )
    found = scores.scores_of(whole.sum(axis=0, dtype=np.float64))
    if problem := not_finite(found):
        raise Refused(problem, "let scores_of leave out a score that these rows do not define")
    if twice := found.keys() & of_rows:
        raise Refused(
            f"score {min(twice)} is given by row_scores and by scores_of", "rename one of them"
        )
    return f"{', '.join(found)} from {whole.shape[1]} sums over rows"


def _names_of_row_scores(subject: Subject) -> set[str]:
    if not hasattr(subject.module, "row_scores"):
        return set()
    inputs, targets = subject.rows
    outputs = subject.model(given(inputs), training=False)
    return {*subject.module.row_scores(targets, outputs)}


def _fit(subject: Subject) -> str:
    _require(("OPTIMIZER", "fit", "shapes", "probabilities"), subject)
    offers.require_classes(subject.module, subject.arrays.description)
    inputs, targets = subject.arrays.gather("train", slice(None))
    counts = np.bincount(targets, minlength=subject.form[1][0])
    arguments = inputs, targets, counts, subject.settings
    weights, again = (subject.module.fit(*arguments) for _ in range(2))
    shapes = {name: tuple(shape) for name, shape in subject.module.shapes(*subject.form).items()}
    if {name: array.shape for name, array in weights.items()} != shapes:
        raise Refused(
            f"fit gives {_shapes(weights)}, and shapes tells otherwise",
            "let shapes tell the names and shapes of what fit gives",
        )
    if any(not np.array_equal(weights[name], again[name]) for name in weights):
        raise Refused("two fits to the same rows give different weights", "draw nothing at random")
    return f"{_shapes(weights)}, twice the same"


def _shapes(weights: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in weights.items())


def _probabilities(subject: Subject) -> str:
    inputs, targets = subject.arrays.gather("train", slice(None))
    counts = np.bincount(targets, minlength=subject.form[1][0])
    weights = subject.module.fit(inputs, targets, counts, subject.settings)
    found = np.asarray(subject.module.probabilities(weights, inputs))
    wanted = (len(targets), *subject.form[1])
    if found.shape != wanted or not np.allclose(found.sum(axis=1), 1, atol=1e-3):
        raise Refused(
            f"probabilities gives the shape {found.shape}, or rows whose sum is not 1",
            f"give a probability for each class, shape {wanted}",
        )
    return "for each class, and their sum is 1"


#: Checks without which the later ones would only fail for the same reason.
PRECONDITIONS = frozenset({"build", "row losses", "fit"})
STEPS_CHECKS: dict[str, Check] = {
    "build": _build,
    "row losses": _row_losses,
    "gradients": _gradients,
    "loss falls": _falls,
    "two ranks": _ranks,
    "kept model": _kept,
    "scores": _counts,
}
FIT_CHECKS: dict[str, Check] = {
    "fit": _fit,
    "probabilities": _probabilities,
    "kept model": _kept,
}
