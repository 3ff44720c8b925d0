"""Strategies: how replicas synchronise. Adding one is adding a class to a module of this folder.

Modules, and the strategies in them, are found and not named here. A strategy's declaration is part
of a run's key (`escala.record.key`) only if the run uses the strategy.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

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
        if each is not found.setdefault(each.name, each):
            file = each.__module__.replace(".", "/") + ".py"
            raise InputError(file, each.name, "is also the name of another strategy", "rename it")
    return found


STRATEGIES: dict[str, type[Strategy]] = _discover()
