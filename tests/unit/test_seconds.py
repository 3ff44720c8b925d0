"""The division of a workflow's seconds by its benchmark."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import seconds
from hypothesis import given
from hypothesis import strategies as st

MOMENTS = st.floats(10, 90)


def job(rule: str, start: float, end: float) -> seconds.Job:
    return seconds.Job(rule, start, end, Path("x"))


def test_jobs_at_the_same_time_share_it_and_idle_time_has_a_name():
    jobs = [job("encode", 2, 6), job("train", 4, 8), job("train", 9, 10)]
    assert seconds.divided(jobs, 0, 13) == {
        "before the first job": 2,
        "encode": 3,
        "train": 4,
        "between jobs": 1,
        "after the last job": 3,
    }


@given(st.lists(st.tuples(st.sampled_from("abc"), MOMENTS, MOMENTS), max_size=6))
def test_no_second_is_lost_or_counted_twice(drawn):
    jobs = [job(rule, *sorted(moments)) for rule, *moments in drawn]
    assert sum(seconds.divided(jobs, 0, 100).values()) == pytest.approx(100)


def test_a_job_of_several_files_is_read_once_and_older_ones_are_not(tmp_path):
    for name, rule, start in [("a.csv", "tables", 7), ("b.csv", "tables", 7), ("c", "old", 1)]:
        record = {"rule": rule, "starttime": start, "endtime": 9, "log": [f"{rule}.log"]}
        encoded = base64.b64encode(name.encode()).decode()
        (tmp_path / encoded).write_text(json.dumps(record))
    [found] = seconds.read_jobs(tmp_path, since=5)
    assert (found.rule, found.start, found.end) == ("tables", 7, 9)
    assert str(found.output) in {"a.csv", "b.csv"}
