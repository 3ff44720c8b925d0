"""Strategies: how replicas synchronise. Adding one is adding a class to a module of this folder.

Modules, and the strategies in them, are found and not named here. A strategy's declaration is part
of a run's key (`escala.record.key`) only if the run uses the strategy.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from escala.core.engines import ENGINES
from escala.core.errors import InputError
from escala.strategies.base import Strategy

__all__ = ["STRATEGIES", "Strategy"]


def _discover() -> dict[str, type[Strategy]]:
    """Return the strategies by name, in the order that tables and figures list them."""
    # Declared knobs are looked up in the strategies found here.
    names = [module.name for module in pkgutil.iter_modules(__path__) if module.name != "knobs"]
    modules = [import_module(f"escala.strategies.{name}") for name in names]
    declared = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Strategy)
        and value.__module__ == module.__name__
        and "name" in vars(value)
    ]
    found: dict[str, type[Strategy]] = {}
    for each in sorted(declared, key=lambda each: (each.position, each.name)):
        file = each.__module__.replace(".", "/") + ".py"
        if each is not found.setdefault(each.name, each):
            raise InputError(file, each.name, "is also the name of another strategy", "rename it")
        engine, *inside = (each.engine or "").split(".")
        if each.engine and (engine not in ENGINES or len(inside) != 2):
            reason = f"is the engine of {each.name}, and is not ENGINE.MODULE.CLASS"
            remedy = f"name a class of ranks in escala/engines/: {', '.join(ENGINES)}"
            raise InputError(file, each.engine, reason, remedy)
    return found


STRATEGIES: dict[str, type[Strategy]] = _discover()
