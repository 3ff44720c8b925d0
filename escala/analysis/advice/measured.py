"""Prefer what was measured of an experiment to what is predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from escala.analysis.advice.candidates import ONLY_STEPS, Candidate, ProcessMemory
from escala.analysis.advice.comparison import Comparison, Measured
from escala.analysis.cost_model.calibration import LEVEL
from escala.analysis.cost_model.predict import interval
from escala.analysis.measurements import read_run
from escala.analysis.statistics import Interval
from escala.analysis.verdicts import Ratio, as_best, over_sessions
from escala.core.files import read_json
from escala.core.readable import counted
from escala.experiment.references import Configuration

#: Where the runs of an experiment are that measured what processes use.
RESOURCES = "runs/*/*/*/*/*/*/resources/run.json"
#: Where tables name the main reference of a row.
_REFERENCE = [f"reference_{name}" for name in Configuration._fields]


def memories(folder: Path) -> dict[tuple[str, str, str], ProcessMemory]:
    """Return the memory of the largest process, by dataset, workload and variant.

    The resident memory of a process includes pages of libraries that it shares with others.

    Parameters
    ----------
    folder : of the experiment.
    """
    largest: dict[tuple[str, str, str], list[int]] = {}
    for file in sorted(folder.glob(RESOURCES)):
        run = read_run(file)
        found = [each["rss_bytes_max"] for each in run.get("resources") or ()]
        known = [number for number in found if number is not None]
        if run["status"] == "ok" and known:
            names = run["dataset"], run["workload"], run["variant"]
            largest.setdefault(names, []).append(max(known))
    return {
        names: ProcessMemory(max(each), f"measured in {counted(len(each), 'run')}", True)
        for names, each in largest.items()
    }


def memory_of(
    measured: Mapping[tuple[str, str, str], ProcessMemory],
    dataset: str,
    workload: str,
    variant: str,
    memory_gib: float,
) -> ProcessMemory:
    """Return the memory of a process: measured for this variant, else for any, else requested.

    Parameters
    ----------
    memory_gib : what the experiment requests from a scheduler for each process.
    """
    if (dataset, workload, variant) in measured:
        return measured[dataset, workload, variant]
    others = [each for names, each in measured.items() if names[:2] == (dataset, workload)]
    if others:
        found = max(others, key=lambda each: each.bytes)
        return found._replace(source=f"{found.source} of another variant")
    asked = int(memory_gib * 2**30)
    return ProcessMemory(asked, "memory_gib of the experiment, which no run has checked", False)


def speedups(folder: Path, cpu: str | None = None) -> list[dict]:
    """Return the rows of the table `speedup` that have an interval; none without the table.

    Parameters
    ----------
    folder : of the experiment.
    cpu : the model for which the advice is; rows that were measured on another one are left out.
    """
    file = folder / "tables" / "speedup.csv"
    if not file.is_file():
        return []
    table = pd.read_csv(file, keep_default_na=False, na_values=[""])
    rows = table[table["speedup_low"].notna()].to_dict("records")
    return [row for row in rows if cpu is None or _cpu(folder, row) in (None, cpu)]


def machine_of(folder: Path) -> dict:
    """Return the machine of the newest timing run of an experiment; empty without a run."""
    files = (folder / "runs").glob("*/*/*/*/*/*/rep*/run.json")
    newest = max(files, key=lambda file: file.stat().st_mtime, default=None)
    return (newest and read_json(newest).get("machine")) or {}


def _cpu(folder: Path, row: Mapping) -> str | None:
    """Return the model of the CPU of a configuration's first run; None if it is not known."""
    names = [str(row.get(name)) for name in ("dataset", "workload", *Configuration._fields)]
    files = sorted((folder / "runs").joinpath(*names).glob("rep*/run.json"))
    return (read_json(files[0]).get("machine") or {}).get("cpu") if files else None


def with_measured(
    candidates: Sequence[Candidate], table: Sequence[Mapping], task: tuple[str, str]
) -> list[Candidate]:
    """Return candidates whose seconds follow measured ratios, where there are some.

    A candidate then takes the seconds of its reference multiplied by the measured ratio. Its draws
    have the interval of that ratio.

    Parameters
    ----------
    table : the rows of `speedups`.
    task : dataset and workload.
    """
    predicted = {each.configuration: each for each in candidates}
    ratios = _ratios(table, task, predicted)
    found: dict[Configuration, Candidate] = {}

    def resolved(names: Configuration, above: frozenset[Configuration]) -> Candidate:
        each, measured = predicted[names], ratios.get(names)
        if measured is None or measured.reference in above:
            return each
        if names not in found:
            reference = resolved(measured.reference, above | {names})
            seconds = reference.seconds * drawn(measured.interval, len(each.seconds))
            as_predicted = interval(each.seconds / predicted[measured.reference].seconds)
            found[names] = replace(
                each,
                seconds=seconds,
                job=each.job - each.seconds + seconds,
                compared=Comparison(measured, as_predicted),
                extrapolated=tuple(note for note in each.extrapolated if note == ONLY_STEPS),
            )
        return found[names]

    return [resolved(each.configuration, frozenset([each.configuration])) for each in candidates]


def _ratios(
    table: Sequence[Mapping], task: tuple[str, str], candidates: Mapping[Configuration, Candidate]
) -> dict[Configuration, Measured]:
    """Return the measured ratio of each candidate to its first reference that is a candidate too.

    Both have the rows in a step that candidates have.
    """
    found: dict[Configuration, Measured] = {}
    for row in table:
        names = Configuration(*(row[name] for name in Configuration._fields))
        reference = Configuration(*(row[name] for name in _REFERENCE))
        other_task = (row["dataset"], row["workload"]) != task
        if other_task or names in found or not {names, reference} <= candidates.keys():
            continue
        batches = row["global_batch"], row["reference_global_batch"]
        if batches == (candidates[names].setup.rows, candidates[reference].setup.rows):
            found[names] = _measured(row, reference)
    return found


def _measured(row: Mapping, reference: Configuration) -> Measured:
    """Return the ratio that decides on a row of the table `speedup` with equal batches."""
    if judged := over_sessions(row):
        verdict, ratio, sessions = judged
        return Measured(ratio, verdict, reference, sessions)
    ends = (1 / float(row[name]) for name in ("speedup", "speedup_high", "speedup_low"))
    verdict, ratio = as_best(row["verdict"], Ratio(*ends, int(row["matches"])), row)
    return Measured(ratio, verdict, reference)


def drawn(ratio: Interval, number: int) -> np.ndarray:
    """Return draws with the median of a ratio, and its ends as those of an interval of `LEVEL`.

    Logarithms of ratios are taken to be normal on either side of the median.
    """
    ranks = np.random.default_rng(0).permutation(np.linspace(0, 1, number))
    normal = stats.norm.ppf(np.clip(ranks, 0.5 / number, 1 - 0.5 / number))
    normal /= stats.norm.ppf((1 + LEVEL) / 2)
    down, up = np.log(ratio.estimate / ratio.low), np.log(ratio.high / ratio.estimate)
    return ratio.estimate * np.exp(np.where(normal < 0, down, up) * normal)
