"""Engines: what a process of a run does inside a framework. Each engine is a folder.

A strategy names its engine and the module of it that joins the ranks, as `tensorflow.horovod`. They
are imported in ranks only, so a framework may have an environment of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from escala.cache.code import modules
from escala.core import packages
from escala.core.engines import ENGINES
from escala.core.errors import Unavailable
from escala.engines import interpreters
from escala.engines.base import Engine
from escala.engines.devices import show_device
from escala.probes import Probe
from escala.strategies import STRATEGIES
from escala.strategies.base import Place
from escala.strategies.knobs import readable

__all__ = [
    "Engine",
    "engine_name",
    "interpreter",
    "joined",
    "load",
    "modules",
    "recording",
    "variables",
    "versions",
]


def interpreter(strategy: str, kind: str) -> str:
    """Return the path of the Python that runs the ranks of a strategy.

    Parameters
    ----------
    kind : how their workload is trained. A program's own interpreter is started by its rank.

    Raises
    ------
    Unavailable : the environment of the engine's framework is not installed, or is broken.
    """
    if kind != "steps":
        return sys.executable
    engine = engine_name(strategy)
    interpreters.versions(engine)
    return interpreters.python(engine)


def variables(python: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ranks that an interpreter runs; see `interpreters.variables`."""
    return interpreters.variables(python, given)


def versions(engine: str, further: Collection[str] = ()) -> dict[str, str]:
    """Return the versions of what decides a result in the environment where an engine trains.

    Each is `not installed` if the environment is missing. `further` are distributions besides those
    of the engine.
    """
    try:
        return interpreters.versions(engine, further)
    except Unavailable:
        names = ("python", *ENGINES[engine].distributions, *further)
        return dict.fromkeys(names, packages.ABSENT)


def code(engine: str) -> dict[str, Path]:
    """Return the files and folders of what trains by an engine, for `escala.cache.code.Code`."""
    here = Path(__file__).parent
    return {"trainer": here / engine, **modules(here)}


def entries(strategy: str, probe: type[Probe] | None = None) -> list[str]:
    """Return the names of the modules in which ranks begin to train: engine, group, recorder."""
    if STRATEGIES[strategy].engine is None:
        return []
    name, joins = _named(strategy)
    found = [f"escala.engines.{name}.engine", f"escala.engines.{name}.{joins}"]
    return [*found, *recorders(strategy, probe)]


def recorders(strategy: str, probe: type[Probe] | Probe | None) -> list[str]:
    """Return the name of the module by which an engine records steps for a probe, if it does."""
    if not (probe and probe.records_steps and STRATEGIES[strategy].records_for(probe.name)):
        return []
    module = probe.name.replace("-", "_")
    return [f"escala.engines.{engine_name(strategy)}.recorders.{module}"]


def joined(plan: Mapping[str, Any], place: Place) -> Engine:
    """Return the engine of a run's process, which has imported its framework and not yet started.

    Raises
    ------
    Unavailable : a GPU is asked for, and there is none, or too few (`show_device`).
    """
    strategy = STRATEGIES[plan["strategy"]]
    show_device(plan["knobs"]["device"], place, strategy.has_nccl)
    os.environ.update(strategy.process_variables(place, place.interface))
    engine, joins = map(import_module, entries(plan["strategy"]))
    return engine.ENGINE(plan, joins.RANKS(readable(plan["knobs"], plan["strategy"]), place))


def load(engine: str, module: str) -> ModuleType:
    """Return a module of an engine by its name."""
    return import_module(f"escala.engines.{engine}.{module}")


def recording(strategy: str, probe: Probe | None) -> ModuleType | None:
    """Return the module by which an engine records the steps of a run for its probe."""
    return next(map(import_module, recorders(strategy, probe)), None)


def engine_name(strategy: str) -> str | None:
    """Return the engine that trains by a strategy, such as `tensorflow`; None for programs only."""
    engine = STRATEGIES[strategy].engine
    return engine and engine.partition(".")[0]


def _named(strategy: str) -> list[str]:
    return STRATEGIES[strategy].engine.split(".")
