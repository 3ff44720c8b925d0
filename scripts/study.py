"""Write the document of a scaling study, as HTML, Markdown, LaTeX, and PDF where Chromium is."""

from __future__ import annotations

import re
from pathlib import Path

from escala import cli
from escala.measure import table

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
    figure = (given.figures / "scaling.svg").read_text(encoding="utf-8")
    study.write(found, page, figure, links)


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
