"""Describe a model's gradients in a process of its engine.

Call it as `python -m escala.engines.gradients A B`. The file A describes the model, and the
file B gets what a calibration needs to know.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from escala import engines
from escala.core.files import read_json, write_json
from escala.core.hardware import available_cores
from escala.strategies.knobs import complete, threads_of


def described(model: Mapping[str, Any]) -> list[dict]:
    """Return the gradients of a model, without the moments when they are known.

    What ranks may compute again is timed, on the cores of a process. Imports a framework.
    """
    knobs = complete(model["knobs"], model["workload"])
    os.sched_setaffinity(0, available_cores()[: knobs["cores_per_process"]])
    engine = engines.load(model["engine"], "engine")
    engine.set_threads(threads_of(knobs))
    engine.set_products(knobs["products"])
    described = engines.load(model["engine"], "gradients").described
    return described(model["workload"], Path(model["split"]), model["training"], model["knobs"])


if __name__ == "__main__":
    write_json(Path(sys.argv[2]), described(read_json(Path(sys.argv[1]))))
