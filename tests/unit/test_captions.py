"""Captions of the report: every figure has one."""

from __future__ import annotations

import pytest

from escala.report.figures import DECLARED
from tests.conftest import ROOT


@pytest.mark.parametrize("name", DECLARED)
def test_every_figure_has_a_caption(name):
    caption = (ROOT / "report" / "figures" / f"{name}.rst").read_text()
    assert len(caption.split()) > 10


def test_captions_are_of_figures():
    names = {path.stem for path in (ROOT / "report" / "figures").iterdir()}
    assert names == {*DECLARED}
