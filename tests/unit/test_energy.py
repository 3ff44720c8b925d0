"""Energy: counters of made-up trees, read by the sampler on a made-up clock."""

from __future__ import annotations

import math
import os
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from escala.core.errors import Unavailable
from escala.core.files import write_json
from escala.probes import _sampler, energy
from escala.probes.energy import Energy
from tests.unit.counter_trees import Tree, two_packages
from tests.unit.nvml import Gpu, Nvml

#: A number that no process has.
NO_PROCESS = 2**22 + 1
#: The energy that the two packages with their memory use in a second.
WATTS = {"package-0": 100, "dram-0": 10, "package-1": 50, "dram-1": 5}


@pytest.fixture(autouse=True)
def without_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(None))


class Node:
    """A sampled node: its counters grow with its clock, and things happen at some seconds."""

    def __init__(self, folder: Path, tree: Tree, monkeypatch):
        self.folder, self.tree, self.now = folder, tree, 1000.0
        self._events: list[tuple[float, Callable[[], None]]] = []
        clock = types.SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        for module in (energy, _sampler):
            monkeypatch.setattr(module, "time", clock)

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        self._events.append((1000.0 + seconds, event))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.tree.grow(seconds)
        due = [event for moment, event in self._events if self.now >= moment]
        self._events = [each for each in self._events if self.now < each[0]]
        for event in due:
            event()

    def sampled(
        self, seconds: float = 100, node: int = 0, every: float = 0.5
    ) -> dict[int, pd.DataFrame]:
        ended = {"node": node, "pid": NO_PROCESS, "started": 1.0}
        self.at(seconds, lambda: write_json(self.folder / "rank0.pid", ended))
        found = energy.counters(self.tree.root)
        seconds = energy.interval(every, found)
        rows = lambda _: map(energy.row, found)  # noqa: E731
        _sampler.sample(self.folder, node, "energy", energy.COLUMNS, rows, seconds)
        return _sampler.read_samples(self.folder, "energy")

    def summary(self, idle=(1010.0, 1020.0), trained=(1040.25, 1080.75)) -> dict:
        [found] = energy.summary(self.sampled(), {0: {"idle": idle, "trained": trained}})
        Draft202012Validator(Energy.result["items"]).validate(found)
        return found


@pytest.fixture
def node(tmp_path, monkeypatch):
    (tmp_path / "ranks").mkdir()
    return Node(tmp_path / "ranks", two_packages(tmp_path / "sys"), monkeypatch)


def test_each_device_counts_once(node):
    """Cores are a part of the package, and psys and the second interface contain it."""
    found = node.summary()
    assert {each["device"]: each["source"] for each in found["devices"]} == dict.fromkeys(
        WATTS, "rapl"
    )
    assert (found["node"], found["seconds"], found["idle_reason"]) == (0, 40.5, None)
    for each in found["devices"]:
        watts = WATTS[each["device"]]
        assert each["joules"] == pytest.approx(40.5 * watts, rel=1e-6)
        assert each["idle_watts"] == pytest.approx(watts, rel=1e-6)
        assert (each["used"], each["samples"]) == (True, 81)


@given(
    st.lists(st.floats(0, 1000), min_size=3, max_size=30),
    st.floats(0.05, 0.5),
    st.floats(0.01, 0.99),
    st.floats(0.01, 0.99),
    st.sampled_from([math.nan, 12_000.0, 262_143.0]),
)
def test_growth_is_that_of_the_energy_behind_the_counter(watts, interval, one, other, most):
    """The energy itself never wraps; the counter is its remainder."""
    seconds = 50.0 + interval * np.arange(len(watts) + 1)
    used = 0.5 * min(most, 1e9) if most == most else 0.0
    behind = used + np.concatenate([[0], np.cumsum(np.array(watts) * interval)])
    joules = behind if math.isnan(most) else behind % most
    rows = pd.DataFrame({"seconds": seconds, "device": "d", "joules": joules, "error": ""})
    begin, end = sorted(seconds[0] + part * (seconds[-1] - seconds[0]) for part in (one, other))
    if begin == end:
        return
    expected = np.interp(end, seconds, behind) - np.interp(begin, seconds, behind)
    shuffled = rows.assign(range_joules=most).sample(frac=1, random_state=len(watts))
    assert energy.growth(shuffled, begin, end) == pytest.approx(expected, rel=1e-6, abs=1e-5)


