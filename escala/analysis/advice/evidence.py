"""Read what was measured of an experiment: memory of its processes, and speed-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from escala.analysis.advice.candidates import Candidate, Memory
from escala.analysis.decisive import Ratio, as_best, over_sessions
from escala.analysis.measurements import read_run
from escala.analysis.statistics import Interval
from escala.core.files import read_json
from escala.core.readable import counted
from escala.experiment.references import Configuration

_GIB = 2**30
#: Where tables name the main reference of a row.
_REFERENCE = [f"reference_{name}" for name in Configuration._fields]


def resource_files(folder: Path) -> list[Path]:
    """Return the runs in the folder of an experiment that measured what processes use."""
    return sorted(folder.glob("runs/*/*/*/*/*/*/resources/run.json"))


def memories(folder: Path) -> dict[tuple[str, str, str], Memory]:
    """Return the memory of the largest process, by dataset, workload and variant.

    The resident memory of a process includes pages of libraries that it shares with others.
    """
    largest: dict[tuple[str, str, str], list[int]] = {}
    for file in resource_files(folder):
        run = read_run(file)
        found = [each["rss_bytes_max"] for each in run.get("resources") or ()]
        known = [number for number in found if number is not None]
        if run["status"] == "ok" and known:
            names = run["dataset"], run["workload"], run["variant"]
            largest.setdefault(names, []).append(max(known))
    return {
        names: Memory(max(each), f"measured in {counted(len(each), 'run')}", True)
        for names, each in largest.items()
    }


def memory_of(
    measured: Mapping[tuple[str, str, str], Memory],
    dataset: str,
    workload: str,
    variant: str,
    memory_gib: float,
) -> Memory:
    """Return the memory of a process: measured for this variant, else for any, else requested.

    Parameters
    ----------
    memory_gib : that the experiment asks a scheduler for, for each process.
    """
    exact = measured.get((dataset, workload, variant))
    if exact is not None:
        return exact
    others = [each for names, each in measured.items() if names[:2] == (dataset, workload)]
    if others:
        found = max(others, key=lambda each: each.bytes)
        return found._replace(source=f"{found.source} of another variant")
    asked = int(memory_gib * _GIB)
    return Memory(asked, "memory_gib of the experiment, which no run has checked", False)


class Measured(NamedTuple):
    """A measured ratio of the times of an epoch, as that by which the page answers.

    Attributes
    ----------
    sessions : over which it is, with what they differ by; None for the current runs.
    """

    ratio: Ratio
    verdict: str
    reference: Configuration
    sessions: int | None = None

    @property
    def interval(self) -> Interval:
        return Interval(self.ratio.value, self.ratio.low, self.ratio.high)


def speedups(folder: Path, cpu: str | None = None) -> list[dict]:
    """Return the rows of the table `speedup` that have an interval; none without the table.

    Parameters
    ----------
    cpu : the model for which the advice is; rows that were measured on another one are left out.
    """
    file = folder / "tables" / "speedup.csv"
    if not file.is_file():
        return []
    table = pd.read_csv(file, keep_default_na=False, na_values=[""])
    rows = table[table["speedup_low"].notna()].to_dict("records")
    return [row for row in rows if cpu is None or _cpu(folder, row) in (None, cpu)]


def _cpu(folder: Path, row: Mapping) -> str | None:
    """Return the model of the CPU of a configuration's first run; None if it is not known."""
    names = [str(row.get(name)) for name in ("dataset", "workload", *Configuration._fields)]
    files = sorted((folder / "runs").joinpath(*names).glob("rep*/run.json"))
    return (read_json(files[0]).get("machine") or {}).get("cpu") if files else None


def measured_ratios(
    table: Sequence[Mapping], task: tuple[str, str], candidates: Mapping[Configuration, Candidate]
) -> dict[Configuration, Measured]:
    """Return the measured ratio of each candidate to its first reference that is a candidate too.

    Both have the rows in a step that candidates have.

    Parameters
    ----------
    table : the rows of `speedups`.
    task : dataset and workload.
    """
    found: dict[Configuration, Measured] = {}
    for row in table:
        if (row["dataset"], row["workload"]) != task:
            continue
        names = Configuration(*(row[name] for name in Configuration._fields))
        reference = Configuration(*(row[name] for name in _REFERENCE))
        if names in found or not {names, reference} <= candidates.keys():
            continue
        batches = row["global_batch"], row["reference_global_batch"]
        if batches == (candidates[names].plan.rows, candidates[reference].plan.rows):
            found[names] = _measured(row, reference)
    return found


def _measured(row: Mapping, reference: Configuration) -> Measured:
    """Return the ratio that decides on a row of the table `speedup` with equal batches."""
    if judged := over_sessions(row):
        verdict, ratio, sessions = judged
        return Measured(ratio, verdict, reference, sessions)
    ends = (1 / float(row[name]) for name in ("speedup", "speedup_high", "speedup_low"))
    verdict, ratio = as_best(row["verdict"], Ratio(*ends, int(row["pairs"])), row)
    return Measured(ratio, verdict, reference)


def measured_speedup(measured: Measured | None, baseline: Configuration) -> dict | None:
    """Return the measured speed-up over a baseline with the number of pairs; None without one."""
    if measured is None or measured.reference != baseline:
        return None
    ratio = measured.ratio
    speedup = Interval(*(1 / end for end in (ratio.value, ratio.high, ratio.low)))
    return speedup._asdict() | {"pairs": ratio.pairs}
