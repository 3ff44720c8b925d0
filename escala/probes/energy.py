"""Measure the energy of the nodes of a run, from one process on each node.

`python -m escala.probes.energy FOLDER --node N` reads the energy counters of a node until the ranks
that have announced themselves in a run's `ranks/` folder have ended, and writes
`node{n}.energy.csv` there. Before a rank does any work it sleeps: the machine cools down, and the
power of an idle node is measured. Energy that was not measured is unavailable with the reason. It
is never 0, and no part of a node stands for the whole.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
import time
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from escala import cli
from escala.core import clock
from escala.core.children import die_with_parent
from escala.core.errors import Unavailable
from escala.core.files import read_json, write_json
from escala.probes._counters import (
    INSIDE,
    NODE_WATTS,
    PACKAGE_WATTS,
    SYSFS,
    UPDATE_SECONDS,
    Counter,
    counters,
    interval,
    wrap_seconds,
)
from escala.probes._counters import read as read_counter
from escala.probes.base import Probe, section

if TYPE_CHECKING:  # The sampler runs beside the ranks, so it does not load what it does not need.
    import pandas as pd

SAMPLE_SECONDS = 0.5
COOL_DOWN_SECONDS = 60
REPEATS = 3

#: The columns of `node{n}.energy.csv`: one row for each counter and sample.
COLUMNS = ("seconds", "device", "source", "joules", "range_joules", "used", "error")

_DEVICE = {
    "device": {
        "description": "Device of the node; `node` has none of its accelerators.",
        "type": "string",
    },
    "source": {"description": "The kind of its counter.", "type": "string"},
    "joules": {
        "description": "Energy from the first to the last training step.",
        "unit": "J",
        "type": "number",
    },
    "idle_watts": {
        "description": "Power during the second half of the cool-down; null if not measured.",
        "unit": "W",
        "type": ["number", "null"],
    },
    "used": {
        "description": "Whether it computed in any sample of the training steps; null if that is "
        "not known.",
        "type": ["boolean", "null"],
    },
    "samples": {
        "description": "Samples during the training steps.",
        "unit": "samples",
        "type": "integer",
        "minimum": 0,
    },
}
_NODE = {
    "node": {"description": "Number of the node.", "type": "integer", "minimum": 0},
    "seconds": {
        "description": "Time from the first to the last training step.",
        "unit": "s",
        "type": "number",
        "exclusiveMinimum": 0,
    },
    "idle_reason": {
        "description": "Why the power of the idle node was not measured.",
        "type": ["string", "null"],
    },
    "devices": {
        "description": "The devices whose energy adds up to that of the node.",
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": list(_DEVICE),
            "properties": _DEVICE,
        },
    },
}


class Energy(Probe):
    """The energy of every device of the nodes during the training steps, and their idle power."""

    scope = "node"
    kinds = frozenset({"steps", "command"})
    settings = section(
        "Separate runs of every program, and of one epoch of every gradient-trained configuration, "
        "in which one process on each node reads its energy counters. Without complete "
        "counters these runs are unavailable.",
        enabled=False,
        repeats={
            "description": "Energy runs of each configuration. They are spread evenly among the "
            "repeats of the timing runs, the first before and the last after all of them.",
            "type": "integer",
            "minimum": 1,
            "maximum": 1000,
            "default": REPEATS,
            "of_run": False,
        },
        seconds={
            "description": "Seconds from one sample to the next; fewer where a counter could "
            "otherwise wrap unseen.",
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 60,
            "default": SAMPLE_SECONDS,
        },
        cool_down_seconds={
            "description": "Seconds for which the nodes of a run are idle before it. The idle "
            "power is that of their second half; with 0 it is not measured.",
            "type": "number",
            "minimum": 0,
            "maximum": 3600,
            "default": COOL_DOWN_SECONDS,
        },
        sysfs={
            "description": "Folder where sysfs is mounted on the nodes; in a container this may be "
            "another, such as /host/sys.",
            "type": "string",
            "minLength": 1,
            "default": str(SYSFS),
        },
        power_model={
            "description": "Your own model of the power of a node. The energy of a configuration "
            "that was not measured is estimated by it from the timing runs; without it, it is "
            "unavailable.",
            "type": "object",
            "additionalProperties": False,
            "required": ["node_watts", "core_watts"],
            "properties": {
                "node_watts": {
                    "description": "Power of an idle node, all its devices together, in W.",
                    "type": "number",
                    "minimum": 0,
                },
                "core_watts": {
                    "description": "Power that each core of a run adds while it trains, in W.",
                    "type": "number",
                    "minimum": 0,
                },
            },
            "of_run": False,
        },
        grams_co2_per_kwh={
            "description": "Grams of CO₂ that are emitted for each kWh of your electricity. "
            "Without it, the table has no emissions.",
            "type": "number",
            "minimum": 0,
            "of_run": False,
        },
    )
    result: ClassVar[dict] = {
        "description": "Energy of the nodes during the training steps; null unless that is what "
        "the run captured.",
        "type": ["array", "null"],
        "minItems": 1,
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": list(_NODE),
            "properties": _NODE,
        },
    }
    temporary = ("rank*.pid",)
    tabulated = True
    compared = True

    def program(self, interface):
        options = ["--sysfs", self.values["sysfs"], "--seconds", f"{self.values['seconds']:g}"]
        return [sys.executable, "-m", __name__, str(self.folder), *options]

    @contextmanager
    def around(self, process, node):
        counters(Path(self.values["sysfs"]))  # Without them nothing is trained.
        pause = self.values["cool_down_seconds"]
        now = time.monotonic()
        idle = [now + pause / 2, now + pause]
        announce(self.folder, process, node, idle)
        time.sleep(pause)
        yield
        # A sample after the last step is needed, and the launcher's end ends the sampler.
        time.sleep(2 * self.values["seconds"])

    def read(self, processes):
        return summary(read(self.folder), moments(self.folder, processes))


def announce(folder: Path, rank: int, node: int, idle: list[float]) -> None:
    """Write `rank{rank}.pid`, by which the sampler of `node` finds this process.

    Parameters
    ----------
    idle : when the process sleeps, in seconds of `time.monotonic`.
    """
    content = {"node": node, "pid": os.getpid(), "started": clock.started(), "idle": idle}
    write_json(folder / f"rank{rank}.pid", content, durable=False)


def moments(folder: Path, processes: list[dict]) -> dict[int, dict[str, tuple[float, float]]]:
    """Return when each machine was `idle` and when it was `trained` on, in `time.monotonic`.

    A machine is idle while all processes on it sleep. Training lasts from the first step to the
    last step of any of them. A process that only serves others makes no steps.

    Parameters
    ----------
    folder : the run's `ranks/` folder, in which each process has announced itself.
    processes : the measurements of each process, in their order.

    Returns
    -------
    The two pairs of moments, by the first node on the machine. Several nodes of a cluster that is
    emulated on one machine have the same counters, which count once.

    Raises
    ------
    Unavailable : no process on a machine makes training steps.
    """
    machines: dict[str, list[tuple[dict, dict]]] = {}
    for number, process in enumerate(processes):
        announced = read_json(folder / f"rank{number}.pid")
        machines.setdefault(process["boot"], []).append((announced, process))
    found = {}
    for members in machines.values():
        begins, ends = zip(*(announced["idle"] for announced, _ in members), strict=True)
        epochs = [epoch for _, process in members for epoch in process.get("epochs", ())]
        node = min(announced["node"] for announced, _ in members)
        if not epochs:
            raise Unavailable(f"node {node} makes no training steps, which its clock could time")
        found[node] = {
            "idle": (max(begins), min(ends)),
            "trained": (
                min(epoch["began"] for epoch in epochs),
                max(epoch["began"] + epoch["train_seconds"] for epoch in epochs),
            ),
        }
    return found


def sample(folder: Path, node: int, found: list[Counter], seconds: float = SAMPLE_SECONDS) -> Path:
    """Write a row for each counter of the node every `seconds`, until its ranks have ended.

    Where a counter could wrap between two samples, they come sooner after each other.

    If no rank of the node announces itself, this continues until it is stopped.

    Returns
    -------
    The written table, with `COLUMNS`. `seconds` is in `time.monotonic`, one clock for all processes
    of a machine, which is never set. `joules` is the counter as it was read, empty with the reason
    in `error` if it could not be read. `used` is 1 if the device computes, 0 if it does not, and
    empty if that is not known.
    """
    output, seconds = folder / f"node{node}.energy.csv", interval(seconds, found)
    begin = time.monotonic()
    with open(output, "w", newline="", buffering=1) as handle:
        writer = csv.writer(handle)
        writer.writerow(COLUMNS)
        for number in count(1):
            ended = _ended(folder, node)
            writer.writerows(_row(counter) for counter in found)
            if ended:
                return output
            time.sleep(max(0.0, begin + number * seconds - time.monotonic()))


def _row(counter: Counter) -> tuple:
    """Return the row of a counter at this moment."""
    joules, error = "", ""
    seconds = time.monotonic()
    try:
        joules = repr(read_counter(counter))
    except Unavailable as missing:
        error = str(missing)
    range_joules = "" if counter.range_joules is None else repr(counter.range_joules)
    used = counter.read_use()
    state = "" if used is None else int(used)
    return f"{seconds:.6f}", counter.device, counter.source, joules, range_joules, state, error


def _ended(folder: Path, node: int) -> bool:
    """Return whether all ranks of a node that have announced themselves have ended."""
    announced = [read_json(path) for path in folder.glob("rank*.pid")]
    own = [each for each in announced if each["node"] == node]
    return bool(own) and not any(_runs(each["pid"], each["started"]) for each in own)


def _runs(pid: int, started: float) -> bool:
    """Return whether a process runs; another process may have its number by now."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" and clock.started(pid) == started
    except (FileNotFoundError, ProcessLookupError):
        return False


