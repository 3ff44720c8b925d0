"""Which configurations a configuration is compared with."""

from __future__ import annotations

import pytest

from escala.experiment.matrix import Experiment
from escala.experiment.runs import (
    DEFAULT_REFERENCES,
    Configuration,
    compared_with,
    reference_number,
)
from tests.programs import experiment_on

ONE = {"strategy": "single", "layout": "1x1", "variant": "one-core"}
THREADS = ONE | {"variant": "threads"}
ACROSS = {"strategy": "horovod-mpi", "layout": "2x1"}


@pytest.mark.parametrize(
    ("place", "references", "expected"),
    [
        ("horovod-mpi 1x2 tuned native", DEFAULT_REFERENCES, ["1: single 1x1 tuned"]),
        ("single 1x1 tuned native", DEFAULT_REFERENCES, []),
        ("horovod-mpi 1x2 tuned native", [ONE, THREADS],
         ["1: single 1x1 one-core", "2: single 1x1 threads"]),
        ("single 1x1 threads native", [ONE, THREADS], ["1: single 1x1 one-core"]),
        ("horovod-gloo 2x1 fast slow", [ACROSS], ["1: horovod-mpi 2x1 fast slow"]),
        ("horovod-gloo 2x1 fast slow", [ACROSS | {"network": "quick", "variant": "plain"}],
         ["1: horovod-mpi 2x1 plain quick"]),
        # A reference of one node uses no network.
        ("horovod-mpi 2x1 tuned slow", [ONE | {"network": "slow"}], ["1: single 1x1 one-core"]),
        ("single 1x1 one-core native", [THREADS, ONE | {"network": "slow"}],
         ["1: single 1x1 threads"]),
        # Two references that come to the same are one.
        ("horovod-mpi 1x2 one-core native", [ONE, *DEFAULT_REFERENCES], ["1: single 1x1 one-core"]),
    ],
)  # fmt: skip
def test_a_configuration_is_compared_with_every_reference_before_it(place, references, expected):
    found = compared_with(Configuration(*place.split()), references)
    assert [f"{number}: {reference}" for number, reference in found] == expected


def test_references_are_numbered_from_the_main_one():
    one, threads = (Configuration("single", "1x1", v, "native") for v in ("one-core", "threads"))
    assert [reference_number(place, [ONE, THREADS]) for place in (one, threads)] == [1, 2]
    assert [reference_number(place, DEFAULT_REFERENCES) for place in (one, threads)] == [1, 1]
    across = Configuration("horovod-mpi", "1x2", "one-core", "native")
    assert reference_number(across, [ONE]) is None


def test_only_the_network_is_left_out_of_a_name_if_it_is_native():
    assert str(Configuration("single", "1x1", "native", "native")) == "single 1x1 native"
    assert str(Configuration("single", "2x1", "native", "slow")) == "single 2x1 native slow"


@pytest.mark.parametrize(
    ("strategies", "expected"),
    [
        (["torch-ddp"], [{"strategy": "torch-ddp", "layout": "1x1"}]),
        (["torch-ddp", "single"], list(DEFAULT_REFERENCES)),
    ],
)
def test_a_program_that_is_never_single_is_compared_with_its_own_strategy(strategies, expected):
    layouts = {"torch-ddp": ["1x1", "1x2"], "single": ["1x1"]}
    configurations = [{"strategy": name, "layouts": layouts[name]} for name in strategies]
    program = {"ranked": {"command": "python -c pass"}}
    settings = experiment_on("ranked", program, configurations=configurations)
    assert Experiment(settings, "ranked.yaml").references == expected
