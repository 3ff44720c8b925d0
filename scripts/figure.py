"""Draw one figure, from the tables of an experiment or from one run."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.report.figures import EXAMPLE_FIGURES, FIGURES, SOME_FIGURES, TIMELINE_FIGURES

#: What a figure shows of a run besides run.json: a file beside it.
BESIDE = dict.fromkeys(TIMELINE_FIGURES, "timeline.json") | dict.fromkeys(
    EXAMPLE_FIGURES, "predictions.npy"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=(*FIGURES, *SOME_FIGURES, *BESIDE))
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--tables", type=Path, help="folder of the tables")
    source.add_argument(
        "--run",
        type=Path,
        metavar="run.json",
        help="of the run that is shown; its timeline.json or predictions.npy is beside it",
    )
    parser.add_argument("--split", type=Path, help="split of the run, for figures of its test rows")
    parser.add_argument("--pictures", type=Path, help="folder of the photographs of these rows")
    parser.add_argument(
        "--output", required=True, nargs="+", type=Path, help="files to write, .svg or .png"
    )
    arguments = parser.parse_args()
    name, run, split = arguments.name, arguments.run, arguments.split
    pictures = arguments.pictures
    if (name in BESIDE) != (run is not None):
        parser.error(f"{name} is drawn from --{'tables' if run else 'run'}")
    if (name in EXAMPLE_FIGURES) != (split is not None):
        parser.error(f"{name} is drawn with{'out' if split else ''} --split")
    found = run.with_name(BESIDE[name]) if run else None
    inputs = {"run": run} if run else {"tables": arguments.tables}
    cli.serve_or_make(
        "figure",
        code="scripts.figure",
        chosen=[f"escala.report.figures.{name}"],
        inputs=inputs
        | ({found.name: found} if found and found.exists() else {})
        | ({"split": split} if split else {}),
        # The content of photographs is in that of the split, which holds their features.
        parameters={"name": name} | ({"pictures": pictures.is_dir()} if pictures else {}),
        outputs={path.suffix: path for path in arguments.output},
        make=lambda: _draw(arguments, found),
    )


def _draw(arguments: argparse.Namespace, found: Path | None) -> None:
    from escala.report import tables
    from escala.report.figures import common, figure

    with common.style():
        shown = _of_run(arguments, found) if found else (tables.read(arguments.tables),)
        common.save(figure(arguments.name).draw(*shown), *arguments.output)


def _of_run(arguments: argparse.Namespace, found: Path) -> tuple:
    """Return what a figure of one run is drawn from."""
    import numpy as np

    from escala.core.files import read_json
    from escala.probes import timeline

    run = read_json(arguments.run)
    if arguments.name in TIMELINE_FIGURES:
        return run, timeline.repair(found) if found.exists() else []
    predictions = np.load(found, allow_pickle=False) if found.exists() else None
    return run, predictions, arguments.split, arguments.pictures


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
