"""Probes: what is captured of a run besides its result. Adding one is adding a module.

A probe is a subclass of `escala.probes.base.Probe`, alone in a module of this folder. Its name is
that of the module's file, with `-` for `_`: an experiment sets it up under this key, and its runs
stand in folders of this name. The modules are found by their place and imported when they are asked
for, so that a probe is part of what determines a run (`escala.cache.sources`) only where the run
uses it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

from escala.core.errors import InputError
from escala.probes.base import Probe, Recorder

__all__ = ["PROBES", "Probe", "Recorder", "added", "of_run"]


class _Probes(Mapping[str, type[Probe]]):
    """The classes of the probes by name, in alphabetical order."""

    def __init__(self):
        names = (module.name for module in pkgutil.iter_modules(__path__))
        modules = (name for name in names if name != "base" and not name.startswith("_"))
        self._modules = {name.replace("_", "-"): name for name in modules}

    def __getitem__(self, name: str) -> type[Probe]:
        module = import_module(f"escala.probes.{self._modules[name]}")
        probes = [
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, Probe)
            and value.__module__ == module.__name__
        ]
        if len(probes) != 1:
            raise InputError(
                module.__file__,
                [probe.__name__ for probe in probes],
                "does not define exactly one probe",
                "define one subclass of Probe in it, or move the file out of escala/probes",
            )
        return probes[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


PROBES: Mapping[str, type[Probe]] = _Probes()


def added(properties: Mapping[str, dict], schemas: Mapping[str, dict]) -> dict[str, dict]:
    """Return the properties of a JSON Schema with those of probes, by their names.

    Raises
    ------
    InputError : a probe has the name of a property that there is already.
    """
    taken = sorted(properties.keys() & schemas.keys())
    if taken:
        raise InputError(
            Path(__file__).parent, taken, "is a key of another meaning", "rename the probe's file"
        )
    return {**properties, **schemas}


def of_run(plan: Mapping, folder: Path) -> Probe | None:
    """Return the probe that a run uses, None for a timing run.

    Parameters
    ----------
    plan : of the run, `escala.record.plan`.
    folder : the run's `ranks/` folder.
    """
    name = plan["instrument"]
    return None if name is None else PROBES[name](plan["probe_settings"], folder)
