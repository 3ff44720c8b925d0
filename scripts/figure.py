"""Draw one figure, from the tables of an experiment or from the timeline of one run."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.report.figures import FIGURES, SOME_FIGURES, TIMELINE_FIGURES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=(*FIGURES, *SOME_FIGURES, *TIMELINE_FIGURES))
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--tables", type=Path, help="folder of the tables")
    source.add_argument(
        "--run",
        type=Path,
        metavar="run.json",
        help="run.json of a timeline run; its timeline.json is beside it",
    )
    parser.add_argument(
        "--output", required=True, nargs="+", type=Path, help="files to write, .svg or .png"
    )
    arguments = parser.parse_args()
    if (arguments.name in TIMELINE_FIGURES) != (arguments.run is not None):
        parser.error(f"{arguments.name} is drawn from --{'tables' if arguments.run else 'run'}")
    events = [arguments.run.with_name("timeline.json")] if arguments.run else []
    inputs = {"run": arguments.run} if arguments.run else {"tables": arguments.tables}
    cli.serve_or_make(
        "figure",
        code="scripts.figure",
        chosen=[f"escala.report.figures.{arguments.name}"],
        inputs=inputs | {path.name: path for path in events if path.exists()},
        parameters={"name": arguments.name},
        outputs={path.suffix: path for path in arguments.output},
        make=lambda: _draw(arguments),
    )


def _draw(arguments: argparse.Namespace) -> None:
    from escala.core.files import read_json
    from escala.probes import timeline
    from escala.report import tables
    from escala.report.figures import common, figure

    with common.style():
        draw = figure(arguments.name).draw
        if arguments.run:
            found = arguments.run.with_name("timeline.json")
            events = timeline.repair(found) if found.exists() else []
            drawn = draw(read_json(arguments.run), events)
        else:
            drawn = draw(tables.read(arguments.tables))
        common.save(drawn, *arguments.output)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
