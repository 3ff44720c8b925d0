"""Build a workload's model, and write what a calibration needs to know of its gradients."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from escala import cli, engines
from escala.core.files import write_json
from escala.data import base
from escala.record import key


def main() -> None:
    given = cli.options(
        __doc__,
        workload=str,
        strategy=str,
        training=cli.json_or_file,
        knobs=cli.json_or_file,
        split=Path,
        output=Path,
    )
    engine = engines.engine_name(given.strategy)
    settings = {"workload": given.workload, "training": given.training, "knobs": given.knobs}
    settings |= {"engine": engine}

    def make() -> None:
        python = engines.interpreter(engine)
        with tempfile.TemporaryDirectory() as scratch:
            asked = Path(scratch, "model")
            write_json(asked, settings | {"split": str(given.split)}, durable=False)
            command = [python, "-m", "escala.engines.gradients", str(asked), str(given.output)]
            done = subprocess.run(command, env=engines.variables(python, os.environ))
        if done.returncode:
            # It has told why.
            raise SystemExit(1)

    cli.serve_or_make(
        "gradients",
        code=key.model_code(given.workload, engine),
        inputs={"dataset.json": given.split / base.DESCRIPTION},
        parameters=settings,
        outputs={given.output.name: given.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
