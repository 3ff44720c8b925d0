"""Measure the energy of the nodes of a run, from one process on each node.

This module, started on a node, reads its energy counters and writes `node{n}.energy.csv`. Before a
rank does any work it sleeps: the machine cools down, and the power of an idle node is measured.
Energy that was not measured is unavailable with the reason. It is never 0, and no part of a node
stands for the whole.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from escala import cli
from escala.core.errors import Unavailable
from escala.core.files import read_json
from escala.probes._counters import SYSFS, Counter, counters, interval, summary
from escala.probes._counters import read as read_counter
from escala.probes._sampler import SAMPLE_SECONDS, announce, arguments, command, sample, tables
from escala.probes.base import Probe, record, section, value

COOL_DOWN_SECONDS = 60
REPEATS = 3

#: The columns of `node{n}.energy.csv`: one row for each counter and sample. `seconds` is in
#: `time.monotonic`, one clock for all processes of a machine. `joules` is the counter as it was
#: read, empty with the reason in `error` if it could not be read. `used` is 1 if the device
#: computes, 0 if it does not, and empty if that is not known.
COLUMNS = ("seconds", "device", "source", "joules", "range_joules", "used", "error")

_DEVICE = {
    "device": value("string", "Device of the node; `node` has none of its accelerators."),
    "source": value("string", "The kind of its counter."),
    "joules": value("number", "Energy from the first to the last training step.", "J"),
    "idle_watts": value(
        "number?", "Power during the second half of the cool-down; null if not measured.", "W"
    ),
    "used": value(
        "boolean?",
        "Whether it computed in any sample of the training steps; null if that is not known.",
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
        items=record(_DEVICE),
    ),
}
_POWER = {
    "node_watts": value(
        "number", "Power of an idle node, all its devices together, in W.", minimum=0
    ),
    "core_watts": value(
        "number", "Power that each core of a run adds while it trains, in W.", minimum=0
    ),
}


class Energy(Probe):
    """The energy of every device of the nodes during the training steps, and their idle power."""

    captures_programs = True
    settings = section(
        "Separate runs of every program, and of one epoch of every gradient-trained configuration, "
        "in which one process on each node reads its energy counters. Without complete "
        "counters these runs are unavailable.",
        enabled=False,
        repeats=value(
            "integer",
            "Energy runs of each configuration. They are spread evenly among the repeats of the "
            "timing runs, the first before and the last after all of them.",
            minimum=1,
            maximum=1000,
            default=REPEATS,
            determines_run=False,
        ),
        seconds=value(
            "number",
            "Seconds from one sample to the next; fewer if a counter could otherwise overflow "
            "unseen.",
            exclusiveMinimum=0,
            maximum=60,
            default=SAMPLE_SECONDS,
        ),
        cool_down_seconds=value(
            "number",
            "Seconds for which the nodes of a run are idle before it. The idle power is that of "
            "their second half; with 0 it is not measured.",
            minimum=0,
            maximum=3600,
            default=COOL_DOWN_SECONDS,
        ),
        sysfs=value(
            "string",
            "Folder where sysfs is mounted on the nodes; in a container this may be another, such "
            "as /host/sys.",
            minLength=1,
            default=str(SYSFS),
        ),
        power_model={
            "description": "Your own model of the power of a node. The energy of a configuration "
            "that was not measured is estimated by it from the timing runs; without it, it is "
            "unavailable.",
            **record(_POWER),
            "determines_run": False,
        },
        grams_co2_per_kwh=value(
            "number",
            "Grams of CO₂ that are emitted for each kWh of your electricity. Without it, the table "
            "has no emissions.",
            minimum=0,
            determines_run=False,
        ),
    )
    result: ClassVar[dict] = value(
        "array?",
        "Energy of the nodes during the training steps; null unless that is what the run captured.",
        minItems=1,
        items=record(_NODE),
    )
    temporary = ("rank*.pid",)
    tabulated = True
    compared = True

    def program(self, interface):
        return command(__name__, self.folder, self.values["seconds"], self.values["sysfs"])

    @contextmanager
    def around(self, process, node):
        counters(Path(self.values["sysfs"]))  # Without them nothing is trained.
        pause = self.values["cool_down_seconds"]
        now = time.monotonic()
        # Its second half, in seconds of `time.monotonic`.
        announce(self.folder, process, node, idle=[now + pause / 2, now + pause])
        time.sleep(pause)
        yield
        # A sample after the last step is needed, and the launcher's end ends the sampler.
        time.sleep(2 * self.values["seconds"])

    def read(self, processes):
        return summary(tables(self.folder, "energy"), moments(self.folder, processes))


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
        first = min(epoch["began"] for epoch in epochs)
        last = max(epoch["began"] + epoch["train_seconds"] for epoch in epochs)
        found[node] = {"idle": (max(begins), min(ends)), "trained": (first, last)}
    return found


def row(counter: Counter) -> tuple:
    """Return the row of a counter at this moment, in `COLUMNS`."""
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


def main() -> int | None:
    folder, node, asked, sysfs = arguments()
    try:
        found = counters(Path(sysfs))
    except Unavailable as missing:
        print(missing, file=sys.stderr)  # The ranks of this node end for the same reason.
        return 1
    # Samples come sooner after each other where a counter could wrap between two.
    seconds = interval(asked, found)
    sample(folder, node, "energy", COLUMNS, lambda _: map(row, found), seconds)
    return None


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
