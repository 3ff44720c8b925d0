"""Say in five sentences what an experiment found."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.explain import tables
from escala.explain.summary import summary
from escala.files import atomic


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
    text = summary(
        tables.read(arguments.tables), arguments.experiment, arguments.title,
        [path.relative_to(folder).as_posix() for path in arguments.files],
    )  # fmt: skip
    with atomic(arguments.output) as temporary:
        temporary.write_text(text)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