def read(folder: Path) -> dict[int, pd.DataFrame]:
    """Return the samples of each node of a run by its number, in `COLUMNS`."""
    import pandas as pd

    return {
        int(path.name.partition(".")[0].removeprefix("node")): pd.read_csv(path)
        for path in sorted(folder.glob("node*.energy.csv"))
    }


def summary(
    samples: dict[int, pd.DataFrame], within: dict[int, dict[str, tuple[float, float]]]
) -> list[dict]:
    """Return the energy of each node, in the form of `Energy.result`.

    Parameters
    ----------
    samples : the result of `read`.
    within : the result of `moments`; other nodes are left out.

    Raises
    ------
    Unavailable : the energy of a node is not known completely; the message names the counter.
    """
    missing = sorted(within.keys() - samples.keys())
    if missing:
        raise Unavailable(f"node {missing[0]} has no samples of energy")
    return [_of_node(node, samples[node], **within[node]) for node in sorted(within)]


def _of_node(
    node: int,
    samples: pd.DataFrame,
    trained: tuple[float, float],
    idle: tuple[float, float],
) -> dict:
    devices = dict(iter(samples.groupby("device", sort=False)))
    try:
        joules = {name: grown(rows, *trained) for name, rows in devices.items()}
        if not joules:
            raise Unavailable("no counter was read")
        for name in (name for name, each in joules.items() if not each):
            raise Unavailable(f"{name}: its counter did not grow")
    except Unavailable as error:
        raise Unavailable(f"node {node}: {error}") from None
    idle_watts, idle_reason = dict.fromkeys(devices), None
    try:
        idle_joules = {name: grown(rows, *idle) for name, rows in devices.items()}
        idle_watts = {n: each / (idle[1] - idle[0]) for n, each in _apart(idle_joules).items()}
    except Unavailable as error:
        idle_reason = str(error)
    return {
        "node": node,
        "seconds": trained[1] - trained[0],
        "idle_reason": idle_reason,
        "devices": [
            {
                "device": name,
                "source": devices[name]["source"].iloc[0],
                "joules": each,
                "idle_watts": idle_watts[name],
                **_in_use(devices[name][devices[name]["seconds"].between(*trained)]),
            }
            for name, each in _apart(joules).items()
        ],
    }


