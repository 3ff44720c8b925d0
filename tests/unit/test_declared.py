"""Declarations are read without importing what declares them."""

from __future__ import annotations

from escala.core.files import read_constants
from escala.data import KINDS
from escala.report import figures
from tests.calls import python
from tests.conftest import ROOT


def test_constants_are_the_literals_in_capitals(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        "import no_such_library\nCATEGORY = 'Time'\nSIZES = (1, 2)\nnames = ['a']\n"
        "COMPUTED = no_such_library.value\n\n\ndef draw():\n    INNER = 1\n"
    )
    assert read_constants(module) == {"CATEGORY": "Time", "SIZES": (1, 2)}


def test_every_figure_declares_what_there_is():
    for each in figures.DECLARED.values():
        assert each.category in figures.CATEGORIES
        assert each.needs is None or each.needs in figures.OCCASIONS
        assert each.kind is None or each.kind in KINDS
        assert each.caption.endswith(".")
        assert each.file or not each.kind
    names = {path.stem for path in (ROOT / "escala" / "report" / "figures").glob("[!_]*.py")}
    drawing = {name for name in names if hasattr(figures.figure(name), "draw")}
    assert set(figures.DECLARED) == drawing


def test_figures_are_found_without_their_libraries():
    code = "import sys, escala.report.figures; print('matplotlib' in sys.modules)"
    done = python("-c", code)
    assert done.stdout == "False\n", done.stderr
