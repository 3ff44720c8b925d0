"""Every key of an engine.yaml is known, and names a strategy, file or library that exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from escala.core import engines
from escala.core.engines import COLLECTIVES, ENGINES
from escala.core.errors import InputError
from escala.strategies import STRATEGIES
from tests.conftest import ROOT


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
