"""Scenarios of advice: their file, and the plans of their experiments for another's calibration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from escala.analysis.advice.choice import CORE_HOURS, DEADLINE, TIME, Limits
from escala.analysis.cost_model.calibrating import CalibrationExperiment
from escala.analysis.cost_model.works import plans, with_rows
from escala.core.errors import InputError
from escala.core.files import read_yaml
from escala.experiment import Experiment, load
from escala.experiment.runs import DEFAULT_REFERENCES
from escala.runtime.layout import Layout

#: Prefix of the variants of an experiment alongside those of the one that calibrates it.
_OWN = "own-"


@dataclass(frozen=True)
class Scenario:
    """A question whose right answer was measured.

    Attributes
    ----------
    experiment, calibrated_by : files of experiments. Datasets of one name must have rows of the
        same form in both.
    variants : that may be selected. The first one gives the rows in a step, if it has one rank.
    network : between nodes; None if the experiment has one network only.
    cores_per_node : of the nodes of the experiment, if the calibrated one had others.
    """

    question: str
    experiment: str
    variants: tuple[str, ...]
    goal: str = TIME
    network: str | None = None
    cores_per_node: int | None = None
    cores: int | None = None
    minutes: float | None = None
    calibrated_by: str | None = None

    @property
    def limits(self) -> Limits:
        seconds = None if self.minutes is None else 60 * self.minutes
        return Limits(None, self.cores, None, seconds)


def scenarios(file: Path) -> list[Scenario]:
    """Return the scenarios of a YAML file.

    Raises
    ------
    InputError : a scenario has an unknown key, or lacks one.
    """
    found = []
    for number, entry in enumerate(read_yaml(file)["scenarios"], start=1):
        try:
            found.append(Scenario(**(entry | {"variants": tuple(entry["variants"])})))
        except (TypeError, KeyError) as error:
            known = ", ".join(Scenario.__dataclass_fields__)
            raise InputError(
                file, f"scenario {number}", str(error), f"use these keys: {known}"
            ) from error
        if found[-1].goal not in (TIME, CORE_HOURS, DEADLINE):
            raise InputError(file, found[-1].goal, "is not measured here", "choose another goal")
    return found


def scenario_plans(base: Experiment, scenario: Scenario, results: Path) -> dict:
    """Return the plans of a scenario, with the names that works have in its calibration."""
    described = base
    if scenario.calibrated_by:
        described = together(load(scenario.calibrated_by), base)
    found = plans(CalibrationExperiment(described))
    for each in found["configurations"]:
        # Those of the other experiment have no prefix, and names without one are not asked for.
        own = each["variant"].startswith(_OWN) or described is base
        each["variant"] = each["variant"].removeprefix(_OWN) if own else ""
    order = scenario.variants
    kept = [
        each
        for each in found["configurations"]
        if _is_asked(each, scenario)
        and each["dataset"] in base.settings["datasets"]
        and each["workload"] in base.settings["workloads"]
    ]
    found["configurations"] = sorted(kept, key=lambda each: order.index(each["variant"]))
    names = {each["dataset"] for each in found["configurations"]}
    files = [
        path
        for name in names
        for path in (results / base.name / "data" / name).glob("split*/dataset.json")
    ]
    if not files:
        folder = results / base.name
        raise InputError(folder, None, "has no runs", f"run {scenario.experiment} first")
    return with_rows(found, files)


def _is_asked(planned: Mapping, scenario: Scenario) -> bool:
    across = Layout.parse(planned["layout"]).nodes > 1
    return planned["variant"] in scenario.variants and not (
        across and scenario.network not in (None, planned["network"])
    )


def together(calibrated: Experiment, base: Experiment) -> Experiment:
    """Return an experiment with the configurations of two.

    What one process computes is called by the first variant that does so, which is one of the
    calibrated experiment. The variants of the other one get the prefix `_OWN`.

    Raises
    ------
    InputError : both have workloads or networks of one name that differ.
    """
    one, other = calibrated.settings, base.settings
    for kind in ("workloads", "networks"):
        for name in one[kind].keys() & other[kind].keys():
            if one[kind][name] != other[kind][name]:
                raise InputError(
                    base.origin, name, f"that of {calibrated.name} differs", "rename one of them"
                )
    joined = {kind: {**one[kind], **other[kind]} for kind in ("datasets", "workloads", "networks")}
    own = {f"{_OWN}{name}": each for name, each in other["variants"].items()}
    theirs = [{"variants": list(one["variants"])} | entry for entry in one["configurations"]]
    ours = [
        entry | {"variants": [f"{_OWN}{name}" for name in entry.get("variants", other["variants"])]}
        for entry in other["configurations"]
    ]
    settings = joined | {
        "variants": {**one["variants"], **own},
        "configurations": [*theirs, *ours],
        "references": list(DEFAULT_REFERENCES),
        "ladders": {},
    }
    return Experiment(other | settings, base.origin)
