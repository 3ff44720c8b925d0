"""Write the summary of an experiment."""

from __future__ import annotations

from escala import cli
from escala.report import documents


def main() -> None:
    arguments = documents.parser(__doc__).parse_args()

    def text(tables: dict) -> str:
        from escala.report.summary import summary

        links = documents.links(arguments)
        return summary(tables, arguments.experiment, arguments.title, links, arguments.question)

    documents.serve_or_write("summary", arguments, text)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
