"""Draw one figure of one run as SVG."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.cache import code
from escala.report.figures import DECLARED, ONE_RUN, OfRun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=ONE_RUN)
    text = "of the run that is shown, alongside the file that the figure reads"
    parser.add_argument("--run", required=True, type=Path, metavar="run.json", help=text)
    parser.add_argument("--split", type=Path, help="split of the run, for figures of its test rows")
    parser.add_argument("--pictures", type=Path, help="folder of the photographs of these rows")
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()
    name, run, split = arguments.name, arguments.run, arguments.split
    declared = DECLARED[name]
    if bool(declared.kind) != (split is not None):
        parser.error(f"{name} is drawn with{'out' if split else ''} --split")
    file = run.with_name(declared.file)
    shown = OfRun(file if file.exists() else None, split, arguments.pictures)
    inputs = {"run": run, declared.file: shown.file, "split": split}
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
    from escala.report.figures import common, figure

    with common.style():
        drawn = figure(arguments.name).draw(read_json(arguments.run), shown)
        common.save(drawn, arguments.output)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
