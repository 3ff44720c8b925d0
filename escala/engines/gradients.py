"""Describe a model's gradients in a process of its engine.

Call it as `python -m escala.engines.gradients A B`. The file A describes the model, and the
file B gets what a calibration needs to know.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from escala import engines
from escala.core.files import read_json, write_json


def described(model: Mapping[str, Any]) -> list[dict]:
    """Return the gradients of a model, without the moments when they are known.

    Imports a framework.
    """
    described = engines.load(model["engine"], "gradients").described
    return described(model["workload"], Path(model["split"]), model["training"], model["knobs"])


if __name__ == "__main__":
    write_json(Path(sys.argv[2]), described(read_json(Path(sys.argv[1]))))
