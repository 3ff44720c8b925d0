"""Workloads: models with their training. Each workload is a folder of this package.

An experiment may also name a folder outside the project by its path.

Every folder has a `workload.yaml`, which declares the workload without importing anything:

`description`
    one sentence on the model;
`data_kind`
    the kind of the datasets that it reads;
`settings`
    the JSON Schema of its settings in an experiment: an object whose properties have a
    `description` and, unless they are required, a `default`. A workload trained by steps also has
    the common training settings (`epochs`, `batch`, …);
`packages`
    optional: distributions whose versions decide a result, besides those of the framework;
`knobs`
    optional: the knobs that a variant may set, each declared as in `escala.strategies.knobs`;
`example`
    optional: inputs and targets in the form of `dataset.json`, and the numbers in them: `from` and
    `below`, a limit that is not reached, or `values`. `escala check FOLDER` draws such rows
    at random.

A program, which is run as it is, has the keys of `escala.programs.program` in their place, and no
module. An experiment may declare it itself.

A workload has the name of its folder, with `-` for `_`. The folder is a package. The names of its
modules tell what trains it: `model` and the like, which an `engine.yaml` names, by steps under the
strategies of that engine; `model_fit`, by one fit in one process. They are imported only where the
workload is trained or loaded. `specs` are the specs of the inputs, `outputs` the shape of the
model's output for one row; see `escala.data.base`. `settings` are those of the experiment. These
types hold for every workload, and its functions do not repeat them.

By *steps*, here in TensorFlow:

`build(specs, outputs, settings, knobs)`
    an untrained `keras.Model` with one output. It is called with one tensor for one input and with
    a list for several, in the dtypes of the specs, and may cast them. A model of a class that the
    workload defines is called once, so that it makes its variables. If the dataset has no
    `classes`, the shape of the output may go on after `outputs`, such as by a number for each word.
    `knobs` are the values of the knobs that the workload declares. The same arguments must give the
    same variables in the same order;
`optimizer(settings, learning_rate, knobs)`
    a `keras.optimizers.Optimizer`;
`row_losses(targets, outputs, settings)`
    the loss of every row, shape (rows,), never a mean, so that a row counts the same on every rank.

It may also offer

`predict(outputs)`
    the predictions, which are kept and scored; by default the number of the most probable class,
    int64;
`generate(model, inputs, settings)`
    the predictions, in place of `predict`, if one pass through the model does not give them. An
    example are texts that are written word by word. `inputs` is a sequence of tensors, and the
    result a tensor (rows, …). It is compiled, so it consists of TensorFlow's operations;
`correct(targets, outputs)`
    the correctness of each row, float32 (rows,) from 0 to 1, whose mean is recorded as accuracy; by
    default whether the most probable class is the target. It is needed without classes, and with
    several classes in a row; so is the module `scores`;
`row_scores(targets, outputs)`
    further scores of every row, finite float32 (rows,) by name, which is neither `loss` nor
    `correct`. With `validate`, their means are recorded after each epoch;

and a module `scores`, which is imported without `model` and so without TensorFlow, with

`score(targets, predictions, description)`
    the scores of a run, finite numbers by name, without a score that is undefined for these rows;
    `description` is that of the dataset. By default the scores are those of a classification.

It may also offer, together, for scores that are functions of sums over rows:

`counts(targets, predictions)`
    what is summed, numbers (rows, n), each row's from this row only; also for no rows;
`scores_of(sums)`
    the scores, finite numbers by name, from the sums over rows, float64 (n,). With `validate`, the
    counts are summed over the rows of all ranks after each epoch, and these scores are recorded
    alongside those of `row_scores`, which have other names.

and, for the table of predictions for a user's own data,

`columns(predictions, description)`
    the columns of that table for one item, by name, from the predictions of its pieces, (pieces,
    …). A name begins with `predicted`. By default they are made of the model's outputs.

By one *fit*, without a framework; the targets are numbers of classes:

`OPTIMIZER`
    the name of the method;
`fit(inputs, targets, counts, settings)`
    the trained weights, float arrays by name; `inputs` is a tuple of arrays; `counts`, int64
    (classes,), are the training rows of each class before oversampling;
`shapes(specs, outputs, settings)`
    the shapes of these weights by name: a kept model with other shapes is refused;
`probabilities(weights, inputs)`
    the probabilities, float32 (rows, classes), computed in memory that does not grow with the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from escala.core import plugins
from escala.core.engines import DEFAULT, ENGINES
from escala.core.files import read_yaml
from escala.programs.program import Program

DECLARATION = plugins.DECLARATIONS[plugins.WORKLOADS]
#: The module of a workload that is trained by one fit.
FIT = "model_fit"


@dataclass(frozen=True)
class Workload:
    """The declaration of a workload, read without importing it.

    Attributes
    ----------
    description : one sentence on the model.
    data_kind : the kind of the datasets that it reads.
    settings : JSON Schema of its settings.
    knobs : its own knobs by name, each a JSON Schema.
    folder : holds all its files.
    package : its dotted name, None for a program.
    packages : distributions that its modules import besides those of its framework.
    declared : the keys of a program's declaration; empty for other workloads.
    """

    description: str
    data_kind: str
    settings: dict[str, Any]
    knobs: dict[str, dict[str, Any]]
    folder: Path
    package: str | None
    packages: tuple[str, ...] = ()
    declared: Mapping[str, Any] = field(default_factory=dict)

    def program(self) -> Program:
        """Return the program of a workload that is one.

        Raises
        ------
        InputError : as `Program.of`.
        """
        where = self.declared.get("where", str(self.folder / DECLARATION))
        return Program.of(self.declared, self.folder, where)

    @property
    def is_program(self) -> bool:
        """Whether it is a program of a user, which is run as it is."""
        return self.package is None

    @property
    def is_fitted(self) -> bool:
        """Whether one call in one process trains it, without steps, epochs and engine."""
        return not self.is_program and (self.folder / f"{FIT}.py").is_file()

    @property
    def takes_steps(self) -> bool:
        """Whether engines train it by gradient steps."""
        return not (self.is_program or self.is_fitted)

    @property
    def engines(self) -> list[str]:
        """The engines that can train it by steps: those for which it has a module."""
        return [
            name
            for name, engine in ENGINES.items()
            if (self.folder / f"{engine.module}.py").is_file()
        ]

    @property
    def knob_defaults(self) -> dict[str, Any]:
        """Its own knobs with the values that apply where a run does not set them."""
        return {name: schema["default"] for name, schema in self.knobs.items()}

    @property
    def setting_defaults(self) -> dict[str, Any]:
        """The defaults of its settings; those that are required have none."""
        declared = self.settings["properties"].items()
        return {name: schema["default"] for name, schema in declared if "default" in schema}

    @property
    def scores(self) -> str | None:
        """The dotted name of the module that scores its runs, if there is one."""
        if self.package is None:
            return None
        return f"{self.package}.scores" if (self.folder / "scores.py").is_file() else None


def _discover() -> dict[str, Workload]:
    """Return the workloads of the project and those in folders outside it, by name."""
    files = sorted(Path(__file__).parent.glob(f"*/{DECLARATION}"))
    inside = {file.parent.name.replace("_", "-"): read_declaration(file) for file in files}
    folders = plugins.folders(plugins.WORKLOADS)
    return inside | {name: _read_outside(name, folder) for name, folder in folders.items()}


def _read_outside(name: str, folder: Path) -> Workload:
    """Return the workload in a folder outside the project."""
    return replace(
        read_declaration(folder / DECLARATION), package=plugins.package(plugins.WORKLOADS, name)
    )


def program(content: Mapping[str, Any], folder: Path) -> Workload:
    """Return the workload of a program.

    Only the experiment that declares it has it, so it is not among `WORKLOADS`: programs of two
    experiments may have the same name.

    Parameters
    ----------
    content : the declaration, which may not be checked yet.
    folder : where paths in the declaration start.
    """
    settings = {"type": "object", "additionalProperties": False, "properties": {}}
    description = content.get("description", "A program that is run as it is.")
    kind = content.get("data_kind", "files")
    return Workload(description, kind, settings, {}, folder, None, declared=content)


def read_declaration(file: Path) -> Workload:
    """Return the workload that a `workload.yaml` in a package's folder declares."""
    content = read_yaml(file)
    if "command" in content:
        return program(content, file.parent)
    return Workload(
        content["description"],
        content["data_kind"],
        content["settings"],
        content.get("knobs", {}),
        file.parent,
        f"escala.workloads.{file.parent.name}",
        tuple(content.get("packages", ())),
    )


#: The workloads by name: those of the project, and those in folders that experiments name.
WORKLOADS = _discover()


def add(name: str, folder: Path) -> None:
    """Add the workload in a folder outside the project, an absolute path."""
    plugins.add(plugins.WORKLOADS, name, folder)
    WORKLOADS[name] = _read_outside(name, folder)


def workload(name: str, engine: str = DEFAULT) -> ModuleType:
    """Import and return the module that trains a workload: for an engine, or by a fit."""
    declared = WORKLOADS[name]
    module = FIT if declared.is_fitted else ENGINES[engine].module
    return import_module(f"{declared.package}.{module}")


def scores_module(name: str) -> ModuleType | None:
    """Import and return the module `scores` of a workload; None if it has none."""
    scores = WORKLOADS[name].scores
    return import_module(scores) if scores else None
