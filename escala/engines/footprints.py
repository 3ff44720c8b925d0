"""Build a workload's model in a process of its engine: `python -m escala.engines.footprints A B`.

The file A describes the model, and the file B gets its footprint, or an `error`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from escala import engines
from escala.core import user_code
from escala.core.files import read_json, write_json
from escala.data.base import specs
from escala.workloads import workload


def footprint_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """Build a model and return its footprint, or its error under `error`. Imports a framework."""
    built = engines.load(model["engine"], "footprint").workload_footprint
    outputs, training, knobs = tuple(model["outputs"]), model["training"], model["knobs"]
    try:
        work = workload(model["workload"], model["engine"])
        return asdict(built(work, specs(model), outputs, training, knobs))
    # The code of a user's workload may raise anything.
    except (Exception, SystemExit) as error:
        return {"error": f"{model['workload']}: {user_code.message(error)}"}


if __name__ == "__main__":
    write_json(Path(sys.argv[2]), footprint_of(read_json(Path(sys.argv[1]))))
