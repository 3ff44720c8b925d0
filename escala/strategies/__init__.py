"""Strategies: how replicas synchronise. Adding one is adding a module to this folder.

The modules are found by their folder and not named here. A strategy's declaration is part of a
run's key (`escala.record.key`) only if the run uses the strategy.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from escala.strategies.base import Strategy

__all__ = ["STRATEGIES", "Strategy"]


def _discover() -> dict[str, type[Strategy]]:
    """Return the strategies by name, in the order that tables and figures list them."""
    # Declared knobs are looked up in the strategies found here.
    names = [module.name for module in pkgutil.iter_modules(__path__) if module.name != "knobs"]
    modules = [import_module(f"escala.strategies.{name}") for name in names]
    found = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Strategy)
        and value.__module__ == module.__name__
        and "position" in vars(value)
    ]
    return {each.name: each for each in sorted(found, key=lambda each: (each.position, each.name))}


STRATEGIES: dict[str, type[Strategy]] = _discover()