def _apart(values: dict[str, float]) -> dict[str, float]:
    """Return the values of devices without those of the devices that they contain."""
    return {
        name: value - sum(part for inner, part in values.items() if inner.startswith(name + INSIDE))
        for name, value in values.items()
    }


def _in_use(rows: pd.DataFrame) -> dict:
    known = rows["used"].dropna()
    return {"used": bool(known.any()) if len(known) else None, "samples": len(rows)}


def grown(rows: pd.DataFrame, begin: float, end: float) -> float:
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
    steps = [_step(device, *pair) for pair in pairwise(samples)]
    total = np.concatenate([[0.0], np.cumsum(steps)])
    before, after = np.interp([begin, end], rows["seconds"].to_numpy(), total)
    return float(after - before)


def _step(device: str, before: tuple, after: tuple) -> float:
    """Return the joules by which a counter grew from one sample to the next."""
    seconds, joules = after.seconds - before.seconds, after.joules - before.joules
    wraps = not math.isnan(after.range_joules)
    if wraps:
        if seconds > wrap_seconds(after.range_joules):
            raise Unavailable(
                f"{device}: no sample for {seconds:.0f} s, in which it may have wrapped"
            )
        if joules < 0:
            joules += after.range_joules
    most_watts = PACKAGE_WATTS if wraps else NODE_WATTS
    if joules < 0 or joules > (seconds + UPDATE_SECONDS) * most_watts:
        raise Unavailable(f"{device}: its counter was reset")
    return joules


def main() -> None:
    die_with_parent()
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="the run's ranks/ folder")
    node = int(os.environ.get("SLURM_NODEID", 0))
    parser.add_argument(
        "--node", type=int, default=node, help="its number, from 0; default: SLURM_NODEID"
    )
    parser.add_argument("--sysfs", type=Path, default=SYSFS, help="where sysfs is mounted")
    parser.add_argument("--seconds", type=_positive, default=SAMPLE_SECONDS, help="between samples")
    arguments = parser.parse_args()
    try:
        found = counters(arguments.sysfs)
    except Unavailable as missing:
        parser.exit(1, f"{missing}\n")  # The ranks of this node end for the same reason.
    sample(arguments.folder, arguments.node, found, arguments.seconds)


def _positive(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return seconds


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
