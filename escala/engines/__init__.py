"""Engines: the work of a run's process inside a framework. Each engine is a folder.

A strategy names its engine and the class that joins the ranks, such as `torch.ranks.DDPRanks`. Only
ranks import the modules of an engine, so a framework may have an environment of its own.
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

    Without an engine it is this process's Python, which starts the user's program.

    Raises
    ------
    Unavailable : the environment of the engine's framework is not installed, or is broken.
    """
    if engine is None:
        return sys.executable
    environments.versions(engine)
    return environments.python(engine)


def versions(engine: str, further: Collection[str] = ()) -> dict[str, str]:
    """Return `environments.versions`; without environment, `not installed` for each package."""
    try:
        return environments.versions(engine, further)
    except Unavailable:
        names = ("python", *ENGINES[engine].distributions, *further)
        return dict.fromkeys(names, packages.ABSENT)


def code(engine: str) -> dict[str, Path]:
    """Return the files and folders of the code that trains by an engine, by name.

    Strategies and knobs are left out, because the key of a run (`escala.record.key`) already has
    the strategy and the values of the knobs.
    """
    here = Path(__file__).parent
    omitted = {strategies.FILE, strategies.KNOBS, "__init__.py"}
    parts = [part for part in (here / engine).iterdir() if part.name not in omitted]
    return {f"trainer/{part.name}": part for part in parts} | modules(here)


def ranks_of(strategy: str) -> type[Group]:
    """Return the class that joins the ranks of a strategy."""
    engine, module, name = STRATEGIES[strategy].engine.split(".")
    return getattr(load(engine, module), name)


def create_engine(plan: Mapping[str, Any], place: Place) -> Engine:
    """Return the engine of a run's process. The framework is imported; the engine is not started.

    Raises
    ------
    Unavailable : the run needs GPUs, and there are no GPUs or too few (`show_device`).
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
    """Return the engine's module that records the steps of a run for its probe, or None."""
    if not (probe and probe.records_steps and STRATEGIES[strategy].records_for(probe.name)):
        return None
    return load(engine_name(strategy), f"record_{probe.name.replace('-', '_')}")


def engine_name(strategy: str) -> str | None:
    """Return the engine of a strategy, such as `tensorflow`; None for a strategy of programs."""
    engine = STRATEGIES[strategy].engine
    return engine and engine.partition(".")[0]


#: The value of `CUDA_VISIBLE_DEVICES` that hides all GPUs.
_NO_GPU = "-1"
#: With this variable TensorFlow takes GPU memory only when needed, so processes can share a GPU.
_GROW = "TF_FORCE_GPU_ALLOW_GROWTH"


def show_device(device: str, place: Place, has_nccl: bool = False) -> None:
    """Show this process and its children only the GPUs of its ranks.

    Call this before any framework is imported. The ranks of a node get its GPUs in turn, so ranks
    share GPUs if there are fewer GPUs than ranks.

    Parameters
    ----------
    device : `auto`, `gpu` or `cpu`; without a GPU, `auto` changes nothing.
    has_nccl : whether ranks on GPUs exchange by NCCL, which needs a GPU for every rank.

    Raises
    ------
    Unavailable : `device` is `gpu`, and this process may use no GPU; or ranks would share a GPU,
        and NCCL does not allow it.
    """
    if device == "cpu":
        os.environ[VISIBLE_GPUS] = _NO_GPU
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
