"""Write the custom content of an experiment for MultiQC."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", required=True, help="name of the experiment")
    parser.add_argument("--title", required=True)
    parser.add_argument("--tables", required=True, type=Path, help="folder of the tables")
    parser.add_argument("--output", required=True, nargs="+", type=Path, help="files to write")
    arguments = parser.parse_args()
    cli.serve_or_make(
        "multiqc",
        code="scripts.multiqc",
        inputs={"tables": arguments.tables},
        parameters={"experiment": arguments.experiment, "title": arguments.title},
        outputs={path.name: path for path in arguments.output},
        make=lambda: _write(arguments),
    )


def _write(arguments: argparse.Namespace) -> None:
    from escala.core.files import write_json
    from escala.report import tables
    from escala.report.multiqc import contents

    frames = tables.read(arguments.tables)
    found = contents(frames, arguments.experiment, arguments.title)
    for path in arguments.output:
        write_json(path, found[path.name])


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
