"""Engines: what a process of a run does inside a framework. Each engine is a folder.

A strategy names its engine and the class that joins the ranks, as `torch.ranks.DDPRanks`. Only
ranks import these modules, so a framework may have an environment of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from escala import strategies
from escala.cache.code import modules
from escala.core import packages
from escala.core.engines import ENGINES
from escala.core.errors import Unavailable
from escala.core.hardware import VISIBLE_GPUS, available_gpus
from escala.engines import environments
from escala.engines.base import Engine, Group
from escala.probes import Probe
from escala.strategies import STRATEGIES
from escala.strategies.base import Place
from escala.strategies.knobs import read_by_strategy


def interpreter(engine: str | None) -> str:
    """Return the path of the Python that runs ranks in which an engine trains.

    Without an engine it is that of this process: the rank of a program starts the program's own.

    Raises
    ------
    Unavailable : the environment of the engine's framework is not installed, or is broken.
    """
    if engine is None:
        return sys.executable
    environments.versions(engine)
    return environments.python(engine)


def versions(engine: str, further: Collection[str] = ()) -> dict[str, str]:
    """Return `environments.versions`, or `not installed` for each if the environment is missing."""
    try:
        return environments.versions(engine, further)
    except Unavailable:
        names = ("python", *ENGINES[engine].distributions, *further)
        return dict.fromkeys(names, packages.ABSENT)


def code(engine: str) -> dict[str, Path]:
    """Return the files and folders of what trains by an engine, for `escala.cache.code.Code`.

    Strategies and knobs are left out: the key of a run (`escala.record.key`) has an entry for the
    strategy, and the values of the knobs.
    """
    here = Path(__file__).parent
    omitted = {strategies.FILE, strategies.KNOBS, "__init__.py"}
    parts = [part for part in (here / engine).iterdir() if part.name not in omitted]
    return {f"trainer/{part.name}": part for part in parts} | modules(here)


def ranks_of(strategy: str) -> type[Group]:
    """Return the class of an engine by which the ranks of a strategy join."""
    engine, module, name = STRATEGIES[strategy].engine.split(".")
    return getattr(load(engine, module), name)


def create_engine(plan: Mapping[str, Any], place: Place) -> Engine:
    """Return the engine of a run's process, which has imported its framework and not yet started.

    Raises
    ------
    Unavailable : a GPU is asked for, and there is none, or too few (`show_device`).
    """
    strategy = STRATEGIES[plan["strategy"]]
    show_device(plan["knobs"]["device"], place, strategy.has_nccl)
    os.environ.update(strategy.process_variables(place, place.interface))
    group = ranks_of(plan["strategy"])(read_by_strategy(plan["knobs"], plan["strategy"]), place)
    return load(engine_name(plan["strategy"]), "engine").ENGINE(plan, group)


def load(engine: str, module: str) -> ModuleType:
    """Return a module of an engine by its name."""
    return import_module(f"escala.engines.{engine}.{module}")


def recorder_module(strategy: str, probe: Probe | None) -> ModuleType | None:
    """Return the module by which an engine records the steps of a run for its probe."""
    if not (probe and probe.records_steps and STRATEGIES[strategy].records_for(probe.name)):
        return None
    return load(engine_name(strategy), f"record_{probe.name.replace('-', '_')}")


def engine_name(strategy: str) -> str | None:
    """Return the engine that trains by a strategy, such as `tensorflow`; None for programs only."""
    engine = STRATEGIES[strategy].engine
    return engine and engine.partition(".")[0]


#: What `CUDA_VISIBLE_DEVICES` holds to show no GPU.
_NONE = "-1"
#: With this variable TensorFlow takes GPU memory only as needed, so processes can share a GPU.
_GROW = "TF_FORCE_GPU_ALLOW_GROWTH"


def show_device(device: str, place: Place, has_nccl: bool = False) -> None:
    """Show this process and its children only the GPUs of its ranks.

    Call it before any framework is imported. The GPUs of a node are dealt to its ranks in turn, so
    ranks share them if there are fewer GPUs than ranks.

    Parameters
    ----------
    device : `auto`, `gpu` or `cpu`; without a GPU, `auto` changes nothing.
    has_nccl : whether ranks on GPUs exchange by NCCL, which takes no GPU for two of them.

    Raises
    ------
    Unavailable : `device` is `gpu`, and there is none that this process may use; or ranks would
        share one, and cannot.
    """
    if device == "cpu":
        os.environ[VISIBLE_GPUS] = _NONE
        return
    gpus = available_gpus()
    if not gpus and device == "gpu":
        raise Unavailable("device: gpu needs a GPU and NVIDIA's driver; see `escala check`")
    ranks = place.processes_per_node * len(place.ranks)
    if has_nccl and 0 < len(gpus) < ranks:
        raise Unavailable(
            f"NCCL takes a GPU for each of {ranks} ranks, and the node has {len(gpus)}. Remedy: a "
            f"layout with at most {len(gpus)} on a node, ddp-gloo, or device: cpu"
        )
    if gpus:
        first = place.local * len(place.ranks)
        numbers = dict.fromkeys((first + rank) % len(gpus) for rank in range(len(place.ranks)))
        os.environ[VISIBLE_GPUS] = ",".join(gpus[number].identifier for number in numbers)
        os.environ[_GROW] = "true"
