"""Draw one figure as SVG, from the tables of an experiment or from one run."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.cache import code
from escala.report.figures import DECLARED, OfRun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=DECLARED)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--tables", type=Path, help="folder of the tables")
    source.add_argument(
        "--run",
        type=Path,
        metavar="run.json",
        help="of the run that is shown, alongside the file that the figure reads",
    )
    parser.add_argument("--split", type=Path, help="split of the run, for figures of its test rows")
    parser.add_argument("--pictures", type=Path, help="folder of the photographs of these rows")
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()
    name, run, split = arguments.name, arguments.run, arguments.split
    declared = DECLARED[name]
    if bool(declared.file) != (run is not None):
        parser.error(f"{name} is drawn from --{'tables' if run else 'run'}")
    if bool(declared.kind) != (split is not None):
        parser.error(f"{name} is drawn with{'out' if split else ''} --split")
    file = run.with_name(declared.file) if run else None
    shown = OfRun(file if file and file.exists() else None, split, arguments.pictures)
    inputs = {"run": run, "tables": arguments.tables, declared.file: shown.file, "split": split}
    cli.serve_or_make(
        "figure",
        code=code.project(),
        inputs={key: path for key, path in inputs.items() if path},
        parameters={"name": name} | _photographs(shown.pictures),
        outputs={".svg": arguments.output},
        make=lambda: _draw(arguments, shown),
    )


def _photographs(pictures: Path | None) -> dict:
    """Return the names of the photographs: their content is in that of their features' split."""
    if pictures is None:
        return {}
    names = sorted(path.name for path in pictures.iterdir()) if pictures.is_dir() else None
    return {"pictures": names}


def _draw(arguments: argparse.Namespace, shown: OfRun) -> None:
    from escala.core.files import read_json
    from escala.report import tables
    from escala.report.figures import common, figure

    with common.style():
        draw = figure(arguments.name).draw
        drawn = (
            draw(read_json(arguments.run), shown)
            if arguments.run
            else draw(tables.read(arguments.tables))
        )
        common.save(drawn, arguments.output)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
