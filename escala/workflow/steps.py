"""The rules that `scripts/step.py` makes, with the module of the function of each."""

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

#: The module of each rule's function. Functions that are no `cli.Step` keep nothing in the store.
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
    """Make what a rule makes.

    Parameters
    ----------
    job : the name of the `rule`, and its settings.
    files : of its `input` and its `output`, by name.
    """
    settings = {name: value for name, value in job.items() if name not in ("rule", "code")}
    output, given = _paths(files["output"]), SimpleNamespace(**settings)
    function_of(job["rule"])(output, given, **_paths(files["input"]))


def function_of(rule: str) -> Callable[..., None]:
    return getattr(import_module(MODULES[rule]), rule)


def code_of(rule: str, settings: Mapping[str, Any]) -> str:
    """Return a digest of the code that decides what a rule makes: of all if it is no `cli.Step`."""
    function = function_of(rule)
    code = (
        function.code(SimpleNamespace(**settings)) if isinstance(function, cli.Step) else project()
    )
    return _digest(tuple(code.paths.items()))


@cache
def _digest(paths: tuple[tuple[str, Path], ...]) -> str:
    return Code(dict(paths)).digest()


def _paths(files: Mapping[str, str | list[str]]) -> dict[str, Any]:
    """Return files by name, without those that are empty: a rule has none for this kind of data."""
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
    """Return what decides the features besides the pictures and the weights."""
    provide(DEFAULT)  # The versions are those of its environment.
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
    """Compute the features of a dataset's pictures, which do not depend on their captions."""
    from escala.core.files import atomic
    from escala.data.captions.source import picture_files
    from escala.data.captions.vgg16 import extract

    listed = picture_files(read_json(source / CAPTIONS_FILE), pictures)
    with atomic(output["features"]) as temporary:
        temporary.mkdir()
        extract(listed, weights, given.weights_sha256, temporary)
