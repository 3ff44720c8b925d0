"""Write the page of an experiment."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from escala import cli
from escala.report import documents
from escala.strategies.base import TRACE


def main() -> None:
    parser = documents.parser(__doc__)
    parser.add_argument(
        "--figures", nargs="*", default=[], type=Path, help="figures of the experiment, as SVG"
    )
    parser.add_argument("--captions", required=True, type=Path, help="folder of their captions")
    parser.add_argument(
        "--traced", nargs="*", default=[], type=Path, metavar="run.json",
        help="runs that may have left a trace for Perfetto, to link to",
    )  # fmt: skip
    arguments = parser.parse_args()
    traces = (path.with_name(TRACE) for path in arguments.traced)
    arguments.files += [path for path in traces if path.exists()]
    figures = {path.stem: path for path in arguments.figures}
    captions = {name: arguments.captions / f"{name}.rst" for name in figures}

    def text(tables: dict) -> str:
        from escala.report import vega

        # To bundle the script takes seconds and does not give way to other threads.
        with ProcessPoolExecutor(1) as another:
            bundled = another.submit(vega.script)

            from escala.report.page import page

            return page(
                tables,
                arguments.experiment,
                arguments.title,
                _texts(figures),
                _texts(captions),
                documents.links(arguments),
                bundled.result,
            )

    documents.serve_or_write(
        "page",
        arguments,
        text,
        code="scripts.page",
        chosen=["escala.report.page"],
        inputs={f"{name}.svg": path for name, path in figures.items()}
        | {f"{name}.rst": path for name, path in captions.items()},
    )


def _texts(paths: dict[str, Path]) -> dict[str, str]:
    return {name: path.read_text() for name, path in paths.items()}


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
