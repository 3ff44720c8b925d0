"""Write the summary of an experiment."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.core.files import atomic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", required=True, help="name of the experiment")
    parser.add_argument("--title", required=True)
    parser.add_argument("--tables", required=True, type=Path, help="folder of the tables")
    parser.add_argument(
        "--files", nargs="*", default=[], type=Path, help="figures and tables to link to"
    )
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()
    folder = arguments.output.parent
    links = [path.relative_to(folder).as_posix() for path in arguments.files]

    def make() -> None:
        from escala.report import tables
        from escala.report.summary import summary

        found = tables.read(arguments.tables)
        with atomic(arguments.output) as temporary:
            temporary.write_text(summary(found, arguments.experiment, arguments.title, links))

    cli.serve_or_make(
        "summary",
        code="scripts.summary",
        inputs={"tables": arguments.tables},
        parameters={
            "experiment": arguments.experiment,
            "title": arguments.title,
            "links": links,
        },
        outputs={"summary": arguments.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
