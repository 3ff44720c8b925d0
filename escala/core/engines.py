"""Read the `engine.yaml` of each engine. Other packages know an engine only by this file.

Only these files are read; nothing is imported, because the framework of an engine has its own
environment. The name of an engine is the name of its folder in `escala/engines/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from escala.core.errors import InputError
from escala.core.files import read_yaml

FOLDER = Path(__file__).resolve().parents[1] / "engines"
#: What each engine has besides its declaration.
MODULES = ("engine.py", "functions.py", "strategies.py", "__init__.py")


@dataclass(frozen=True)
class Environment:
    """The Python environment of an engine.

    Attributes
    ----------
    variable : the environment variable that names another interpreter.
    folder : the name of its folder.
    requirements : the file of its locked packages, in `envs/` (`scripts/lock_environments.py`).
    extras, packages : the extras of `pyproject.toml` and the dependencies of Escala in it.
    takes : its size, and how long its installation takes, in words.
    oldest : the first release of the framework with every function that the engine calls, as
        numbers.
    conda : the file of its conda environment, in `envs/`.
    python : the release of Python that it needs. None: any release that Escala supports.
    backend : uv's option that selects the build of the framework for the machine, if there is one.
    builds : pattern of the packages in `uv.lock` that differ between these builds. The first group
        is the framework. The other groups are libraries that its build brings.
    """

    variable: str
    folder: str
    requirements: str
    extras: tuple[str, ...]
    packages: tuple[str, ...]
    takes: str
    oldest: tuple[int, ...]
    conda: str = "train.yaml"
    python: str | None = None
    backend: str | None = None
    builds: str = "(?!)"

    @property
    def backend_variable(self) -> str:
        """The environment variable from which uv reads the value of `backend`."""
        return "UV_" + str(self.backend).strip("-").upper().replace("-", "_")


@dataclass(frozen=True)
class Collectives:
    """How a library sums gradients, as the cost model counts it.

    Attributes
    ----------
    segmented : whether the library cuts a message of a sum into segments.
    in_buckets : whether gradients are summed in buckets of a fixed size. Otherwise the gradients
        that are ready at the same time are summed together.
    in_cycles : whether a thread looks for ready gradients at intervals, and not at once.
    """

    segmented: bool = False
    in_buckets: bool = False
    in_cycles: bool = False


@dataclass(frozen=True)
class Engine:
    """The declaration of an engine.

    Attributes
    ----------
    position : its place in lists; the first engine is the default.
    title : the name of its framework, for people.
    module : the name of its models' module in the folder of a workload.
    one_process : the strategy by which one process trains.
    distributions : the distributions whose versions decide a result.
    required : tuples of distributions. Its environment needs one distribution of each tuple.
    launchers : the distributions of Escala's environment that start its ranks.
    keep_memory : variables with which processes keep freed memory, whatever its size.
    compiles : the knob that lets a training compile code; true if every training compiles code. The
        version of the compiler then decides a result.
    collectives : the libraries by which its ranks may sum, by name.
    variables : by use (`neutral`, `deciding` or `places`, see `escala.core.variables`), patterns of
        the names of variables, each with a description.
    settings : files of JSON that the framework reads by itself, each with its default values.
    """

    position: int
    title: str
    module: str
    one_process: str
    required: tuple[tuple[str, ...], ...]
    environment: Environment
    keep_memory: Mapping[str, str] = field(default_factory=dict)
    compiles: str | bool = False
    collectives: Mapping[str, Collectives] = field(default_factory=dict)
    variables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    launchers: tuple[str, ...] = ()

    @property
    def distributions(self) -> tuple[str, ...]:
        return (*chain(*self.required), *self.launchers)


def _read(file: Path) -> Engine:
    try:
        content: dict[str, Any] = read_yaml(file)
        distributions = content.pop("distributions")
        content["required"] = tuple(tuple(names.split(" or ")) for names in distributions)
        content["launchers"] = tuple(content.get("launchers", ()))
        environment = content["environment"]
        lists = {name: tuple(environment[name]) for name in ("extras", "packages", "oldest")}
        content["environment"] = Environment(**environment | lists)
        libraries = content.get("collectives", {})
        content["collectives"] = {name: Collectives(**how) for name, how in libraries.items()}
        engine = Engine(**content)
    except (TypeError, KeyError) as error:
        remedy = f"{Path(__file__).name} in escala/core lists the keys"
        raise InputError(file, None, f"does not declare an engine: {error}", remedy) from None
    for module in MODULES:
        if not file.with_name(module).is_file():
            reason = f"there is no {module} alongside it"
            raise InputError(file, None, reason, "write it, as the other engines have it")
    return engine


#: The engines by name, in the order of their positions.
ENGINES = dict(
    sorted(
        ((file.parent.name, _read(file)) for file in FOLDER.glob("*/engine.yaml")),
        key=lambda item: item[1].position,
    )
)
DEFAULT = next(iter(ENGINES))
#: The libraries of collectives of all engines, by name.
COLLECTIVES = {name: how for engine in ENGINES.values() for name, how in engine.collectives.items()}
