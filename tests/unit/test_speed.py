"""The kernel by which the speed of cores is known."""

from __future__ import annotations

import os

import pytest

from escala.analysis.comparable import alike_speeds
from escala.core.speed import seconds_of_kernel, speed_seconds

pytestmark = pytest.mark.usefixtures("whole_kernel")


def test_the_kernel_runs_on_each_core_and_leaves_this_process_its_own():
    before = os.sched_getaffinity(0)
    cores = sorted(before)[:2]
    found = seconds_of_kernel(cores)
    assert len(found) == len(cores) and os.sched_getaffinity(0) == before
    for seconds in found:
        assert 0 < seconds.least <= seconds.cpu / 10 and seconds.cpu <= seconds.wall


def test_what_shares_the_core_lengthens_the_wall_time_and_not_the_speed():
    core = min(os.sched_getaffinity(0))
    alone = seconds_of_kernel([core])[0]
    # Two kernels on one core have half of it each.
    shared = seconds_of_kernel([core, core])[0]
    assert shared.wall > 1.5 * shared.cpu
    assert shared.least < 1.25 * alone.least


def test_the_speed_of_a_core_is_the_same_again():
    core = min(os.sched_getaffinity(0))
    assert alike_speeds(speed_seconds(core), speed_seconds(core))


def test_a_core_that_this_process_may_not_use_is_refused():
    with pytest.raises(ValueError, match="9999"):
        seconds_of_kernel([9999])
