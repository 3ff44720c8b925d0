"""Write the summary of an experiment from its tables: the answer first, then the evidence."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from escala.report.findings import SECTIONS, Finding
from escala.report.findings.gaps import failures
from escala.report.findings.words import Tables, quoted
from escala.report.first_screen import all_findings, first_screen
from escala.report.overview import explanation, overview


def summary(
    tables: Tables, name: str, title: str, files: Collection[str] = (), question: str = "time"
) -> str:
    """Write the summary in Markdown.

    Parameters
    ----------
    tables : those of `escala.report.tables`.
    name, title : of the experiment.
    files : figures and tables to link to, relative to the summary.
    question : as in `escala.report.first_screen`.
    """
    parts = [f"# {title}", *_findings(tables, name, files, question)]
    parts += ["## Configurations", _table(tables), explanation(tables)]
    links = [f"- [{file.rpartition('/')[2]}]({file})" for file in files]
    if links:
        parts += ["## Figures and tables", "\n".join(links)]
    return "\n\n".join(parts) + "\n"


def _findings(tables: Tables, name: str, files: Collection[str], question: str) -> Iterator[str]:
    """Yield the answer in bold with what it rests on, then lists of findings under headings."""
    every = all_findings(tables, name)
    screen = first_screen(tables, every, name, question)
    answering = [finding for answer in screen.answers for finding in answer.findings]
    for answer in screen.answers:
        yield f"**{answer.text}**{_evidence(answer.finding, files)}"
        if answer.details:
            lines = (f"- {each.text}{_evidence(each.finding, files)}" for each in answer.details)
            yield "\n".join(lines)
    if screen.brief:
        yield "\n".join(f"- {SECTIONS[each]}: {text}" for each, text in screen.brief.items())
    for section, heading in {**SECTIONS, "answer": "More on the answer"}.items():
        found = [each for each in every[section] if each not in answering]
        if found:
            yield f"## {heading}"
        lines = [f"- {finding.text}{_evidence(finding, files)}" for finding in found]
        if section == "failures":
            lines += [
                f"- {quoted(label)} rep {repeats} ({status})" + f": {quoted(reason)}" * bool(reason)
                for label, repeats, status, reason in failures(tables)
            ]
        if lines:
            yield "\n".join(lines)


def _evidence(finding: Finding, files: Collection[str]) -> str:
    """Return links to the table and the figure of a finding, as far as they are among the files."""
    wanted = {"table": f"tables/{finding.table}.csv", "figure": f"figures/{finding.figure}.svg"}
    links = [f"[{name}]({file})" for name, file in wanted.items() if file in files]
    return f" ({', '.join(links)})" if links else ""


def _table(tables: Tables) -> str:
    """Return the table of configurations in Markdown."""
    headings, rows = overview(tables)
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
