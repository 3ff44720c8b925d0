"""Networks of both engines: the same losses, gradients and steps from the same weights and rows."""

from __future__ import annotations

import pytest
from engines_agree import SMALL, compared

from escala.core.errors import Unavailable
from escala.engines import interpreters

#: Relative differences of float32 sums in another order, and of what follows where a maximum of
#: nearly equal numbers is another one, or where an optimizer divides by a small gradient.
ROUNDING, TOLERANCE, FOLLOWING = 1e-6, 1e-5, 5e-3


def _torch() -> str | None:
    try:
        return interpreters.python("torch")
    except Unavailable:
        return None


pytestmark = pytest.mark.skipif(_torch() is None, reason="no environment of PyTorch")


@pytest.mark.parametrize("name", SMALL)
def test_losses_gradients_and_steps_of_both_engines_are_the_same(name):
    case = SMALL[name]
    found = compared(case)
    assert found["parameters"] == case.parameters
    assert found["initial_difference"] < ROUNDING, "weights that a seed gives"
    assert found["loss_difference"] < TOLERANCE
    assert found["evaluation_difference"] < TOLERANCE
    assert found["gradient_difference"] < FOLLOWING, found["gradient"]
    assert found["curve_difference"] < FOLLOWING
    assert found["end_difference"] < FOLLOWING
    first, last = found["curve"]
    assert last != first, "the steps change something"
