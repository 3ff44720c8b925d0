"""Build a workload's model, and write what a calibration needs to know of its gradients.

Where ranks may compute the input of a dense layer again, this is timed, on the cores of a process.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from escala import cli
from escala.core.files import write_json
from escala.core.hardware import available_cores
from escala.data import KINDS, base
from escala.record import key
from escala.strategies.knobs import complete, threads_of
from escala.workloads import WORKLOADS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", required=True, choices=sorted(WORKLOADS))
    parser.add_argument("--training", required=True, type=cli.json_or_file, metavar="JSON")
    parser.add_argument("--knobs", required=True, type=cli.json_or_file, metavar="JSON")
    parser.add_argument("--split", required=True, type=Path, help="folder of the split")
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()
    declared = WORKLOADS[arguments.workload]

    def make() -> None:
        knobs = complete(arguments.knobs, arguments.workload)
        os.sched_setaffinity(0, available_cores()[: knobs["cores_per_process"]])

        from escala.engines.tensorflow.engine import set_products, set_threads
        from escala.engines.tensorflow.gradients import described

        set_threads(threads_of(knobs))
        set_products(knobs["products"])
        found = described(arguments.workload, arguments.split, arguments.training, arguments.knobs)
        write_json(arguments.output, found)

    cli.serve_or_make(
        "gradients",
        code="scripts.gradients",
        chosen=[
            declared.package,
            KINDS[declared.data_kind].reader,
            "escala.engines.tensorflow.gradients",
        ],
        inputs={"dataset.json": arguments.split / base.DESCRIPTION},
        parameters={
            "workload": arguments.workload,
            "training": arguments.training,
            "knobs": arguments.knobs,
        },
        measurement=key.machine(),
        outputs={arguments.output.name: arguments.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
