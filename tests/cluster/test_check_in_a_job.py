"""What a node tells inside a job: `escala check`."""

from __future__ import annotations

import sys

import pytest

from escala.check import job as checks
from escala.core.errors import WIDTH
from tests.cluster.conftest import output

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]


def test_in_a_job_a_node_tells_what_the_site_gives(lab):
    said = output(
        "salloc", "--partition=lab", "--nodes=2", "--time=5", "--quiet",
        "srun", "--nodes=1", "--ntasks=1", sys.executable, "-m", "escala.command", "check",
    )  # fmt: skip
    answers = {line[:WIDTH].strip(): line[WIDTH:] for line in said.splitlines()}
    assert answers.keys() >= {each.name for each in checks.CHECKS}
    for name, found in {
        "PMIx": "yes  pmix",
        # The lab has no plugin that keeps jobs to their cores.
        "control groups": "no   TaskPlugin is task/none. Remedy: ",
        "interfaces": "yes  eth0 198.18.",
        "shared files": "yes  2 nodes see ",
        # SLURM counts whole seconds.
        "time limit": ("yes  4 min ", "yes  5 min 0 s "),
    }.items():
        assert answers[name].startswith(found), said
