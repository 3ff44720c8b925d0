"""Networks of all engines: the same losses, gradients and steps from the same weights and rows."""

from __future__ import annotations

import pytest
from engines_agree import SMALL, compared, offering

from escala.core.engines import DEFAULT, ENGINES
from tests.conftest import PYTHONS, selected

#: Largest relative differences of sums in another order, by precision; then those of what follows
#: in 32 bits, where a maximum of nearly equal numbers is another one, or where an optimizer divides
#: by a small gradient.
ROUNDING, FOLLOWING = {"float64": 1e-7, "float32": 1e-5}, {"float64": 1e-5, "float32": 5e-3}
#: The same of weights after some steps: RMSprop makes as large a step by a gradient of nothing but
#: rounding as by any other, and processors round differently (0.020 on an Intel Xeon of family 6
#: model 207).
UPDATED = 0.05

#: Small graphs; the others repeat what these show with further layers and settings.
QUICK = ("virus-cnn", "mnist-mlp", "mlp")
CASES = [
    pytest.param(
        engine, name, id=f"{engine}-{name}",
        marks=[getattr(pytest.mark, engine), *([] if name in QUICK else [pytest.mark.sweep])],
    )
    for engine in ENGINES
    if engine != DEFAULT
    for name in offering(engine, SMALL)
]  # fmt: skip


@pytest.fixture(scope="module")
def differences(request) -> dict[str, dict]:
    cases = {name: SMALL[name] for name in selected(request, "name")}
    return compared(cases, {*PYTHONS.values()} - {DEFAULT})


@pytest.mark.parametrize(("engine", "name"), CASES)
def test_losses_gradients_and_steps_are_those_of_tensorflow(engine, name, differences):
    case = SMALL[name]
    for precision, found in differences[engine][name].items():
        rounding, following = ROUNDING[precision], FOLLOWING[precision]
        assert found["parameters"] == case.parameters
        assert found["initial_difference"] < 1e-6, "weights that a seed gives"
        assert found["loss_difference"] < rounding
        assert found["gradient_difference"] < following, found["gradient"]
        assert found["curve_difference"] < following
        first, last = found["curve"]
        assert last != first, "the steps change something"
    assert found["evaluation_difference"] < rounding
    # In 64 bits the moving variance of Keras is another one.
    assert found["end_difference"] < UPDATED