def test_nothing_is_trained_without_counters(tmp_path):
    with pytest.raises(Unavailable, match="node 1 has no samples of energy"):
        energy.summary({}, {1: {"idle": (0, 1), "trained": (1, 2)}})
    probe = Energy({"sysfs": str(tmp_path), "seconds": 0.5, "cool_down_seconds": 3600}, tmp_path)
    with pytest.raises(Unavailable, match="no energy counters"), probe.around(0, 0):
        pytest.fail("the rank began its work")
    assert not list(tmp_path.iterdir())


ZONES = "class/powercap/intel-rapl"


def another_package(node: Node) -> None:
    folder = node.tree.root / "devices/system/cpu/cpu9/topology"
    folder.mkdir(parents=True)
    (folder / "physical_package_id").write_text("2\n")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (another_package, "package-2: no counter in"),
        (
            lambda node: (node.tree.root / f"{ZONES}:1/energy_uj").unlink(),
            f"No such file .*{ZONES}:1/energy_uj",
        ),
        (
            lambda node: node.tree.cray("energy", 500).write_text("7 W"),
            "node: pm_counters: .*pm_counters/energy is not in joules",
        ),
        (lambda _: setattr(sys.modules["pynvml"], "gpus", [Gpu()]), "gpu0: nvml: Not Supported"),
    ],
)
def test_a_device_whose_counter_cannot_be_read_is_named(node, change, reason):
    """What the other counters read is not the energy of the node."""
    change(node)
    with pytest.raises(Unavailable, match=reason):
        energy.counters(node.tree.root)


