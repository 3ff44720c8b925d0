"""Checks of a workload that is trained by a fit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from escala.core.errors import Refused
from escala.workload_check.network import require
from escala.workload_check.subject import Subject, kept_model
from escala.workloads import models as contract


def _fitted(subject: Subject) -> dict[str, np.ndarray]:
    inputs, targets = subject.arrays.gather("train", slice(None))
    counts = np.bincount(targets, minlength=subject.form[1][0])
    return subject.module.fit(inputs, targets, counts, subject.settings)


def _fit(subject: Subject) -> str:
    require(subject.module, "OPTIMIZER", "fit", "shapes", "probabilities")
    contract.require_classes(subject.module, subject.arrays.description)
    weights, again = _fitted(subject), _fitted(subject)
    shapes = {name: tuple(shape) for name, shape in subject.module.shapes(*subject.form).items()}
    if {name: array.shape for name, array in weights.items()} != shapes:
        raise Refused(
            f"fit gives {_shapes(weights)}, and shapes returns something else",
            "let shapes return the names and shapes of what fit gives",
        )
    if any(not np.array_equal(weights[name], again[name]) for name in weights):
        raise Refused("two fits to the same rows give different weights", "draw nothing at random")
    return f"{_shapes(weights)}, twice the same"


def _shapes(weights: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in weights.items())


def _probabilities(subject: Subject) -> str:
    inputs, targets = subject.arrays.gather("train", slice(None))
    found = np.asarray(subject.module.probabilities(_fitted(subject), inputs))
    wanted = (len(targets), *subject.form[1])
    if found.shape != wanted or not np.allclose(found.sum(axis=1), 1, atol=1e-3):
        raise Refused(
            f"probabilities gives the shape {found.shape}, or rows whose sum is not 1",
            f"give a probability for each class, shape {wanted}",
        )
    return "for each class, and their sum is 1"


FIT_CHECKS = {"fit": _fit, "probabilities": _probabilities, "kept model": kept_model}
