"""Sample what the ranks of a run use, from one process on each node.

This module, started on a node, writes `node{n}.resources.csv`.
A value that cannot be read is empty, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from escala import cli
from escala.core.files import read_json
from escala.core.hardware import Driver
from escala.probes._sampler import (
    SAMPLE_SECONDS,
    Announced,
    GpuUse,
    Rank,
    announce,
    arguments,
    command,
    sample,
    tables,
    total,
)
from escala.probes.base import Probe, record, section, value

if TYPE_CHECKING:
    import pandas as pd

#: The columns of `node{n}.resources.csv`: one row per rank and sample. `seconds` is in
#: `time.monotonic`, one clock for all processes of a machine. `cpu_percent` is since the rank's
#: previous sample, 100 for one core; `threads_running` counts threads that run or wait for a core.
#: Switches are totals over all threads; of threads that have ended, the last sample counts. Bytes
#: are the counters of the interface, in the rank's own network namespace, for all processes that
#: share it. `gpu_percent` is the sum over the GPUs on which the rank computes, by all processes.
COLUMNS = (
    "seconds", "rank", "cpu_percent", "threads", "threads_running", "voluntary_switches",
    "involuntary_switches", "rss_bytes", "sent_bytes", "received_bytes", "gpu_percent",
    "gpu_memory_bytes",
)  # fmt: skip
_quantity = partial(value, minimum=0)
_INTERFACE = "the run's interface {}, for all processes that share it."
_RESULT = {
    "rank": _quantity("integer", "Number of the process."),
    "samples": _quantity("integer", "Samples taken during the training steps.", "samples"),
    "cpu_percent_mean": _quantity("number?", "Mean use of the processor, 100 for one core.", "%"),
    "rss_bytes_max": _quantity("integer?", "Largest resident memory.", "bytes"),
    "threads_max": _quantity("integer?", "Most threads.", "threads"),
    "threads_running_mean": _quantity(
        "number?", "Mean number of threads that ran or waited for a core.", "threads"
    ),
    "voluntary_switches_per_second": _quantity(
        "number?", "Context switches because a thread waited, of all threads.", "1/s"
    ),
    "involuntary_switches_per_second": _quantity(
        "number?", "Context switches because the core was taken away, of all threads.", "1/s"
    ),
    "sent_bytes": _quantity("integer?", f"What {_INTERFACE.format('sent')}", "bytes"),
    "sent_bytes_per_second": _quantity("number?", "The same per second.", "bytes/s"),
    "received_bytes": _quantity("integer?", f"What {_INTERFACE.format('received')}", "bytes"),
    "received_bytes_per_second": _quantity("number?", "The same per second.", "bytes/s"),
    "gpu_percent_mean": _quantity(
        "number?", "Mean use of the GPUs it computed on, for all processes that do.", "%"
    ),
    "gpu_memory_bytes_max": _quantity("integer?", "Most memory of these GPUs.", "bytes"),
}


class Resources(Probe):
    """Processor, memory and network use of each process, sampled by a process of its node."""

    captures_programs = True
    settings = section(
        "A separate run of every program, and of one epoch of every gradient-trained "
        "configuration, in which a process outside the ranks samples what they use.",
        enabled=False,
        seconds=value(
            "number",
            "Seconds from one sample to the next.",
            exclusiveMinimum=0,
            maximum=3600,
            default=SAMPLE_SECONDS,
        ),
    )
    result: ClassVar[dict] = value(
        "array?",
        "What each process used during the training steps, sampled from outside; null unless that "
        "is what the run captured.",
        items=record(_RESULT),
    )
    temporary = ("rank*.pid",)
    tabulated = True

    def program(self, interface):
        return command(__name__, self.folder, self.values["seconds"], interface)

    @contextmanager
    def around(self, process, node):
        starts = "start" in read_json(self.folder / "plan.json")
        announce(self.folder, process, node, starts=starts)
        yield

    def read(self, processes):
        import pandas as pd

        samples = pd.concat(tables(self.folder, "resources").values(), ignore_index=True)
        return summary(samples, trained(processes))


def trained(processes: list[dict]) -> dict[int, tuple[float, float] | None]:
    """Return when the training steps of each process began and ended, by its number.

    A process that only serves others has the steps of one that trains on the same machine, None if
    there is none.

    Parameters
    ----------
    processes : the measurements of each process, in their order; moments in `time.monotonic`.
    """
    own = {}
    for number, process in enumerate(processes):
        if epochs := process.get("epochs"):
            own[number] = epochs[0]["began"], epochs[-1]["began"] + epochs[-1]["train_seconds"]
    by_machine = {processes[number]["boot"]: moments for number, moments in own.items()}
    return {number: by_machine.get(each["boot"]) for number, each in enumerate(processes)} | own


class Node:
    """The ranks of a node, and what they use.

    Parameters
    ----------
    interface : the network interface whose counters are read.
    """

    def __init__(self, interface: str):
        self._interface, self._driver = interface, Driver()
        self._ranks: dict[int, Rank] = {}

    def rows(self, announced: Announced) -> Iterator[list]:
        """Yield the row of each rank that runs, in `COLUMNS`; see `_sampler.sample`."""
        for number, said in announced.items():
            if number not in self._ranks:
                self._ranks[number] = Rank(number, said["pid"], said["started"], said["starts"])
        use = gpu_use(self._driver)
        for rank in self._ranks.values():
            row = rank.row(self._interface)
            if row is not None:
                row |= rank.on_gpus(use)
                yield [row[column] for column in COLUMNS]


def gpu_use(driver: Driver) -> GpuUse:
    """Return, by process id, use in percent and memory in bytes over the process's GPUs.

    Use is of the whole GPU, by all its processes; memory is that of the process.
    """
    found: dict[int, tuple[float | None, int | None]] = {}
    for gpu in driver.gpus:
        rates = driver.read_or_none("UtilizationRates", gpu)
        for process in driver.read_or_none("ComputeRunningProcesses", gpu) or []:
            here = (rates and rates.gpu, process.usedGpuMemory)
            found[process.pid] = tuple(map(total, found.get(process.pid, (0, 0)), here))
    return found


def summary(table: pd.DataFrame, within: Mapping[int, tuple[float, float] | None]) -> list[dict]:
    """Summarise the samples of each rank taken between two moments, both included.

    The growth of a counter (context switches, bytes) is taken between the first and the last of
    those samples, and so is its rate per second. Bytes are those of the interface: ranks that share
    one have the same bytes, which must not be added.

    Parameters
    ----------
    table : samples in `COLUMNS`, with NaN for missing values.
    within : the two moments of each rank, in seconds of `time.monotonic` on its machine; None
        takes all its samples.

    Returns
    -------
    One entry per rank of the table, in their order; None for a value that was not read, or that
    needs more samples.
    """
    found = []
    for rank, samples in table.groupby("rank"):
        moments = within[rank]
        inside = samples if moments is None else samples[samples["seconds"].between(*moments)]
        found.append({"rank": int(rank), "samples": len(inside), **_summary(inside)})
    return found


def _summary(samples: pd.DataFrame) -> dict:
    means = ("cpu_percent", "threads_running", "gpu_percent")
    found = {f"{name}_mean": _known(float, samples[name].mean()) for name in means}
    most = ("rss_bytes", "threads", "gpu_memory_bytes")
    found |= {f"{name}_max": _known(int, samples[name].max()) for name in most}
    for counter in ("voluntary_switches", "involuntary_switches", "sent_bytes", "received_bytes"):
        grown, found[f"{counter}_per_second"] = _growth(samples, counter)
        if counter in _RESULT:
            found[counter] = grown
    return found


def _growth(samples: pd.DataFrame, counter: str) -> tuple[int | None, float | None]:
    """Return the growth of a counter, and its rate per second."""
    known = samples.sort_values("seconds").dropna(subset=counter)
    if len(known) < 2:
        return None, None
    grown, seconds = (float(known[c].iloc[-1] - known[c].iloc[0]) for c in (counter, "seconds"))
    return int(grown), grown / seconds


def _known(kind: type, value: float) -> float | None:
    return None if math.isnan(value) else kind(value)


def main() -> None:
    folder, node, seconds, interface = arguments()
    sample(folder, node, "resources", COLUMNS, Node(interface).rows, seconds)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