def test_a_counter_that_only_root_may_read_is_unavailable_to_others():
    """The kernel's default since CVE-2020-8694. Other users cannot enter pytest's folders."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        tree = two_packages(Path(folder) / "sys")
        zone = tree.root / "class/powercap/intel-rapl:0/energy_uj"
        zone.chmod(0o400 if root else 0)
        if root:
            os.seteuid(65534)
        try:
            with pytest.raises(Unavailable, match=f"package-0: no permission for {zone}"):
                energy.counters(tree.root)
        finally:
            if root:
                os.seteuid(0)


def resets(node: Node, path: Path) -> None:
    node.at(60, lambda: node.tree.set(path, 0))


@pytest.mark.parametrize(
    ("change", "trained", "reason"),
    [
        (
            lambda node: node.at(60, (node.tree.root / f"{ZONES}:0:1/energy_uj").unlink),
            (1040, 1080),
            f"node 0: dram-0: rapl: .*No such file .*{ZONES}:0:1/energy_uj",
        ),
        (
            lambda node: resets(node, node.tree.root / f"{ZONES}:0/energy_uj"),
            (1040, 1080),
            "package-0: its counter was reset",
        ),
        (
            lambda node: resets(node, node.tree.cray("energy", 500, start=1000)),
            (1040, 1080),
            "node: its counter was reset",
        ),
        (
            lambda node: node.at(60, lambda: node.sleep(300)),
            (1040, 1080),
            "no sample for 300 s, so its counter may have wrapped",
        ),
        (lambda node: None, (990, 1080), "package-0: no sample before these moments"),
        (lambda node: None, (1040, 1200), "package-0: no sample after these moments"),
    ],
)
def test_samples_that_do_not_tell_the_energy_of_the_steps(node, change, trained, reason):
    change(node)
    with pytest.raises(Unavailable, match=reason):
        node.summary(trained=trained)


def test_rare_and_late_samples_miss_no_wrap(tmp_path, node):
    """A range of 65 532 J, as many packages have, at 450 W: it wraps every 146 s."""
    node.tree = Tree(tmp_path / "rare")
    node.tree.zone("0", "package-0", 450, start=60e9, most=65_532_610_987)
    node.at(300, lambda: node.sleep(40))
    rows = node.sampled(700, every=60)[0]
    assert energy.growth(rows, 1100, 1600) == pytest.approx(450 * 500, rel=1e-6)


def test_without_a_cool_down_only_the_idle_power_is_unknown(node):
    found = node.summary(idle=(1010.0, 1010.0))
    assert {each["idle_watts"] for each in found["devices"]} == {None}
    assert found["idle_reason"] == "no time between the two moments"
    assert sum(each["joules"] for each in found["devices"]) == pytest.approx(40.5 * 165)


def test_cray_nodes_have_one_counter_and_accelerators_are_a_part_of_it(tmp_path, node):
    """No other source is read alongside it; the use of its accelerators is not known."""
    node.tree.cray("energy", 900, start=5e6)
    for number in range(2):
        node.tree.cray(f"accel{number}_energy", 100 * (number + 1), start=1e6)
    node.tree.cray("accel0_power", 100)
    # Older nodes have one for all accelerators, also those without any.
    node.tree.cray("accel_energy", 0)
    found = node.summary()
    joules = {each["device"]: round(each["joules"]) for each in found["devices"]}
    assert joules == {"node": 600 * 40.5, "node/accel0": 4050, "node/accel1": 8100}
    assert [each["used"] for each in found["devices"]] == [True, None, None]
    assert {each["source"] for each in found["devices"]} == {"pm_counters"}


def test_one_counter_of_all_accelerators_is_a_part_of_the_node(node):
    node.tree.cray("energy", 500, start=1000)
    node.tree.cray("accel_energy", 100, start=50)
    joules = {each["device"]: round(each["joules"]) for each in node.summary()["devices"]}
    assert joules == {"node": 400 * 40.5, "node/accel": 4050}


def test_gpus_are_counted_beside_the_packages_and_known_to_be_idle(node, monkeypatch):
    gpus = [
        Gpu(used=80, energy=lambda: int(300e3 * node.now)),
        Gpu(energy=lambda: int(40e3 * node.now)),
    ]
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(gpus))
    found = {each["device"]: each for each in node.summary()["devices"]}
    assert found.keys() == {*WATTS, "gpu0", "gpu1"}
    assert found["gpu0"]["joules"] == pytest.approx(300 * 40.5)
    assert found["gpu1"]["idle_watts"] == pytest.approx(40)
    assert (found["gpu0"]["used"], found["gpu1"]["used"]) == (True, False)


def process(boot: str, began: float | None, seconds: float = 10.0) -> dict:
    return {"boot": boot} | (
        {"epochs": [{"began": began, "train_seconds": seconds}]} if began else {}
    )


def announced(folder: Path, *processes: tuple[int, tuple[float, float]]) -> None:
    for number, (node, idle) in enumerate(processes):
        write_json(folder / f"rank{number}.pid", {"node": node, "idle": list(idle)})


def test_a_machine_is_idle_while_all_sleep_and_trained_on_while_any_trains(tmp_path):
    announced(tmp_path, (0, (5, 10)), (0, (6, 11)), (1, (105, 110)), (1, (104, 109)))
    first, second = process("a", 20), process("a", 21, 12.0)
    found = energy.moments(tmp_path, [first, second, process("b", 120), process("b", None)])
    assert found == {
        0: {"idle": (6, 10), "trained": (20, 33)},
        1: {"idle": (105, 109), "trained": (120, 130)},
    }


def test_nodes_of_one_machine_count_once_and_each_machine_has_to_train(tmp_path):
    """Nodes of the lab read the same counters; a machine may only serve others."""
    announced(tmp_path, (0, (5, 10)), (1, (6, 11)))
    found = energy.moments(tmp_path, [process("a", 20), process("a", 22)])
    assert found == {0: {"idle": (6, 10), "trained": (20, 32)}}
    with pytest.raises(Unavailable, match="node 1 makes no training steps"):
        energy.moments(tmp_path, [process("a", 20), process("b", None)])
