"""Find the probes, the instruments that capture more of a run than its result.

To add a probe, add a module with one subclass of `escala.probes.base.Probe` to this folder. The
name of the probe is that of the module's file, with `-` for `_`. The key of its settings in an
experiment and the folder of its runs have this name, too. A module is imported only when a run uses
its probe. So the code of a probe determines only the runs of this probe (`escala.record.key`).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

from escala.core.errors import InputError
from escala.probes.base import Probe, Recorder

__all__ = ["PROBES", "Probe", "Recorder", "probe_of_plan", "with_probe_settings"]


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
        [probe] = probes
        if not hasattr(probe, "settings"):
            remedy = "see escala.probes.base.Probe"
            raise InputError(module.__file__, None, "does not declare `settings`", remedy)
        return probe

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


PROBES: Mapping[str, type[Probe]] = _Probes()


def with_probe_settings(
    properties: Mapping[str, dict], schemas: Mapping[str, dict]
) -> dict[str, dict]:
    """Return the properties of a JSON Schema, and add the schema of each probe under its name.

    Raises
    ------
    InputError : a probe has the name of an existing property.
    """
    if clashes := sorted(properties.keys() & schemas.keys()):
        raise InputError(
            Path(__file__).parent,
            clashes,
            "is already a key of the experiment",
            "rename the probe's file",
        )
    return {**properties, **schemas}


def probe_of_plan(plan: Mapping, folder: Path) -> Probe | None:
    """Return the probe that a run uses, or None for a timing run.

    Parameters
    ----------
    plan : the run's plan, see `escala.record.plan`.
    folder : the run's `ranks/` folder.
    """
    name = plan["instrument"]
    return None if name is None else PROBES[name](plan["probe_settings"], folder)
