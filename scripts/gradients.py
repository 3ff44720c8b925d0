"""Build a workload's model, and write what a calibration needs to know of its gradients.

Where ranks may compute the input of a dense layer again, this is timed, on the cores of a process.
"""

from __future__ import annotations

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
    given = cli.options(
        __doc__,
        workload=str,
        training=cli.json_or_file,
        knobs=cli.json_or_file,
        split=Path,
        output=Path,
    )
    declared = WORKLOADS[given.workload]
    settings = {"workload": given.workload, "training": given.training, "knobs": given.knobs}

    def make() -> None:
        knobs = complete(given.knobs, given.workload)
        os.sched_setaffinity(0, available_cores()[: knobs["cores_per_process"]])

        from escala.engines.tensorflow.engine import set_products, set_threads
        from escala.engines.tensorflow.gradients import described

        set_threads(threads_of(knobs))
        set_products(knobs["products"])
        found = described(given.workload, given.split, given.training, given.knobs)
        write_json(given.output, found)

    reader = KINDS[declared.data_kind].reader
    cli.serve_or_make(
        "gradients",
        code="scripts.gradients",
        selected=[declared.package, reader, "escala.engines.tensorflow.gradients"],
        inputs={"dataset.json": given.split / base.DESCRIPTION},
        parameters=settings,
        measurement=key.machine(),
        outputs={given.output.name: given.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
