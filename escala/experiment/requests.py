"""The request of a run: all that determines its result, except its data and the code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from escala.data import kind_of
from escala.experiment import folders
from escala.experiment.runs import Run
from escala.experiment.scaling import weak
from escala.experiment.schema import program_schema
from escala.probes import PROBES
from escala.programs.environment import identity
from escala.strategies.knobs import read_by_run

#: Settings of a workload that a variant may override.
_OVERRIDDEN = ("batch", "learning_rate", "checkpoint_epochs")
#: Keys of a network that determine a run only where they are set.
_LINK_IF_SET = ("transport",)


def request(settings: Mapping[str, Any], run: Run, training: Mapping[str, Any]) -> dict:
    """Return the request of a run. A probe run takes one epoch, or some steps of it.

    Parameters
    ----------
    settings : of the experiment.
    training : how the run trains, as `run_settings` returns it.
    """
    return {
        **run.names,
        **training,
        "launcher": settings["launcher"],
        "oversubscribe": settings["oversubscribe"],
        "probe_settings": probe_settings(settings, run),
        **_program(settings["datasets"][run.dataset], run),
    }


def run_settings(settings: Mapping[str, Any], run: Run) -> dict:
    """Return how a run trains: its settings, the knobs it reads, its link and number of steps."""
    declared, variant = run.declared.workload, run.declared.variant
    # The content of the folder determines the run, not its path; so does that of a program.
    apart = {folders.PATH, *(program_schema()["properties"] if declared.is_program else ())}
    workload = settings["workloads"][run.workload]
    training = {key: value for key, value in workload.items() if key not in apart}
    overridden = ("batch",) if declared.is_program else ()
    overridden = _OVERRIDDEN if declared.takes_steps else overridden
    training |= {key: variant[key] for key in overridden if key in variant}
    if rows := weak(settings, run.layout, declared):
        training["weak"] = rows
    link = run.declared.link
    steps = link["steps"]
    if run.instrument:
        steps = PROBES[run.instrument].steps(probe_settings(settings, run)) or steps
    if (run.instrument or steps) and not declared.is_program:
        short = {"epochs": 1, "validate": False, "save_model": False, "checkpoint_epochs": None}
        left_out = ("target_accuracy", "early_stopping")
        training = {k: v for k, v in training.items() if k not in left_out} | short
    knobs = {key: value for key, value in variant.items() if key not in _OVERRIDDEN}
    return {
        "training": training,
        "knobs": read_by_run(knobs, run.strategy, run.workload, declared.takes_steps),
        "link": {key: link[key] for key in ("interface", "rate")}
        | {key: link[key] for key in _LINK_IF_SET if link.get(key)},
        "max_steps": None if declared.is_program else steps,
    }


def probe_settings(settings: Mapping[str, Any], run: Run) -> dict | None:
    """Return the settings that determine a run of a probe; None for a timing run.

    Those that are declared with `determines_run: false` do not, and neither does `enabled`.
    """
    if run.instrument is None:
        return None
    declared = PROBES[run.instrument].settings["properties"]
    return {
        key: value
        for key, value in settings[run.instrument].items()
        if key != "enabled" and declared[key].get("determines_run", True)
    }


def _program(dataset: Mapping[str, Any], run: Run) -> dict:
    """Return what determines the results of a program, and where it and its data are."""
    if not run.declared.workload.is_program:
        return {}
    program, kind = run.declared.workload.program(), kind_of(dataset).load("settings")
    paths = kind.paths(dataset) if hasattr(kind, "paths") else {}
    where = {name: str(path) for name, path in paths.items()}
    return {"program": identity(program), "start": {"program": program.as_plan(), "paths": where}}
