"""Write what an experiment found as custom content for MultiQC.

MultiQC finds files by the end of their name, `_mqc.json`. Names carry the experiment's, so that one
report may hold several experiments (https://docs.seqera.io/multiqc/custom_content).
"""

from __future__ import annotations

from markupsafe import Markup

from escala.report.findings import of_section
from escala.report.findings.words import Tables
from escala.report.overview import explanation, overview
from escala.report.page import marked


def contents(tables: Tables, name: str, title: str) -> dict[str, dict]:
    """Return the content of each file, by its name.

    Parameters
    ----------
    tables : those of `escala.report.tables`.
    name, title : of the experiment.
    """
    return {
        "answer_mqc.json": _section(name, title, "answer", "Answer")
        | {"plot_type": "html", "data": _answer(tables, name)},
        "configurations_mqc.json": _section(name, title, "configurations", "Configurations")
        | {"description": _text(explanation(tables)), "plot_type": "table"}
        | _table(tables, name, title),
    }


def _section(name: str, title: str, part: str, heading: str) -> dict:
    """Return the place of a section: sections of one experiment stand together."""
    return {
        "parent_id": f"escala_{name}",
        "parent_name": _text(f"Escala: {title}"),
        "id": f"escala_{name}_{part}",
        "section_name": heading,
    }


def _answer(tables: Tables, name: str) -> str:
    """Return the answer and what to do next as HTML, which MultiQC shows as it is."""
    answer, *more = (marked(each.text) for each in of_section("answer", tables, name))
    further = [*more, *(marked(each.text) for each in of_section("next", tables, name))]
    items = Markup().join(Markup("<li>{}</li>").format(each) for each in further)
    return str(
        Markup("<p><strong>{}</strong></p>").format(answer) + Markup("<ul>{}</ul>").format(items)
    )


def _table(tables: Tables, name: str, title: str) -> dict:
    """Return the rows of the table of configurations by their name, as text, and its headings."""
    headings, rows = overview(tables)
    first, *columns = headings
    keys = [f"column{number}" for number in range(len(columns))]
    return {
        "pconfig": {
            "id": f"escala_{name}_configurations_table",
            "title": _text(f"Escala: {title}"),
            "col1_header": _text(first),
            "namespace": name,
            "no_violin": True,
        },
        "headers": {
            key: {"title": _text(heading), "scale": False}
            for key, heading in zip(keys, columns, strict=True)
        },
        "data": {
            _text(label): {key: _text(cell) for key, cell in zip(keys, cells, strict=True)}
            for label, *cells in rows
        },
    }


def _text(value: str) -> str:
    """Escape what MultiQC puts into its report as HTML, also into attributes."""
    return str(Markup.escape(value))
