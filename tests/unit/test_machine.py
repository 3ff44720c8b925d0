"""What tells machines from each other: the processor, and its speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from escala.analysis import comparable
from escala.core import hardware
from escala.record import key
from escala.runtime import node

MILAN = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC
stepping\t: 1
flags\t\t: fpu sse2 avx2
"""
ARM = """\
processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd0c
CPU revision\t: 1
"""


@pytest.fixture
def described(tmp_path):
    def of(cpuinfo: str) -> dict:
        file = tmp_path / "cpuinfo"
        file.write_text(cpuinfo)
        return hardware.describe(file)

    return of


def older(machine: dict) -> dict:
    """Return a machine as it was recorded without the processor's family."""
    return {k: v for k, v in machine.items() if k != "processor"} | {"cpu": "AMD EPYC"}


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("cpu family\t: 25", "cpu family\t: 26"),
        ("model\t\t: 1", "model\t\t: 17"),
        ("stepping\t: 1", "stepping\t: 2"),
        ("sse2 avx2", "sse2 avx2 avx512f"),
        ("AuthenticAMD", "HygonGenuine"),
    ],
)
def test_processors_of_one_name_are_told_from_each_other(described, monkeypatch, field, other):
    one, unlike = described(MILAN), described(MILAN.replace(field, other))
    assert comparable.unlike_machines([one], [described(MILAN)]) is None
    assert comparable.unlike_machines([one], [unlike])
    # The store and the history tell them apart by the same.
    keys = []
    for machine in (one, unlike):
        monkeypatch.setattr(hardware, "describe", lambda machine=machine: dict(machine))
        keys.append(key.machine())
    assert keys[0] != keys[1]
    runs = [{"ranks": {"machines": [machine]}} for machine in (one, unlike)]
    assert comparable.machines(runs[0]) != comparable.machines(runs[1])


def test_the_order_of_features_and_other_processors_make_no_difference(described):
    second = MILAN.replace("processor\t: 0", "processor\t: 1").replace("25", "26")
    again = MILAN.replace("fpu sse2 avx2", "avx2 fpu sse2") + "\n" + second
    assert described(again) == described(MILAN)


def test_a_name_shows_family_and_model(described):
    assert described(MILAN)["cpu"] == "AMD EPYC (family 25 model 1)"
    assert described(ARM)["cpu"].endswith("(family 8 model 0xd0c)")
    assert set(described("")["processor"].values()) == {None}


def test_a_record_without_the_family_is_unlike_a_known_processor_and_like_another_such(described):
    known = described(MILAN)
    reason = comparable.unlike_machines([older(known)], [known])
    assert "different kinds of machines: AMD EPYC, " in reason and "older record" in reason
    assert comparable.unlike_machines([older(known)], [older(known)]) is None


def test_a_node_tells_its_speed_and_the_store_does_not_use_it():
    machine = node.describe(node.LOOPBACK, ports=1).machine
    assert 0 < machine["speed_seconds"] < 1 and "speed_seconds" not in key.machine()
    assert json.dumps(key.machine())


@pytest.mark.parametrize(("times", "alike"), [(1.2, True), (1 / 1.2, True), (2, False)])
def test_equal_processors_of_another_speed_are_told_from_each_other(times, alike):
    assert comparable.alike_speeds(0.0024, 0.0024 * times) == alike
    assert comparable.alike_speeds(None, 0.0024)


def test_this_machine_describes_its_processor():
    found = hardware.describe(Path("/proc/cpuinfo"))
    assert found == hardware.describe() and found["cpu"]
