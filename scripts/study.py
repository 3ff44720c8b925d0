"""Write the document of a scaling study, as HTML, Markdown, LaTeX, and PDF where Chromium is."""

from __future__ import annotations

import re
from pathlib import Path

from escala import cli
from escala.measure import table
from escala.report import documents
from escala.report.figures import DECLARED

#: What `escala submit` writes alongside the document.
JOB_SCRIPT = "job.sh"


def main() -> None:
    parser = documents.parser(__doc__)
    text = "the key of this name of the experiment, with its defaults"
    parser.add_argument(
        "--scaling", required=True, type=cli.json_or_file, metavar="JSON", help=text
    )
    parser.add_argument("--measurements", required=True, type=Path, help="the table of them")
    parser.add_argument("--figure", required=True, type=Path, help="the figure scaling, as SVG")
    arguments = parser.parse_args()

    from escala.analysis.measurements import read_run
    from escala.core.files import atomic
    from escala.report import study, tables

    page = arguments.output
    found = study.study(
        tables.read(arguments.tables),
        arguments.title,
        arguments.scaling,
        [read_run(path) for path in table.timed(table.read(arguments.measurements))],
        job_script(page.with_name(JOB_SCRIPT)),
    )
    caption = DECLARED["scaling"].caption.replace("``", "`")
    texts = {
        page: study.html(
            found, arguments.figure.read_text(encoding="utf-8"), caption, documents.links(arguments)
        ),
        page.with_suffix(".md"): "\n".join(study.markdown(found)) + "\n",
        page.with_suffix(".tex"): "\n".join(study.latex(found)),
    }
    for path, text in texts.items():
        with atomic(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    reason = study.pdf(page, page.with_suffix(".pdf"))
    print("\n".join(f"{each.heading}\n{each.statement}\n" for each in found.series))
    print(f"No PDF: {reason}." if reason else f"To hand in: {page.with_suffix('.pdf')}")


def job_script(file: Path) -> str | None:
    """Return the text of a job script, to be submitted in the folder of the project; None without.

    The document goes to others, so this folder is `.` in it.
    """
    return (
        re.sub(r"(--chdir=)[^\n\"]+", r"\1.", file.read_text(encoding="utf-8"))
        if file.exists()
        else None
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
