"""Trainings as people write them: what `escala try` says of each is true, or it is refused."""

from __future__ import annotations

import re

import pytest

from tests.workflow.trainings import TRAININGS, Training, judged, state, tried, write

pytestmark = [pytest.mark.cold, pytest.mark.all_cores]

#: The others show further combinations.
QUICK = ("nan",)


def _marks(name: str, training: Training) -> list[pytest.MarkDecorator]:
    torch = [pytest.mark.torch] if training.torch else []
    return torch + ([] if name in QUICK else [pytest.mark.sweep])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=_marks(n, each), id=n) for n, each in TRAININGS.items()]
)
def test_what_a_trial_says_of_a_training_is_true_and_its_folder_stays(name, tmp_path):
    training = TRAININGS[name]
    write(training, tmp_path)
    before = state(tmp_path)
    done = tried(training, tmp_path)
    verdict, why = judged(training, done)
    assert verdict in ("right", "refused"), f"{why}\n{done.stderr}"
    after = state(tmp_path)
    made = [after.pop(path) and path for path in after.keys() - before.keys()]
    assert after == before and len(made) == (verdict == "right"), made
    assert all(re.fullmatch(r"escala-\w+\.yaml", path) for path in made)
