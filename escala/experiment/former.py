"""Names of an earlier version in the file of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from escala.core.errors import InputError
from escala.strategies.knobs import FORMER, renamed


def with_present_names(settings: Any, origin: str) -> tuple[Any, list[str]]:
    """Return settings with the current names of knobs, and a warning for each former name.

    Parameters
    ----------
    settings : the content of the experiment's file, not yet validated.
    origin : the file, for messages.

    Raises
    ------
    InputError : a variant has a knob under both of its names.
    """
    variants = settings.get("variants") if isinstance(settings, Mapping) else None
    if not isinstance(variants, Mapping):
        return settings, []
    present, warnings = {}, []
    for variant, knobs in variants.items():
        present[variant] = renamed(knobs) if isinstance(knobs, Mapping) else knobs
        for former in sorted(FORMER.keys() & set(knobs)) if isinstance(knobs, Mapping) else ():
            name, _ = FORMER[former]
            key = f"variants.{variant}.{former}"
            if name in knobs:
                raise InputError(
                    f"{origin}: {key}", knobs[former], f"is also given as {name}", "remove one"
                )
            value = present[variant][name]
            warnings.append(f"{key} is now {name}: {value}. The next version refuses the old name.")
    return {**settings, "variants": present}, warnings
