"""Waits are those of jobs of one size, and their bound is that of order statistics."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from fractions import Fraction
from math import comb
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from escala.analysis import queue_waits
from escala.analysis.advice import queue
from escala.analysis.queue_waits import (
    CONFIDENCE,
    COVERAGE,
    FIELDS,
    bound_rank,
    jobs_needed,
    medians,
    parse,
    partitions,
    test_only_wait,
    waits,
)
from escala.core.errors import InputError

test_only_wait.__test__ = False
NOW = datetime(2026, 3, 2, 12)


def line(
    wait: float | None,
    partition: str = "batch",
    nodes: int = 1,
    cores: int = 1,
    state: str = "COMPLETED",
    eligible: datetime = NOW - timedelta(days=2),
    name: str = "mine",
) -> str:
    """A job as sacct prints it; without a wait it has not started."""
    start, node = "Unknown", "None assigned"
    if wait is not None:
        start, node = (eligible + timedelta(seconds=wait)).isoformat(), "n[1-4,7]"
    submitted = (eligible - timedelta(hours=5)).isoformat()
    columns = [partition, nodes, cores, state, submitted, eligible.isoformat(), start, node, name]
    return "|".join(map(str, columns))


def found(*lines: str, partition: str = "batch", nodes: int = 1, cores: int = 1):
    return waits(parse("\n".join(lines)), partition, nodes, cores, NOW)


# The bound.


@given(st.integers(0, 300))
def test_the_bound_is_the_first_order_statistic_that_is_sure(jobs):
    """The r-th smallest of n uniform numbers has a beta distribution with r and n - r + 1."""
    rank = bound_rank(jobs)
    sure = [r for r in range(1, jobs + 1) if stats.beta.sf(COVERAGE, r, jobs - r + 1) >= CONFIDENCE]
    assert rank == (sure[0] if sure else None)
    assert (rank is None) == (jobs < jobs_needed())


@given(
    st.integers(1, 40),
    st.sampled_from([Fraction(1, 2), Fraction(4, 5), Fraction(9, 10)]),
    st.sampled_from([Fraction(1, 2), Fraction(4, 5), Fraction(9, 10)]),
)
def test_the_bound_is_that_of_exact_sums(jobs, coverage, confidence):
    def below(rank: int) -> Fraction:
        """Probability that fewer than `rank` of the waits are below the quantile."""
        return sum(comb(jobs, k) * coverage**k * (1 - coverage) ** (jobs - k) for k in range(rank))

    exact = next((rank for rank in range(1, jobs + 1) if below(rank) >= confidence), None)
    close = any(abs(below(rank) - confidence) < 1e-9 for rank in range(1, jobs + 1))
    assert close or bound_rank(jobs, float(coverage), float(confidence)) == exact


def test_fifty_nine_jobs_give_a_bound_and_fifty_eight_do_not():
    assert jobs_needed() == 59
    jobs = [line(60 * number) for number in range(1, 60)]
    assert found(*jobs).bound == 59 * 60
    assert found(*jobs[:-1]).bound is None
    # Of 93 jobs it is the second longest.
    more = found(*(line(number) for number in range(1, 94)))
    assert more.bound == 92


@given(st.integers(60, 200), st.integers(0, 2**32 - 1))
def test_the_bound_does_not_depend_on_the_order_of_the_jobs(jobs, seed):
    shuffled = np.random.default_rng(seed).permutation(jobs)
    assert found(*(line(int(each)) for each in shuffled)).bound == bound_rank(jobs) - 1


# Jobs.


def test_only_jobs_of_the_partition_and_the_size_count():
    jobs = [
        line(10),
        line(20, cores=2),
        line(30, nodes=2, cores=2),
        line(40, partition="long"),
        line(50, nodes=4, cores=7),
        line(60, nodes=3, cores=8),
    ]
    assert list(found(*jobs).seconds) == [10]
    assert list(found(*jobs, cores=2).seconds) == [20]
    assert list(found(*jobs, partition="long").seconds) == [40]
    # 3 and 4 nodes round up to 4, and 5 to 8 cores to 8.
    assert list(found(*jobs, nodes=3, cores=5).seconds) == [50, 60]
    assert found(*jobs, nodes=5, cores=5).jobs == 0
    assert partitions(parse("\n".join(jobs))) == ["batch", "long"]


def test_a_job_that_still_waits_makes_the_bound_longer_and_one_that_was_cancelled_does_not():
    started = [line(float(number)) for number in range(59)]
    assert found(*started, line(None, state="CANCELLED by 0")).jobs == 59
    since = NOW - timedelta(seconds=30)
    waiting = line(None, state="PENDING", eligible=since, partition="batch,long")
    each = found(*started, waiting)
    # Of 60 waits the longest one is the bound, and it is not known.
    assert (each.jobs, each.pending, each.bound) == (60, 1, None)
    assert 30 in each.seconds
    # With more jobs, it is one that started.
    many = found(*(line(float(number)) for number in range(100)), waiting)
    assert many.bound == bound_rank(101) - 1


def test_a_held_job_has_no_wait_and_a_wait_is_never_negative():
    held = line(None, state="PENDING").replace((NOW - timedelta(days=2)).isoformat(), "Unknown")
    assert found(held).jobs == 0
    assert list(found(line(-3)).seconds) == [0]


def test_medians_are_those_of_drawn_jobs():
    each = found(*(line(10.0 * number) for number in range(1, 12)))
    drawn = medians(each, 500)
    assert drawn.shape == (500,)
    assert set(drawn) <= set(each.seconds)
    assert np.median(drawn) == 60
    assert list(medians(found(line(7)), 3)) == [7, 7, 7]


@pytest.mark.parametrize("text", ["batch|1|1", line(1).replace("|1|", "|one|", 1), "a\nb"])
def test_what_sacct_does_not_print_is_refused(text):
    with pytest.raises(InputError, match=r"line 1.*sacct"):
        parse(text)


def test_the_wait_that_slurm_expects_is_read():
    text = (
        "sbatch: Job 7 to start at 2026-03-02T12:01:30 using 2 processors on nodes n1 in "
        "partition lab"
    )
    assert test_only_wait(text, NOW) == 90
    assert test_only_wait(text, NOW + timedelta(days=1)) == 0
    assert test_only_wait("allocation failure: no such partition", NOW) is None
    # What SLURM 22.05 printed while a job without a time limit had the nodes.
    never = "sbatch: Job 11 to start at 10194-01-08T01:26:07 using 1 processors on nodes n1"
    assert test_only_wait(never, NOW) is None


# SLURM's programs.


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Write programs that stand first on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def write(name: str, text: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    return write


def test_sacct_is_asked_for_the_users_own_jobs_in_utc(programs, tmp_path, monkeypatch):
    asked = tmp_path / "asked"
    programs("sacct", f'echo "$TZ $*" > {asked}\nenv > {asked}.env\necho "{line(5)}"')
    for name in ("SLURM_TIME_FORMAT", "SACCT_FORMAT", "SLURM_BITSTR_LEN", "LC_ALL"):
        monkeypatch.setenv(name, "%H:%M")
    programs("sbatch", 'echo "sbatch: Job 1 to start at 2100-01-01T00:00:00 $*" >&2')
    known = queue.ask(30)
    assert [job.nodes for job in known.jobs] == [1]
    words = asked.read_text().split()
    assert words[0] == "UTC" and f"--format={','.join(FIELDS)}" in words
    assert {"-X", "-P", "--noheader", "--starttime=now-30days"} <= set(words)
    assert any(word.startswith("--user=") for word in words)
    reached = dict(each.split("=", 1) for each in Path(f"{asked}.env").read_text().splitlines())
    assert (reached["SLURM_TIME_FORMAT"], reached["LC_ALL"]) == ("standard", "C")
    assert not {"SACCT_FORMAT", "SLURM_BITSTR_LEN"} & reached.keys()
    printed = known.test_only(["--nodes=1"])
    assert "--test-only --nodes=1" in printed
    assert test_only_wait(printed, known.now) > 0


def test_without_accounting_the_reason_is_given(programs):
    programs("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    with pytest.raises(InputError, match=r"storage is disabled.*--jobs FILE"):
        queue.ask(1)
    programs("sbatch", "exit 1")
    assert queue.accounting.test_only(["--nodes=1"]) is None


def test_a_saved_output_is_read_and_its_latest_moment_is_now(tmp_path):
    file = tmp_path / "jobs"
    file.write_text(f"{line(5)}\n{line(3600)}\n")
    known = queue.read(file)
    assert known.now == NOW - timedelta(days=2) + timedelta(hours=1)
    assert queue_waits.latest(known.jobs) == known.now
    assert known.test_only([]) is None
    file.write_text("\n")
    with pytest.raises(InputError, match="has no jobs"):
        queue.read(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-16"):
        queue.read(file)
    file.write_text(line(5).replace("|n[", "+01:00|n["))
    with pytest.raises(InputError, match=r"line 1.*is not a job as sacct prints it"):
        queue.read(file)


def test_a_job_that_may_begin_later_neither_waits_nor_moves_now(tmp_path):
    later = line(None, state="PENDING", eligible=NOW + timedelta(days=60))
    submitted = later.split("|")
    submitted[4] = NOW.isoformat()
    file = tmp_path / "jobs"
    file.write_text(f"{line(5)}\n{'|'.join(submitted)}\n")
    known = queue.read(file)
    assert known.now == NOW
    assert waits(known.jobs, "batch", 1, 1, known.now).pending == 0
    waiting = line(None, state="PENDING", eligible=NOW - timedelta(minutes=2))
    file.write_text(f"{waiting}\n{'|'.join(submitted)}\n")
    known = queue.read(file)
    assert list(waits(known.jobs, "batch", 1, 1, known.now).seconds) == [120]


def test_a_byte_order_mark_is_no_part_of_the_first_partition(tmp_path):
    file = tmp_path / "jobs"
    file.write_bytes(b"\xef\xbb\xbf" + line(5).encode())
    assert partitions(queue.read(file).jobs) == ["batch"]


@pytest.mark.parametrize("moment", ["2026-02-28", "12:00:05", "28 Feb 12:00", "1772280000"])
def test_moments_of_another_format_are_refused(moment):
    other = line(5).replace((NOW - timedelta(days=2)).isoformat(), moment)
    with pytest.raises(InputError, match=r"line 1.*SLURM_TIME_FORMAT"):
        parse(other)


def test_jobs_of_a_study_of_this_project_are_left_out_and_counted(tmp_path):
    file = tmp_path / "jobs"
    study = [line(3600, name=f"escala_{number}") for number in range(3)]
    file.write_text("\n".join([line(5, name="a|b"), *study, line(6, name="")]))
    known = queue.read(file)
    assert sorted(waits(known.jobs, "batch", 1, 1, known.now).seconds) == [5, 6]
    assert (known.own, known.named) == (3, False)
    file.write_text("\n".join([line(5, name="a|b"), *study]))
    assert queue.read(file).named
    # As an output of before, without names.
    file.write_text("\n".join(each.rpartition("|")[0] for each in study))
    known = queue.read(file)
    assert (len(known.jobs), known.named) == (3, False)
