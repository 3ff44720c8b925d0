"""Workloads: a model and its training. Each workload is a folder of this package.

An experiment may also name a folder outside the project by its path.

Every folder has a `workload.yaml`, which declares the workload without importing anything:

`description`
    one sentence on the model;
`data_kind`
    the kind of the datasets that the workload reads;
`settings`
    the JSON Schema of its settings in an experiment: an object whose properties have a
    `description` and, unless they are required, a `default`. A workload trained by steps also has
    the common training settings (`epochs`, `batch`, …);
`packages`
    optional: distributions whose versions decide a result, besides those of the framework;
`knobs`
    optional: the knobs that a variant may set, each declared as in `escala.strategies.knobs`;
`example`
    optional: inputs and targets as in `dataset.json`, and the numbers in the arrays: from `from` to
    below `below`, or a list `values`. `escala check FOLDER` draws random rows from this example.

A program is run as it is. It has the keys of `escala.programs.program` in place of the keys above,
and no module. An experiment may also declare a program.

A workload has the name of its folder, with `-` for `_`. The folder is a package. The names of its
modules say how it is trained. A module that an `engine.yaml` names, such as `model`, is for
training by steps under the strategies of that engine. `model_fit` is for one fit in one process.
Modules are imported only where the workload is trained or loaded. In all functions, `specs` are the
specs of the inputs, and `outputs` is the shape of the model's output for one row; see
`escala.data.base`. `settings` are the workload's settings in the experiment. The functions of
workloads do not repeat these types.

By *steps*, here in TensorFlow:

`build(specs, outputs, settings, knobs)`
    an untrained `keras.Model` with one output. The model is called with a tensor for a single input
    and with a list for several inputs, in the dtypes of the specs, and may cast the inputs. A model
    whose class the workload defines is called once, so that it makes its variables. If the dataset
    has no `classes`, the output may have further axes after `outputs`, such as a number for each
    word. `knobs` are the values of the knobs that the workload declares. Equal arguments must give
    equal variables in equal order;
`optimizer(settings, learning_rate, knobs)`
    a `keras.optimizers.Optimizer`;
`row_losses(targets, outputs, settings)`
    the loss of every row, shape (rows,), never a mean, so that a row has equal weight on every
    rank.

It may also offer

`predict(outputs)`
    the predictions, which a run keeps and scores; by default the number of the most probable class,
    int64;
`generate(model, inputs, settings)`
    the predictions, in place of `predict`, if one pass through the model does not give the
    predictions. Examples are texts that are written word by word. `inputs` is a sequence of
    tensors, and the result a tensor (rows, …). The function is compiled, so it consists of
    TensorFlow's operations;
`correct(targets, outputs)`
    the correctness of each row, float32 (rows,) from 0 to 1, whose mean is recorded as accuracy; by
    default whether the most probable class is the target. Without classes, and with several classes
    in a row, `correct` and the module `scores` are required;
`row_scores(targets, outputs)`
    further scores of every row, finite float32 (rows,) by name; `loss` and `correct` are reserved
    names. With `validate`, the mean of each score is recorded after each epoch;

and a module `scores`, which is imported without `model` and so without TensorFlow, with

`score(targets, predictions, description)`
    the scores of a run, finite numbers by name, without a score that is undefined for these rows;
    `description` is the dataset's. By default the scores are the scores of a classification.

It may also offer two functions together, for scores that are functions of sums over rows:

`counts(targets, predictions)`
    the numbers to sum, (rows, n). The numbers of a row depend on this row only, and `rows` may be
    0;
`scores_of(sums)`
    the scores, finite numbers by name, from the sums over rows, float64 (n,). With `validate`, the
    counts are summed over the rows of all ranks after each epoch, and the scores are recorded.
    Their names must differ from the names of `row_scores`.

and, for the table of predictions for a user's own data,

`columns(predictions, description)`
    the columns of that table for one item, by name, from the predictions of its pieces, (pieces,
    …). A name begins with `predicted`. By default the columns are made from the model's outputs.

By one *fit*, without a framework, for targets that are numbers of classes:

`OPTIMIZER`
    the name of the method;
`fit(inputs, targets, counts, settings)`
    the trained weights, float arrays by name. `inputs` is a tuple of arrays. `counts`, int64
    (classes,), are the training rows of each class before oversampling;
`shapes(specs, outputs, settings)`
    the shapes of the weights by name. A kept model with other shapes is refused;
`probabilities(weights, inputs)`
    the probabilities, float32 (rows, classes). The memory for them may not grow with the rows.
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
    data_kind : the kind of the datasets that the workload reads.
    settings : JSON Schema of its settings.
    knobs : its own knobs by name, each a JSON Schema.
    folder : holds all its files.
    package : its dotted name, None for a program.
    packages : distributions that its modules import in addition to the distributions of its
        framework.
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
        """Return the program of a workload that is a program.

        Raises
        ------
        InputError : as `Program.of`.
        """
        where = self.declared.get("where", str(self.folder / DECLARATION))
        return Program.of(self.declared, self.folder, where)

    @property
    def is_program(self) -> bool:
        """Whether the workload is a user's program, which is run as it is."""
        return self.package is None

    @property
    def is_fitted(self) -> bool:
        """Whether one call in one process trains the workload, without steps, epochs and engine."""
        return not self.is_program and (self.folder / f"{FIT}.py").is_file()

    @property
    def takes_steps(self) -> bool:
        """Whether engines train the workload by gradient steps."""
        return not (self.is_program or self.is_fitted)

    @property
    def engines(self) -> list[str]:
        """The engines that can train it by steps: it has a module for each of these engines."""
        return [
            name
            for name, engine in ENGINES.items()
            if (self.folder / f"{engine.module}.py").is_file()
        ]

    @property
    def knob_defaults(self) -> dict[str, Any]:
        """Its own knobs with their default values."""
        return {name: schema["default"] for name, schema in self.knobs.items()}

    @property
    def setting_defaults(self) -> dict[str, Any]:
        """The defaults of its settings; required settings have no default."""
        declared = self.settings["properties"].items()
        return {name: schema["default"] for name, schema in declared if "default" in schema}

    @property
    def scores(self) -> str | None:
        """The dotted name of the module that scores its runs, or None."""
        if self.package is None:
            return None
        return f"{self.package}.scores" if (self.folder / "scores.py").is_file() else None


def _discover() -> dict[str, Workload]:
    """Return the workloads of the project and of folders outside the project, by name."""
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

    Programs of two experiments may have one name. So a program belongs to the experiment that
    declares it, and is not in `WORKLOADS`.

    Parameters
    ----------
    content : the declaration, possibly not yet checked.
    folder : paths in the declaration are relative to this folder.
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


#: The workloads by name: in the project, and in folders that experiments name.
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
