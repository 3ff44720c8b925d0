"""Each workload that is trained by steps: its parameters, and its training on one rank and on two.

There is no dropout, and `resnet34` normalises the rows of both ranks together. With dropout, or
with each rank's own rows, ranks do not follow one process: `test_replicas` shows what holds then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from escala.analysis import attribution
from escala.core.files import read_json
from escala.data.base import Spec
from escala.record import collect
from escala.workloads import WORKLOADS, workload
from escala.workloads.models import WEIGHTS
from tests.workflow import each_workload
from tests.workflow.each_workload import (
    ALONE,
    CASES,
    CLOCKED,
    EPOCHS,
    FIRST,
    KERAS,
    TOGETHER,
)
from tests.workflow.real_ranks import RANKS, mean_losses, ranks_of, started

#: Float32 sums taken in another order, over six steps. Normalisation amplifies rounding: it divides
#: by standard deviations of few rows.
TOLERANCE, NORMALISED = 1e-5, 1e-3
#: Largest distance of a variable, in parts of the distance that training has moved it, and of its
#: size. Adam and RMSprop divide by the size of a gradient: where that is near 0, rounding decides.
MOVED, ROUNDING = 1e-2, 1e-6
#: Large graphs, which take long to trace, and others whose own tests show what is their own.
SWEPT = ("resnet34", "caption-lstm", "cifar-cnn", "tal1-cnn")
#: Inputs, outputs and knobs of sources, and their trained and other numbers. Those of
#: further workloads stand in their own tests.
PUBLISHED = {
    "mnist-mlp": (
        (Spec("image", (28, 28, 1), "uint8"),), (10,), {},
        669_706, 0,
    ),
    "cifar-cnn": (
        (Spec("image", (32, 32, 3), "uint8"),), (10,), {}, 276_138, 0,
    ),
    "resnet34": (
        (Spec("image", (148, 197, 1), "float16"),), (9,),
        {"batch_norm": "local"}, 21_283_017, 17_024,
    ),
}  # fmt: skip


def test_each_workload_is_here():
    by_steps = {name for name, declared in WORKLOADS.items() if declared.takes_steps}
    assert set(CASES) == by_steps


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_parameters_are_those_of_the_source(name):
    specs, outputs, knobs, trained, others = PUBLISHED[name]
    settings = WORKLOADS[name].setting_defaults
    network = workload(name).build(specs, outputs, settings, knobs)
    assert numbers(network.trainable_variables) == trained
    assert numbers(network.non_trainable_variables) == others


def numbers(variables) -> int:
    return sum(int(np.prod(variable.shape)) for variable in variables)


def each(names: Iterable[str]) -> pytest.MarkDecorator:
    """Run a test for each workload, for some of them only in a sweep."""
    marks = {name: [pytest.mark.sweep] if name in SWEPT else [] for name in names}
    return pytest.mark.parametrize("name", [pytest.param(n, marks=marks[n]) for n in names])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder in which a workload was trained by two ranks, by one, and by Keras's `fit`.

    One start of two ranks trains all workloads of the default tests, another those of the sweep.
    """

    @cache
    def group_folder(swept: bool) -> Path:
        folder = tmp_path_factory.mktemp("workloads")
        names = [name for name in CASES if (name in SWEPT) == swept]
        for name in names:
            each_workload.write_data(CASES[name], folder / "data" / name)
        started(each_workload.__file__, folder, *names)
        return folder

    return lambda name: group_folder(name in SWEPT)


def tolerance_of(name: str) -> float:
    return NORMALISED if name == "resnet34" else TOLERANCE


def weights_of(file: Path) -> list[np.ndarray]:
    with np.load(file) as arrays:
        return [arrays[name] for name in arrays.files]


@each(CASES)
def test_one_rank_and_two_train_as_kerass_own_fit(trained, name):
    folder, asked = trained(name), CASES[name].knobs.get("dense_exchange")
    assert_as_keras(folder, name, folder / ALONE / name, 1, None)
    assert_as_keras(folder, name, folder / TOGETHER / name, 2, asked)
    two, one = (
        collect.read_steps(folder / trainer / name / RANKS, ranks)
        for trainer, ranks in ((TOGETHER, 2), (ALONE, 1))
    )
    for table in (two, one):
        rows = table.groupby(["epoch", "step"])["rows"].sum()
        assert rows.tolist() == [8, 8, 1] * EPOCHS
    np.testing.assert_allclose(mean_losses(two), mean_losses(one), rtol=tolerance_of(name))


def assert_as_keras(trained: Path, name: str, folder: Path, ranks: int, asked: str | None) -> None:
    """Compare the losses and updates of a folder with those of Keras's own fit.

    Parameters
    ----------
    asked : the exchange that some layer must have had.
    """
    by_keras = trained / KERAS / name
    expected, tolerance = read_json(by_keras / "losses.json"), tolerance_of(name)
    first, *others = ranks_of(folder, ranks)
    assert all(each["weights_sha256"] == first["weights_sha256"] for each in others)
    assert asked is None or asked in first["dense_exchange"].values()
    losses = [epoch["loss"] for epoch in first["epochs"]]
    np.testing.assert_allclose(losses, expected["epochs"], rtol=tolerance)
    test_loss = first["epochs"][-1]["validation_loss"]
    np.testing.assert_allclose(test_loss, expected["test"], rtol=tolerance)
    files = by_keras / FIRST, by_keras / WEIGHTS, folder / RANKS / WEIGHTS
    for before, after, found in zip(*map(weights_of, files), strict=True):
        apart, moved = (np.linalg.norm(each - after) for each in (found, before))
        assert apart <= MOVED * moved + ROUNDING * np.linalg.norm(after)


@each(CLOCKED)
def test_steps_of_a_functional_model_are_split_into_parts(trained, name):
    """Its clocks have a moment of each variable, in every step of both ranks."""
    run = trained(name) / TOGETHER / name / "run.json"
    clocks, _ = attribution.moments(run, one_clock=False)
    tensor_rows = clocks[clocks["tensor"] != ""]
    with np.load(trained(name) / KERAS / name / FIRST) as weights:
        assert tensor_rows["tensor"].nunique() == len(weights.files)
    by_step = tensor_rows.groupby(["rank", "epoch", "step", "moment", "tensor"]).size()
    done = 2 * EPOCHS * each_workload.STEPS
    assert (by_step == 1).all() and len(by_step) == done * 3 * len(weights.files)
    parts = attribution.per_step(clocks, None)
    assert len(parts) == done
    assert (parts[["input", "dispatch", "compute", "optimiser"]] > 0).all(axis=None)
    together = parts[[*attribution.PARTS, attribution.OFF_CORE, attribution.UNEXPLAINED]].sum(
        axis=1
    )
    pd.testing.assert_series_equal(together, parts["whole"], check_names=False, rtol=1e-6)
