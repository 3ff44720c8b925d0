"""The rules whose outputs `scripts/step.py` makes, each by a function of its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from escala import cli, engines
from escala.cache.code import Code, project
from escala.core.engines import DEFAULT, FOLDER
from escala.core.files import read_json, sha256_file
from escala.data import KINDS
from escala.data.captions import CAPTIONS_FILE
from escala.engines.environments import provide

#: The module of the function of each rule. Only functions that are a `cli.Step` use the store.
MODULES = {
    **dict.fromkeys(("genomes", "codes", "clusters", "leakage"), "escala.data.genomes.steps"),
    **dict.fromkeys(("source", "arrays", "familiarity"), "escala.data.steps"),
    "features": __name__,
    **dict.fromkeys(("length_errors", "predict"), "escala.predict.steps"),
    **dict.fromkeys(
        ("gradients", "calibrate", "predict_times", "predictions", "advise", "advice"),
        "escala.analysis.steps",
    ),
    **dict.fromkeys(
        ("page", "figure_of_run", "study_document", "check_runs"), "escala.report.steps"
    ),
}


def make(job: dict[str, Any], files: Mapping[str, Mapping[str, str | list[str]]]) -> None:
    """Make the outputs of a rule.

    Parameters
    ----------
    job : the name of the rule as `rule`, and its settings.
    files : the files of its `input` and of its `output`, by name.
    """
    settings = {name: value for name, value in job.items() if name not in ("rule", "code")}
    output, given = _paths(files["output"]), SimpleNamespace(**settings)
    function_of(job["rule"])(output, given, **_paths(files["input"]))


def function_of(rule: str) -> Callable[..., None]:
    return getattr(import_module(MODULES[rule]), rule)


def code_of(rule: str, settings: Mapping[str, Any]) -> str:
    """Return a digest of the code of a rule. It is the whole code if the rule is no `cli.Step`."""
    function = function_of(rule)
    code = (
        function.code(SimpleNamespace(**settings)) if isinstance(function, cli.Step) else project()
    )
    return _digest(tuple(code.paths.items()))


@cache
def _digest(paths: tuple[tuple[str, Path], ...]) -> str:
    return Code(dict(paths)).digest()


def _paths(files: Mapping[str, str | list[str]]) -> dict[str, Any]:
    """Return files by name. Leave out empty lists, which a rule has for some kinds of data.

    A list `files` stays, because functions take it even if it is empty.
    """
    return {
        name: Path(of) if isinstance(of, str) else [*map(Path, of)]
        for name, of in files.items()
        if of or name == "files"
    }


def _pictures(given: SimpleNamespace, source: Path, pictures: Path, weights: Path) -> cli.Files:
    from escala.data.captions.source import picture_files

    listed = picture_files(read_json(source / CAPTIONS_FILE), pictures)
    return {"weights": weights} | {f"pictures/{name}": path for name, path in listed.items()}


def _network(given: SimpleNamespace) -> dict[str, Any]:
    """Return the values that decide the features, besides the pictures and the weights."""
    provide(DEFAULT)  # The versions below are the versions of its environment.
    network = sha256_file(FOLDER / DEFAULT / "layers.py")
    return vars(given) | {"network": network} | engines.versions(DEFAULT)


@cli.step(
    # The code that lists the pictures does not decide their features.
    lambda given: KINDS["captions"].code("vgg16.py"),
    inputs=_pictures,
    parameters=_network,
)
def features(
    output: cli.Files, given: SimpleNamespace, source: Path, pictures: Path, weights: Path
) -> None:
    """Compute the features of a dataset's pictures. They do not depend on the captions."""
    from escala.core.files import atomic
    from escala.data.captions.source import picture_files
    from escala.data.captions.vgg16 import extract

    listed = picture_files(read_json(source / CAPTIONS_FILE), pictures)
    with atomic(output["features"]) as temporary:
        temporary.mkdir()
        extract(listed, weights, given.weights_sha256, temporary)
