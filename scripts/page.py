"""Write the page of an experiment."""

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
        "--figures", nargs="*", default=[], type=Path, help="figures of the experiment, as SVG"
    )
    parser.add_argument("--captions", required=True, type=Path, help="folder of their captions")
    parser.add_argument(
        "--files", nargs="*", default=[], type=Path, help="figures and tables to link to"
    )
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()
    folder = arguments.output.parent
    figures = {path.stem: path for path in arguments.figures}
    captions = {name: arguments.captions / f"{name}.rst" for name in figures}
    links = [path.relative_to(folder).as_posix() for path in arguments.files]

    def make() -> None:
        from escala.report import tables
        from escala.report.page import page

        text = page(
            tables.read(arguments.tables),
            arguments.experiment,
            arguments.title,
            _texts(figures),
            _texts(captions),
            links,
        )
        with atomic(arguments.output) as temporary:
            temporary.write_text(text)

    cli.serve_or_make(
        "page",
        code="scripts.page",
        chosen=["escala.report.page"],
        inputs={"tables": arguments.tables}
        | {f"{name}.svg": path for name, path in figures.items()}
        | {f"{name}.rst": path for name, path in captions.items()},
        parameters={
            "experiment": arguments.experiment,
            "title": arguments.title,
            "links": links,
        },
        outputs={"page": arguments.output},
        make=make,
    )


def _texts(paths: dict[str, Path]) -> dict[str, str]:
    return {name: path.read_text() for name, path in paths.items()}


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
