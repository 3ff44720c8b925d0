"""Write the document of a scaling study, to hand in with a proposal for compute time.

It is made of measured runs alone, as the table `scaling` has them. Where there are predictions, it
sets them against what was measured. What is not known says so.

| module | content |
|---|---|
| `content` | what the document says: tables of text, notes, and how it was measured |
| `statement` | a paragraph to paste, and the largest size that passes |
| `forms` | the same as HTML, Markdown, LaTeX, and as PDF if Chromium is installed |
"""

from __future__ import annotations

from escala.report.study.content import Study, study
from escala.report.study.forms import html, latex, markdown, pdf, write

__all__ = ["Study", "html", "latex", "markdown", "pdf", "study", "write"]
