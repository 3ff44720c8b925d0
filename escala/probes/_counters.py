"""Find and read the energy counters of a node.

| source | counters | unit |
|---|---|---|
| `pm_counters` | the whole node and each accelerator of a Cray: `{sysfs}/cray/pm_counters` | J |
| `rapl` | each processor package, and its memory: `{sysfs}/class/powercap/intel-rapl:*` | µJ |
| `nvml` | each NVIDIA GPU, in addition to `rapl` | mJ |

The counters of a node are complete or unavailable: part of a node is never taken for the whole. A
`pm_counters` node needs no other source. Zones of `rapl` that are contained in others (cores,
uncore, the second interface of a package by `intel-rapl-mmio`) or contain others (`psys`, the whole
platform) are not read, so that nothing counts twice. Formats: kernel documentation
`power/powercap/powercap.rst`, HPE's *User Access to Compute Node Power Data* (docs-csm), and NVML's
API reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from escala.core.errors import Unavailable
from escala.core.gpus import Driver

SYSFS = Path("/sys")
#: No device draws more; a larger growth of its counter is a reset. A processor package, whose
#: counter wraps: twice the 500 W for which the largest server processors are specified (AMD EPYC
#: 9965, Intel Xeon 6980P). Anything else: a whole node with its accelerators.
PACKAGE_WATTS, NODE_WATTS = 1000.0, 20_000.0
#: No counter is updated less often.
UPDATE_SECONDS = 1.0
#: In the name of a device, it separates the device that contains it: `node/accel0`.
INSIDE = "/"

_RAPL_FOLDER, _CRAY_FOLDER = Path("class", "powercap"), Path("cray", "pm_counters")
_REMEDY = "let this user read it, for example by a rule of udev, or run as root"


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


def interval(asked: float, found: Iterable[Counter]) -> float:
    """Return the seconds between samples: those asked for, and less where a counter may wrap.

    Four samples fit into the time in which a counter can wrap, so a late one loses nothing.
    """
    ranges = (counter.range_joules for counter in found if counter.range_joules is not None)
    return min([asked, *(wrap_seconds(joules) / 4 for joules in ranges)])


def counters(sysfs: Path = SYSFS) -> list[Counter]:
    """Return the counters of all devices of this node, each of which was read once.

    Parameters
    ----------
    sysfs : the folder where sysfs is mounted.

    Raises
    ------
    Unavailable : the node has no counters, or one of them is missing or cannot be read; the message
        names it.
    """
    found = list(_cray(sysfs / _CRAY_FOLDER)) or [*_rapl(sysfs), *_nvml()]
    for counter in found:
        read(counter)
    return found


def read(counter: Counter) -> float:
    """Return a counter in joules.

    Raises
    ------
    Unavailable : it cannot be read, or it is no number.
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
    node = folder / "energy"
    if not folder.is_dir():
        return
    yield Counter("node", "pm_counters", None, lambda: _joules_of_cray(node))
    accelerators = sorted(folder.glob("accel[0-9]*_energy"))
    if not accelerators and (one := folder / "accel_energy").exists():
        # Older nodes have one for all; without accelerators it is always 0.
        counter = Counter("node", "pm_counters", None, lambda: _joules_of_cray(one))
        accelerators = [one] if read(counter) else []
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
    folder = sysfs / _RAPL_FOLDER
    zones = {path: _text(path, "name") for path in sorted(folder.glob("intel-rapl:*"))}
    packages = {p.name: name for p, name in zones.items() if name.startswith("package-")}
    if not packages:
        raise Unavailable(
            f"this node has no energy counters: no package in {folder}, and no "
            f"{sysfs / _CRAY_FOLDER}"
        )
    _require_every_package(sysfs, packages.values())
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
            int(_text(path, "max_energy_range_uj")) / 1e6,
            lambda path=path: int((path / "energy_uj").read_text(encoding="utf-8")) / 1e6,
        )


def _require_every_package(sysfs: Path, names: Iterable[str]) -> None:
    """Refuse a node some of whose processor packages have no counter."""
    files = (sysfs / "devices" / "system" / "cpu").glob("cpu[0-9]*/topology/physical_package_id")
    present = {int(path.read_text(encoding="utf-8")) for path in files}
    counted = {int(number) for name in names if (number := re.match(r"package-(\d+)", name)[1])}
    if present - counted:
        missing = ", ".join(f"package-{number}" for number in sorted(present - counted))
        raise Unavailable(f"{missing}: no counter in {sysfs / _RAPL_FOLDER}")


def _text(zone: Path, file: str) -> str:
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
            lambda gpu=gpu: _computes(driver, gpu),
        )


def _computes(driver: Driver, gpu: object) -> bool | None:
    rates = driver.read_or_none("UtilizationRates", gpu)
    return None if rates is None else rates.gpu > 0
