"""Write the document of a scaling study, as HTML, Markdown, LaTeX, and PDF where Chromium is."""

from __future__ import annotations

import re
from pathlib import Path

from escala import cli
from escala.measure import table
from escala.report.figures import DECLARED

#: What `escala submit` writes alongside the document.
JOB_SCRIPT = "job.sh"


def main() -> None:
    given = cli.options(
        __doc__,
        title=str,
        scaling=cli.json_or_file,  # The key of this name of the experiment, with its defaults.
        measurements=Path,  # The table of them.
        tables=Path,  # Their folder, as that of the figures.
        figures=Path,
        output=Path,  # The page.
    )

    from escala.analysis.measurements import read_run
    from escala.core.files import atomic
    from escala.report import study, tables

    page = given.output
    found = study.study(
        tables.read(given.tables),
        given.title,
        given.scaling,
        [read_run(path) for path in table.timing_runs(table.read(given.measurements))],
        job_script(page.with_name(JOB_SCRIPT)),
    )
    links = ["tables/scaling.csv", *(page.with_suffix(each).name for each in (".md", ".tex"))]
    caption = DECLARED["scaling"].caption.replace("``", "`")
    texts = {
        page: study.html(
            found, (given.figures / "scaling.svg").read_text(encoding="utf-8"), caption, links
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
