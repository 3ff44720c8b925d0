"""The front page of Snakemake's report has the answer of the summary, as text."""

from __future__ import annotations

from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest
from docutils.core import publish_parts
from fixtures_runs import REFERENCES, fair
from jinja2 import Environment
from pages import hostile, tabled

from escala.report.findings.context import Report
from escala.report.first_screen import all_findings, first_screen
from escala.report.summary import summary

pytestmark = [pytest.mark.usefixtures("few_resamples"), pytest.mark.sweep]

TEXT = (Path(__file__).resolve().parents[2] / "report" / "workflow.rst").read_text()


def _front_page(files: list[Path]) -> str:
    """Render the front page as Snakemake 9 does."""
    environment = Environment(trim_blocks=True, lstrip_blocks=True)
    records = [SimpleNamespace(path=path) for path in files]
    text = environment.from_string(TEXT).render(files=records, categories={}, snakemake=None)
    settings = {"report_level": 2, "halt_level": 2}
    return publish_parts(text, writer="html", settings_overrides=settings)["html_body"]


@pytest.mark.parametrize("change", [dict, hostile])
def test_the_front_page_has_the_answer_of_the_summary(tmp_path, change):
    frames = change(tabled(fair(tmp_path, 5.6, 4.6, 3.9), references=REFERENCES))
    path = tmp_path / "summary.md"
    path.write_text(summary(frames, "demo", "A title", ["tables/speedup.csv"]))
    found = _front_page([tmp_path / "other.csv", path])
    shown = found.split('<p class="answer"><strong>')[1].split("</strong></p>")[0]
    [answer] = first_screen(Report(frames, "demo"), all_findings(Report(frames, "demo"))).answers
    assert unescape(shown) == answer.text.replace("`", "")
    assert "<" not in shown and found.count('class="answer"') == 1


def test_without_a_summary_there_is_a_front_page_without_an_answer():
    assert "answer" not in _front_page([]).replace("behind this answer", "")
