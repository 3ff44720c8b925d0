"""Write the page of an experiment."""

from __future__ import annotations

from pathlib import Path

from escala import cli
from escala.report import documents
from escala.strategies.base import TRACE


def main() -> None:
    parser = documents.parser(__doc__)
    parser.add_argument(
        "--figures", nargs="*", default=[], type=Path, help="figures of the experiment, as SVG"
    )
    parser.add_argument(
        "--traced", nargs="*", default=[], type=Path, metavar="run.json",
        help="runs that may have left a trace for Perfetto, to link to",
    )  # fmt: skip
    arguments = parser.parse_args()
    traces = (path.with_name(TRACE) for path in arguments.traced)
    arguments.files += [path for path in traces if path.exists()]
    figures = {path.stem: path for path in arguments.figures}

    def text(tables: dict) -> str:
        from escala.report.page import page

        drawn = {name: path.read_text(encoding="utf-8") for name, path in figures.items()}
        links = documents.links(arguments)
        return page(tables, arguments.experiment, arguments.title, drawn, links, arguments.question)

    documents.serve_or_write(
        "page",
        arguments,
        text,
        inputs={f"{name}.svg": path for name, path in figures.items()},
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
