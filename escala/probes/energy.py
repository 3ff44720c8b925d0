"""Measure the energy of the nodes of a run, from one process on each node.

This module, started on a node, reads its energy counters and writes `node{n}.energy.csv`. Before a
rank does any work it sleeps: the machine cools down, and the power of an idle node is measured.
Energy that was not measured is unavailable with the reason, and never 0.

| source | counters | unit |
|---|---|---|
| `pm_counters` | the whole node and each accelerator of a Cray: `{sysfs}/cray/pm_counters` | J |
| `rapl` | each processor package, and its memory: `{sysfs}/class/powercap/intel-rapl:*` | µJ |
| `nvml` | each NVIDIA GPU, in addition to `rapl` | mJ |

The counters of a node are complete or unavailable: part of a node never stands for the whole. A
node with `pm_counters` needs no other source. Zones of `rapl` that are contained in others (cores,
uncore, the second interface of a package by `intel-rapl-mmio`) or contain others (`psys`, the whole
platform) are not read, so that nothing counts twice. Formats: kernel documentation
`power/powercap/powercap.rst`, HPE's *User Access to Compute Node Power Data* (docs-csm), and NVML's
API reference.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from escala import cli
from escala.core.errors import Unavailable
from escala.core.files import read_json
from escala.core.hardware import Driver
from escala.probes._sampler import (
    SAMPLE_SECONDS,
    announce,
    command,
    read_arguments,
    read_samples,
    sample,
)
from escala.probes.base import Probe, object_schema, section, value

if TYPE_CHECKING:
    import pandas as pd

SYSFS = Path("/sys")
#: Power in W that no device exceeds; a larger growth of its counter is a reset. A processor package
#: may draw twice the 500 W for which the largest server processors are specified (AMD EPYC 9965,
#: Intel Xeon 6980P); its counter wraps. Any other device may draw the power of a whole node with
#: its accelerators.
PACKAGE_WATTS, NODE_WATTS = 1000.0, 20_000.0
#: Longest time between two updates of a counter.
UPDATE_SECONDS = 1.0
#: Separates a device from the part of it that has a counter, in the name of the part:
#: `node/accel0`.
INSIDE = "/"

_RAPL_FOLDER, _CRAY_FOLDER = Path("class", "powercap"), Path("cray", "pm_counters")
_REMEDY = "let this user read it, for example by a rule of udev, or run as root"

COOL_DOWN_SECONDS = 60
REPEATS = 3

#: The columns of `node{n}.energy.csv`: one row for each counter and sample. `seconds` is in
#: `time.monotonic`, one clock for all processes of a machine. `joules` is the counter as it was
#: read. If it could not be read, `joules` is empty and `error` is the reason. `used` is 1 if the
#: device computes, 0 if not, and empty if unknown.
COLUMNS = ("seconds", "device", "source", "joules", "range_joules", "used", "error")

_DEVICE = {
    "device": value("string", "Device of the node; `node` is all of it except its accelerators."),
    "source": value("string", "The kind of its counter."),
    "joules": value("number", "Energy from the first to the last training step.", "J"),
    "idle_watts": value(
        "number?", "Power during the second half of the cool-down; null if not measured.", "W"
    ),
    "used": value(
        "boolean?",
        "Whether the device computed in any sample of the training steps; null if unknown.",
    ),
    "samples": value("integer", "Samples during the training steps.", "samples", minimum=0),
}
_NODE = {
    "node": value("integer", "Number of the node.", minimum=0),
    "seconds": value(
        "number", "Time from the first to the last training step.", "s", exclusiveMinimum=0
    ),
    "idle_reason": value("string?", "Why the power of the idle node was not measured."),
    "devices": value(
        "array",
        "The devices whose energy adds up to that of the node.",
        minItems=1,
        items=object_schema(_DEVICE),
    ),
}
_POWER = {
    "node_watts": value("number", "Power of an idle node.", minimum=0),
    "core_watts": value("number", "Power that a core adds while it trains.", minimum=0),
}


class Energy(Probe):
    """The energy of every device of the nodes during the training steps, and their idle power."""

    captures_programs = True
    settings = section(
        "Separate runs in which a process on each node reads its energy counters; without "
        "complete counters they are unavailable.",
        enabled=False,
        repeats=value(
            "integer",
            "Runs of each configuration: before, among and after the timing runs.",
            minimum=1,
            maximum=1000,
            default=REPEATS,
            determines_run=False,
        ),
        seconds=value(
            "number",
            "Time between samples; less if a counter could overflow unseen.",
            exclusiveMinimum=0,
            maximum=60,
            default=SAMPLE_SECONDS,
        ),
        cool_down_seconds=value(
            "number",
            "Idle time before a run, in whose second half idle power is measured; 0 measures none.",
            minimum=0,
            maximum=3600,
            default=COOL_DOWN_SECONDS,
        ),
        sysfs=value(
            "string",
            "Where sysfs is mounted, such as /host/sys in a container.",
            minLength=1,
            default=str(SYSFS),
        ),
        power_model={
            "description": "The power of a node, to estimate energy that was not measured.",
            **object_schema(_POWER),
            "determines_run": False,
        },
        grams_co2_per_kwh=value(
            "number",
            "CO₂ of your electricity; absent, no emissions are told.",
            minimum=0,
            determines_run=False,
        ),
    )
    result: ClassVar[dict] = value(
        "array?",
        "Energy of the nodes during the training steps; null in a run without this probe.",
        minItems=1,
        items=object_schema(_NODE),
    )
    temporary = ("rank*.pid",)
    tabulated = True
    compared = True

    def program(self, interface):
        return command(__name__, self.folder, self.values["seconds"], self.values["sysfs"])

    @contextmanager
    def around(self, process, node):
        counters(Path(self.values["sysfs"]))  # Missing counters end the run before it trains.
        pause = self.values["cool_down_seconds"]
        now = time.monotonic()
        # Idle power is measured in the second half of the pause.
        announce(self.folder, process, node, idle=[now + pause / 2, now + pause])
        time.sleep(pause)
        yield
        # The sampler needs time for a sample after the last step: it ends with the launcher.
        time.sleep(2 * self.values["seconds"])

    def read(self, processes):
        return summary(read_samples(self.folder, "energy"), moments(self.folder, processes))


def moments(folder: Path, processes: list[dict]) -> dict[int, dict[str, tuple[float, float]]]:
    """Return when each machine was `idle` and when it `trained`, in seconds of `time.monotonic`.

    A machine is idle while all processes on it sleep. Training lasts from the first step of any
    process to the last step of any process. A process that only serves others makes no steps.

    Parameters
    ----------
    folder : the run's `ranks/` folder, in which each process has announced itself.
    processes : the measurements of each process, in their order.

    Returns
    -------
    Both pairs of moments, by the number of the machine's first node. The nodes of an emulated
    cluster are on one machine and have the same counters. These count once.

    Raises
    ------
    Unavailable : no process on a machine makes training steps.
    """
    machines: dict[str, list[tuple[dict, dict]]] = {}
    for number, process in enumerate(processes):
        announced = read_json(folder / f"rank{number}.pid")
        machines.setdefault(process["boot"], []).append((announced, process))
    by_node = {}
    for members in machines.values():
        begins, ends = zip(*(announced["idle"] for announced, _ in members), strict=True)
        epochs = [epoch for _, process in members for epoch in process.get("epochs", ())]
        node = min(announced["node"] for announced, _ in members)
        if not epochs:
            raise Unavailable(f"node {node} makes no training steps that its clock could time")
        first = min(epoch["began"] for epoch in epochs)
        last = max(epoch["began"] + epoch["train_seconds"] for epoch in epochs)
        by_node[node] = {"idle": (max(begins), min(ends)), "trained": (first, last)}
    return by_node


def row(counter: Counter) -> tuple:
    """Return the row of a counter at this moment, in `COLUMNS`."""
    joules, error, seconds = None, None, f"{time.monotonic():.6f}"
    try:
        joules = read_joules(counter)
    except Unavailable as missing:
        error = str(missing)
    computes = counter.read_use()
    used = None if computes is None else int(computes)
    return seconds, counter.device, counter.source, joules, counter.range_joules, used, error


@dataclass(frozen=True)
class Counter:
    """A counter that grows by the energy that one device uses.

    Attributes
    ----------
    device : its name on the node. `node/accel0` is a part of `node`, and its energy is in both.
    source : `rapl`, `pm_counters` or `nvml`.
    range_joules : the value at which the counter begins again with 0; None if it does not wrap.
    read : returns the counter in joules.
    read_use : returns whether the device computes at this moment, or None if that is not known.
    """

    device: str
    source: str
    range_joules: float | None
    read: Callable[[], float]
    read_use: Callable[[], bool | None] = lambda: True


def wrap_seconds(range_joules: float) -> float:
    """Return the shortest time in which a counter with this range can wrap."""
    return range_joules / PACKAGE_WATTS


def interval(seconds: float, counters: Iterable[Counter]) -> float:
    """Return the seconds between samples: `seconds`, or fewer where a counter may wrap.

    Four samples fit into the time in which a counter can wrap, so a late sample loses nothing.
    """
    ranges = (counter.range_joules for counter in counters if counter.range_joules is not None)
    return min([seconds, *(wrap_seconds(joules) / 4 for joules in ranges)])


def counters(sysfs: Path = SYSFS) -> list[Counter]:
    """Return the counters of all devices of this node, after reading each of them once.

    Parameters
    ----------
    sysfs : the folder where sysfs is mounted.

    Raises
    ------
    Unavailable : the node has no counters, or one of them is missing or cannot be read; the message
        names it.
    """
    result = list(_cray(sysfs / _CRAY_FOLDER)) or [*_rapl(sysfs), *_nvml()]
    for counter in result:
        read_joules(counter)
    return result


def read_joules(counter: Counter) -> float:
    """Return a counter in joules.

    Raises
    ------
    Unavailable : the counter cannot be read, or its content is no number.
    """
    try:
        return counter.read()
    except PermissionError as error:
        raise Unavailable(
            f"{counter.device}: no permission for {error.filename}; {_REMEDY}"
        ) from None
    except (OSError, ValueError) as error:
        raise Unavailable(f"{counter.device}: {counter.source}: {error}") from None


def _cray(folder: Path) -> Iterator[Counter]:
    """Yield the counters `pm_counters` of a node, if it has them."""
    node = folder / "energy"
    if not folder.is_dir():
        return
    yield Counter("node", "pm_counters", None, lambda: _joules_of_cray(node))
    accelerators = sorted(folder.glob("accel[0-9]*_energy"))
    if not accelerators and (shared := folder / "accel_energy").exists():
        # Older nodes have one counter for all accelerators; without accelerators it is always 0.
        counter = Counter("node", "pm_counters", None, lambda: _joules_of_cray(shared))
        accelerators = [shared] if read_joules(counter) else []
    for path in accelerators:
        device = f"node{INSIDE}{path.name.removesuffix('_energy')}"
        yield Counter(
            device, "pm_counters", None, lambda path=path: _joules_of_cray(path), lambda: None
        )


def _joules_of_cray(path: Path) -> float:
    """Return the joules in a file such as `28231 J 1700000000000000 us`."""
    number, unit = path.read_text(encoding="utf-8").split()[:2]
    if unit != "J":
        raise ValueError(f"{path} is not in joules")
    return float(number)


def _rapl(sysfs: Path) -> Iterator[Counter]:
    """Yield a counter for each package and its memory; a package without one is `Unavailable`."""
    folder = sysfs / _RAPL_FOLDER
    zones = {path: _read_zone(path, "name") for path in sorted(folder.glob("intel-rapl:*"))}
    packages = {path.name: name for path, name in zones.items() if name.startswith("package-")}
    if not packages:
        raise Unavailable(
            f"this node has no energy counters: no package in {folder}, and no "
            f"{sysfs / _CRAY_FOLDER}"
        )
    files = (sysfs / "devices" / "system" / "cpu").glob("cpu[0-9]*/topology/physical_package_id")
    present = {f"package-{path.read_text(encoding='utf-8').strip()}" for path in files}
    counted = {name[0] for name in map(re.compile(r"package-\d+").match, packages.values()) if name}
    if missing := ", ".join(sorted(present - counted)):
        raise Unavailable(f"{missing}: no counter in {folder}")
    for path, name in zones.items():
        parent = path.name.rpartition(":")[0]
        if path.name in packages:
            device = name
        elif name == "dram" and parent in packages:
            device = packages[parent].replace("package", "dram", 1)
        else:
            continue
        yield Counter(
            device,
            "rapl",
            int(_read_zone(path, "max_energy_range_uj")) / 1e6,
            lambda path=path: int((path / "energy_uj").read_text(encoding="utf-8")) / 1e6,
        )


def _read_zone(zone: Path, file: str) -> str:
    try:
        return (zone / file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise Unavailable(f"{zone}: {error}") from None


def _nvml() -> Iterator[Counter]:
    driver = Driver()
    for number, gpu in enumerate(driver.gpus):
        yield Counter(
            f"gpu{number}",
            "nvml",
            None,
            lambda gpu=gpu: driver.read("TotalEnergyConsumption", gpu) / 1e3,
            lambda gpu=gpu: (
                (rates := driver.read_or_none("UtilizationRates", gpu)) and rates.gpu > 0
            ),
        )


def summary(
    samples: dict[int, pd.DataFrame], within: dict[int, dict[str, tuple[float, float]]]
) -> list[dict]:
    """Return the energy of each node, as `Energy.result` describes it.

    Parameters
    ----------
    samples : the samples of each node, in `COLUMNS`.
    within : the result of `moments`. A node without moments is left out.

    Raises
    ------
    Unavailable : the energy of a node is not known completely; the message names the counter.
    """
    missing = sorted(within.keys() - samples.keys())
    if missing:
        raise Unavailable(f"node {missing[0]} has no samples of energy")
    return [_node(node, samples[node], **within[node]) for node in sorted(within)]


def _node(
    node: int, samples: pd.DataFrame, trained: tuple[float, float], idle: tuple[float, float]
) -> dict:
    """Return the energy of one node; see `summary`."""
    devices = dict(iter(samples.groupby("device", sort=False)))
    try:
        joules = {name: growth(rows, *trained) for name, rows in devices.items()}
        if not joules:
            raise Unavailable("no counter was read")
        if constant := [name for name, growth_joules in joules.items() if not growth_joules]:
            raise Unavailable(f"{constant[0]}: its counter did not grow")
    except Unavailable as error:
        raise Unavailable(f"node {node}: {error}") from None
    idle_watts, idle_reason = dict.fromkeys(devices), None
    try:
        idle_joules = {name: growth(rows, *idle) for name, rows in devices.items()}
        seconds = idle[1] - idle[0]
        idle_watts = {name: j / seconds for name, j in _without_parts(idle_joules).items()}
    except Unavailable as error:
        idle_reason = str(error)
    content = {"node": node, "seconds": trained[1] - trained[0], "idle_reason": idle_reason}
    content["devices"] = []
    for name, device_joules in _without_parts(joules).items():
        rows = devices[name]
        during = rows[rows["seconds"].between(*trained)]
        known = during["used"].dropna()
        device = {
            "device": name,
            "source": rows["source"].iloc[0],
            "joules": device_joules,
            "idle_watts": idle_watts[name],
            "used": bool(known.any()) if len(known) else None,
            "samples": len(during),
        }
        content["devices"].append(device)
    return content


def _without_parts(joules: dict[str, float]) -> dict[str, float]:
    """Return the joules of each device without those of the devices that it contains."""
    parts = dict.fromkeys(joules, 0.0)
    for name, part in joules.items():
        if INSIDE in name:
            parts[name.rpartition(INSIDE)[0]] += part
    return {name: whole - parts[name] for name, whole in joules.items()}


def growth(rows: pd.DataFrame, begin: float, end: float) -> float:
    """Return the joules by which a counter grew between two moments.

    A counter with a range begins again with 0 when it reaches it. Between two samples the counter
    is interpolated linearly.

    Parameters
    ----------
    rows : the samples of one device, in `COLUMNS`.
    begin, end : seconds of `time.monotonic`.

    Raises
    ------
    Unavailable : there is no sample before or after these moments, the counter could not be read
        between them, it was reset, or it may have wrapped unnoticed.
    """
    import numpy as np

    if not begin < end:
        raise Unavailable("no time between the two moments")
    rows = rows.sort_values("seconds")
    device, seconds = rows["device"].iloc[0], rows["seconds"].to_numpy()
    first = np.searchsorted(seconds, begin, side="right") - 1
    last = np.searchsorted(seconds, end, side="left")
    if first < 0 or last == len(seconds):
        raise Unavailable(f"{device}: no sample {'before' if first < 0 else 'after'} these moments")
    rows = rows.iloc[first : last + 1]
    lost = rows[rows["joules"].isna()]
    if len(lost):
        raise Unavailable(str(lost["error"].iloc[0]))
    samples = rows[["seconds", "joules", "range_joules"]].itertuples(index=False)
    totals = [0.0]
    for before, after in pairwise(samples):
        interval_seconds, joules = after.seconds - before.seconds, after.joules - before.joules
        wraps = not math.isnan(after.range_joules)
        if wraps and interval_seconds > wrap_seconds(after.range_joules):
            raise Unavailable(
                f"{device}: no sample for {interval_seconds:.0f} s, so its counter may have wrapped"
            )
        if wraps and joules < 0:
            joules += after.range_joules
        most_watts = PACKAGE_WATTS if wraps else NODE_WATTS
        if joules < 0 or joules > (interval_seconds + UPDATE_SECONDS) * most_watts:
            raise Unavailable(f"{device}: its counter was reset")
        totals.append(totals[-1] + joules)
    first_joules, last_joules = np.interp([begin, end], rows["seconds"].to_numpy(), totals)
    return float(last_joules - first_joules)


def main() -> int | None:
    folder, node, seconds, sysfs = read_arguments()
    try:
        devices = counters(Path(sysfs))
    except Unavailable as missing:
        print(missing, file=sys.stderr)  # The missing counters end the ranks of this node, too.
        return 1
    # Samples follow each other faster if a counter could wrap between two of them.
    seconds = interval(seconds, devices)
    sample(folder, node, "energy", COLUMNS, lambda _: map(row, devices), seconds)
    return None


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
