"""Which configurations a configuration is compared with."""

from __future__ import annotations

import pytest

from escala.experiment.references import DEFAULT, Configuration, compared_with, number_of

ONE = {"strategy": "single", "layout": "1x1", "variant": "one-core"}
THREADS = ONE | {"variant": "threads"}
ACROSS = {"strategy": "horovod-mpi", "layout": "2x1"}


@pytest.mark.parametrize(
    ("place", "references", "expected"),
    [
        ("horovod-mpi 1x2 tuned native", DEFAULT, ["1: single 1x1 tuned"]),
        ("horovod-mpi 2x1 tuned slow", DEFAULT, ["1: single 1x1 tuned"]),
        ("single 1x1 tuned native", DEFAULT, []),
        (
            "horovod-mpi 1x2 tuned native",
            [ONE, THREADS],
            ["1: single 1x1 one-core", "2: single 1x1 threads"],
        ),
        ("single 1x1 threads native", [ONE, THREADS], ["1: single 1x1 one-core"]),
        ("single 1x1 one-core native", [ONE, THREADS], []),
        ("horovod-gloo 2x1 fast slow", [ACROSS], ["1: horovod-mpi 2x1 fast slow"]),
        (
            "horovod-gloo 2x1 fast slow",
            [ACROSS | {"network": "quick", "variant": "plain"}],
            ["1: horovod-mpi 2x1 plain quick"],
        ),
        # Two references that come to the same are one.
        ("horovod-mpi 1x2 one-core native", [ONE, *DEFAULT], ["1: single 1x1 one-core"]),
    ],
)
def test_a_configuration_is_compared_with_every_reference_before_it(place, references, expected):
    found = compared_with(Configuration(*place.split()), references)
    assert [f"{number}: {reference}" for number, reference in found] == expected


def test_references_are_numbered_from_the_main_one():
    places = [
        Configuration("single", "1x1", variant, "native") for variant in ("one-core", "threads")
    ]
    assert [number_of(place, [ONE, THREADS]) for place in places] == [1, 2]
    assert [number_of(place, DEFAULT) for place in places] == [1, 1]
    assert number_of(Configuration("horovod-mpi", "1x2", "one-core", "native"), [ONE]) is None
