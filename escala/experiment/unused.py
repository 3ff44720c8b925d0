"""Find knobs and probes that an experiment sets and no run of it reads."""

from __future__ import annotations

from escala.experiment.matrix import Experiment
from escala.probes import PROBES
from escala.strategies.knobs import all_knobs


def idle_probes(experiment: Experiment) -> list[str]:
    """Return the probes that are asked for and that capture no run of an experiment."""
    return [
        name
        for name, probe in PROBES.items()
        # One that is on by default is not asked for.
        if not probe.settings["properties"]["enabled"]["default"]
        and experiment.settings[name]["enabled"]
        and not experiment.instrumented(name)
    ]


def unread_knobs(experiment: Experiment) -> list[tuple[str, str]]:
    """Return each variant and knob that is set although no run of the variant reads it."""
    read: dict[str, set[str]] = {}
    known = all_knobs()
    for run in experiment.timed:
        read.setdefault(run.variant, set()).update(experiment.settings_of(run)["knobs"])
    return [
        (name, knob)
        for name in read
        for knob, value in experiment.settings["variants"][name].items()
        if knob in known and value != known[knob].default and knob not in read[name]
    ]
