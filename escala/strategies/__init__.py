"""Strategies: how replicas synchronise.

The strategies of an engine are classes in `strategies.py` in the engine's folder. Strategies that
only start programs are in `base`. A strategy's declaration is part of a run's key
(`escala.record.key`) only if the run uses the strategy.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from escala.core.engines import ENGINES, FOLDER
from escala.core.errors import InputError
from escala.strategies import base
from escala.strategies.base import Strategy

__all__ = ["OPTIONS", "STRATEGIES", "Strategy"]

#: In the folder of an engine, the file of strategies, and the file of the knobs of these
#: strategies.
FILE, KNOBS = "strategies.py", "knobs.yaml"


def _discover() -> dict[str, type[Strategy]]:
    """Return the strategies by name, in the order of tables and figures."""
    declared = [
        value
        for module in (base, *map(_load, sorted(FOLDER.glob(f"*/{FILE}"))))
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Strategy)
        and value.__module__ == module.__name__
        and "name" in vars(value)
    ]
    by_name: dict[str, type[Strategy]] = {}
    for strategy in sorted(declared, key=lambda kind: (kind.position, kind.name)):
        file = strategy.__module__.replace(".", "/") + ".py"
        if strategy is not by_name.setdefault(strategy.name, strategy):
            raise InputError(
                file, strategy.name, "is also the name of another strategy", "rename it"
            )
        engine, *inside = (strategy.engine or "").split(".")
        if strategy.engine and (engine not in ENGINES or len(inside) != 2):
            reason = f"is the engine of {strategy.name}, and is not ENGINE.MODULE.CLASS"
            remedy = f"name a class of ranks in escala/engines/: {', '.join(ENGINES)}"
            raise InputError(file, strategy.engine, reason, remedy)
        if inside and not (FOLDER / engine / f"{inside[0]}.py").is_file():
            reason = f"is the engine of {strategy.name}, and there is no {inside[0]}.py of ranks"
            raise InputError(file, strategy.engine, reason, f"write it in escala/engines/{engine}/")
    return by_name


def _load(file: Path) -> ModuleType:
    """Import a module without its package `escala.engines`, which imports `escala.strategies`."""
    name = f"escala.engines.{file.parent.name}.{file.stem}"
    spec = spec_from_file_location(name, file)
    sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


STRATEGIES: dict[str, type[Strategy]] = _discover()
#: The options of `escala try`, by the name of the strategy.
OPTIONS = {name: strategy.option for name, strategy in STRATEGIES.items() if strategy.option}
