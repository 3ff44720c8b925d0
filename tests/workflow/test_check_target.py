"""`snakemake check` on this machine."""

from __future__ import annotations

from escala.check import CHECKS
from escala.core.errors import WIDTH
from tests.workflow.conftest import SIMULATED, experiment_of


def test_the_target_check_answers_for_each_ability(snakemake):
    done = snakemake("check", experiment=experiment_of("small", SIMULATED))
    answered = {
        each.name: line[WIDTH:].split()[0]
        for each in CHECKS
        for line in done.stdout.splitlines()
        if line.startswith(f"{each.name:<{WIDTH}}")
    }
    assert set(answered) == {each.name for each in CHECKS}
    assert set(answered.values()) <= {"yes", "no"}
    assert answered["MPI"] == "yes", "Horovod needs it, and the environment brings it"
    for line in done.stdout.splitlines():
        assert " no   " not in line or "Remedy: " in line
