"""What figures, kinds and engines declare, without importing them."""

from __future__ import annotations

from pathlib import Path

import pytest

from escala.core import engines
from escala.core.engines import COLLECTIVES, ENGINES
from escala.core.errors import InputError
from escala.core.files import read_constants
from escala.data import KINDS
from escala.report import figures
from escala.strategies import STRATEGIES
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


def test_engines_name_strategies_environments_and_libraries_that_are_there():
    assert list(ENGINES) == sorted(ENGINES, key=lambda name: ENGINES[name].position)
    for name, engine in ENGINES.items():
        alone = STRATEGIES[engine.one_process]
        assert alone.engine.partition(".")[0] == name and alone.layouts.one_rank
        assert engine.distributions
        for file in (engine.environment.requirements, engine.environment.conda):
            assert (ROOT / "envs" / file).is_file()
    used = {each.library for each in STRATEGIES.values()} - {None}
    assert used == set(COLLECTIVES)
    for strategy in STRATEGIES.values():
        if strategy.library:
            assert strategy.library in ENGINES[strategy.engine.partition(".")[0]].collectives


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text + "colour: red\n", "colour"),
        (lambda text: text.replace("title: PyTorch\n", ""), "title"),
        (lambda text: text.replace("distributions:", "distribution:"), "distributions"),
        (lambda text: text.replace("  oldest: [2, 9]\n", ""), "oldest"),
        (lambda text: text, "there is no engine.py alongside it"),
    ],
)
def test_a_declaration_with_a_wrong_key_names_its_file_and_the_key(tmp_path, change, said):
    file = tmp_path / "engine.yaml"
    file.write_text(change(Path(engines.FOLDER, "torch", "engine.yaml").read_text()))
    with pytest.raises(InputError, match=rf"engine\.yaml.*{said}"):
        engines._read(file)
