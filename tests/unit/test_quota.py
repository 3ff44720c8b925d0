"""Cores whose time a control group limits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from escala.core import hardware
from escala.core.errors import InputError
from escala.experiment import Experiment, read
from escala.experiment.files import ROOT


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


@pytest.mark.parametrize(
    ("limits", "quota"),
    [
        ({}, None),
        ({"job": "max 100000"}, None),
        ({"job": "100000 100000"}, 1.0),
        ({"job": "max 100000", "": "150000 100000"}, 1.5),
        ({"job": "200000 100000", "": "150000 100000"}, 1.5),
        ({"job": "50000 100000", "": "150000 100000"}, 0.5),
        ({"job": "unreadable"}, None),
    ],
)
def test_the_smallest_quota_of_the_groups_counts_in_version_2(tmp_path, limits, quota):
    member = tmp_path / "cgroup"
    member.write_text("0::/job\n")
    for group, text in limits.items():
        write(tmp_path / "groups" / group, cpu__max=text)
    assert hardware.cpu_quota(member, tmp_path / "groups") == quota


@pytest.mark.parametrize(("inside", "quota"), [(-1, 2.0), (50_000, 0.5)])
def test_the_smallest_quota_of_the_groups_counts_in_version_1(tmp_path, inside, quota):
    member, groups = tmp_path / "cgroup", tmp_path / "groups"
    member.write_text("5:cpuset:/\n2:cpu,cpuacct:/job/step\n1:memory:/other\n")
    write(groups / "cpu/job", cpu__cfs_quota_us=200_000, cpu__cfs_period_us=100_000)
    write(groups / "cpu/job/step", cpu__cfs_quota_us=inside, cpu__cfs_period_us=100_000)
    assert hardware.cpu_quota(member, groups) == quota


@pytest.mark.parametrize(("quota", "cores"), [(0.5, 1), (1.0, 1), (1.9, 1), (64.0, None)])
def test_a_quota_leaves_whole_cores_and_at_least_one(monkeypatch, quota, cores):
    monkeypatch.setattr(hardware, "cpu_quota", lambda: quota)
    found = hardware.describe()
    assert found["cores_available"] == (cores or len(os.sched_getaffinity(0)))
    assert found["cpu_quota"] == quota


def test_too_few_cores_by_a_quota_are_refused_with_the_quota(monkeypatch):
    monkeypatch.setattr("escala.experiment.matrix.cpu_quota", lambda: 1.5)
    settings = read(ROOT / "config.yaml") | {"oversubscribe": False}
    experiment = Experiment(settings, "quota.yaml")
    run = next(run for run in experiment.runs if run.layout == "1x2")
    with pytest.raises(InputError, match=r"and 1 are available by a quota .* of 1\.5 cores"):
        experiment.require_cores(run, 1)
