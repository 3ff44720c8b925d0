"""Describe an experiment for advice: its configurations, and how long they train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from escala.core.files import read_json
from escala.experiment.calibration import Calibration, planned


def plans(calibration: Calibration) -> dict:
    """Return what advice needs to know of an experiment, in JSON's types, without its rows.

    Parameters
    ----------
    calibration : the experiment that calibrates the cost model for it.
    """
    settings, found = calibration.base.settings, planned(calibration)
    return {
        "experiment": calibration.base.name,
        "configurations": found,
        "workloads": {
            # A program validates as it likes.
            name: {"validate": False}
            | {
                key: settings["workloads"][name][key]
                for key in ("epochs", "validate")
                if key in settings["workloads"][name]
            }
            for name in dict.fromkeys(each["workload"] for each in found)
        },
        "memory_gib": settings["memory_gib"],
        "power_model": calibration.base.probe_settings["energy"].get("power_model"),
    }


def with_rows(described: Mapping, datasets: Iterable[Path]) -> dict:
    """Add the number of rows of each side of each dataset, of its last split.

    Parameters
    ----------
    described : the result of `plans`.
    datasets : files …/data/{dataset}/split{seed}/dataset.json
    """
    rows = {path.parent.parent.name: read_json(path)["rows"] for path in datasets}
    return {**described, "rows": rows}
