"""Records of real jobs: what `sacct` prints is read, and waits are those of the queue."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from escala.analysis import queue_waits
from escala.analysis.advice import queue
from escala.core.errors import InputError
from escala.lab import accounting, cluster
from tests.cluster.conftest import eventually, machine, output

pytestmark = pytest.mark.cluster

HELD_SECONDS = 3


@pytest.fixture
def recorded(no_lab) -> Iterator[None]:
    """A lab of two nodes with a core each that keeps records of its jobs.

    Skip without slurmdbd and MariaDB, or fail where ESCALA_REQUIRE names `accounting`.
    """
    try:
        accounting.require_programs()
    except InputError as error:
        required = "accounting" in os.environ.get("ESCALA_REQUIRE", "").split(",")
        (pytest.fail if required else pytest.skip)(str(error))
    cluster.up(2, 1, record=True)
    yield
    cluster.down()


def submit(*options: str, seconds: float = 0.1) -> str:
    command = ["sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap=sleep {seconds}"]
    return output(*command).strip()


def test_waits_are_those_of_real_jobs_and_nothing_is_left(recorded, bare_machine):
    first = submit("--nodes=2", seconds=HELD_SECONDS)
    later = submit("--nodes=1")
    never = submit("--nodes=2", "--begin=now+1hour")
    output("scancel", never)

    def ended() -> bool:
        states = output("sacct", "-X", "--noheader", "--format=JobID,State").splitlines()
        return {tuple(line.split()[:2]) for line in states} >= {
            (first, "COMPLETED"),
            (later, "COMPLETED"),
        }

    assert eventually(ended)
    known = queue.ask(days=1)
    assert queue_waits.partitions(known.jobs) == [cluster.PARTITION]
    # The cancelled job never started, and has no wait.
    assert len(known.jobs) == 3
    of_two = queue_waits.waits(known.jobs, cluster.PARTITION, 2, 2, known.now)
    of_one = queue_waits.waits(known.jobs, cluster.PARTITION, 1, 1, known.now)
    assert (of_two.jobs, of_one.jobs) == (1, 1)
    # The second job waited for the first one, which slept.
    assert of_one.seconds[0] >= HELD_SECONDS - 1
    assert of_two.bound is None and of_one.pending == 0

    submit("--nodes=2", seconds=60)
    waiting = submit("--nodes=2")
    assert eventually(lambda: queue_waits.waits(
        queue.ask(days=1).jobs, cluster.PARTITION, 2, 2, known.now
    ).pending == 1)  # fmt: skip
    printed = known.test_only(["--nodes=1", "--ntasks-per-node=1", "--time=1"])
    assert queue_waits.test_only_wait(printed, known.now) is not None, printed
    output("scancel", waiting)
    cluster.down()
    assert machine() == bare_machine


def test_without_the_programs_the_lab_names_their_packages(no_lab, monkeypatch, bare_machine):
    monkeypatch.setitem(accounting.PROGRAMS, "no-such-program", "no-such-package")
    with pytest.raises(InputError, match=r"no-such-program.*apt-get install.*no-such-package"):
        cluster.up(2, 1, record=True)
    assert machine() == bare_machine
