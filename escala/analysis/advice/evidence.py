"""Read what was measured of an experiment: memory of its processes, and speed-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from escala.analysis.advice.candidates import Memory
from escala.analysis.measurements import read_run
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


def speedups(folder: Path) -> list[dict]:
    """Return the rows of the table `speedup` that have an interval; none without the table."""
    file = folder / "tables" / "speedup.csv"
    if not file.is_file():
        return []
    table = pd.read_csv(file, keep_default_na=False, na_values=[""])
    return table[table["speedup_low"].notna()].to_dict("records")


def measured_speedup(
    table: Sequence[Mapping],
    task: tuple[str, str],
    own: Configuration,
    baseline: Configuration,
    rows: int,
) -> dict | None:
    """Return the measured speed-up of a configuration over a baseline, with the number of pairs.

    Parameters
    ----------
    table : the rows of `speedups`.
    task : dataset and workload.
    rows : of a step of all ranks together, in both.
    """
    for row in table:
        names = row["dataset"], row["workload"], *(row[name] for name in Configuration._fields)
        reference = tuple(row[name] for name in _REFERENCE)
        batches = {row["global_batch"], row["reference_global_batch"]}
        if (names, reference, batches) == ((*task, *own), tuple(baseline), {rows}):
            ends = {"estimate": "", "low": "_low", "high": "_high"}
            found = {name: float(row[f"speedup{end}"]) for name, end in ends.items()}
            return found | {"pairs": int(row["pairs"])}
    return None
