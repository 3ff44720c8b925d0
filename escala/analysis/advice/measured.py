"""Read what was measured of an experiment, and let it count before what is predicted.

The table `best_use` decides where the goal is time. Elsewhere a ratio of paired runs counts if it
has a verdict: of two configurations directly, else by independent draws of each of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from escala.analysis.advice.candidates import (
    ONLY_STEPS,
    Candidate,
    Paired,
    ProcessMemory,
    Ratios,
    draw,
    names_of,
)
from escala.analysis.best_use import BestUse, best_uses
from escala.analysis.comparable import CONFIGURATION, unlike_machines
from escala.analysis.cost_model.predict import interval
from escala.analysis.measurements import read_run
from escala.analysis.statistics import Interval
from escala.analysis.tables import read_table, records
from escala.core.files import read_json
from escala.core.readable import with_noun
from escala.experiment.runs import Configuration

#: Where the runs of an experiment are that measured what processes use.
RESOURCES = "runs/*/*/*/*/*/*/resources/run.json"
TABLES = ("best_use", "configurations", "pooled", "speedup")


@dataclass(frozen=True)
class Measured:
    """What was measured of an experiment.

    Attributes
    ----------
    best_uses : those of its tasks.
    speedup, configurations : rows of these tables; of `speedup` those that are judged by times of
        an epoch.
    memory : of the largest process, by dataset, workload and variant.
    """

    best_uses: Sequence[BestUse] = ()
    speedup: Sequence[Mapping] = ()
    configurations: Sequence[Mapping] = ()
    memory: Mapping[tuple[str, str, str], ProcessMemory] = field(default_factory=dict)

    def best_use(self, task: tuple[str, str], network: str, first: Configuration) -> BestUse | None:
        """Return the best use of a task over a network, with the updates of a configuration.

        Parameters
        ----------
        first : the configuration whose rows in a step count.
        """
        for use in self.best_uses:
            names = [Configuration(*row.names[2:]) for row in (use, *use.alternatives)]
            over = {one.network for one in names if not one.layout.startswith("1x")}
            if (use.dataset, use.workload) == task and over <= {network} and first in names:
                return use
        return None

    def ratios(self, task: tuple[str, str], rows: Mapping[Configuration, int]) -> Ratios:
        """Return the measured ratios of two configurations of a task, with their rows in a step."""
        ratios: dict[tuple[Configuration, Configuration], Paired] = {}
        for row in self.speedup:
            names, reference = names_of(row), names_of(row, "reference_")
            batches = row["global_batch"], row["reference_global_batch"]
            if (row["dataset"], row["workload"]) == task and batches == (
                rows.get(names), rows.get(reference)
            ):  # fmt: skip
                ratio = Interval(*(row[f"ratio{end}"] for end in ("", "_low", "_high")))
                sessions = row["sessions"] if row["over_sessions"] else None
                ratios[names, reference] = Paired(
                    reference, ratio, row["verdict"], row["matches"], sessions
                )
        return ratios


def read_measured(folder: Path, machine: Mapping) -> Measured:
    """Read what was measured of an experiment on machines of one kind.

    Parameters
    ----------
    folder : of the experiment; tables that it lacks are taken for empty.
    machine : for which the advice is, as in run.json; empty for any.
    """
    tables = {
        name: read_table(folder / "tables", name)
        for name in TABLES
        if (folder / "tables" / f"{name}.csv").is_file()
    }
    for name in tables.keys() - {"pooled"}:
        alike = []
        for row in records(tables[name]):
            # Of a configuration, its first run tells the machine.
            runs = (folder / "runs").joinpath(*(row[key] for key in CONFIGURATION))
            files = sorted(runs.glob("rep*/run.json")) if machine else []
            ranks = read_json(files[0])["ranks"] if files else None
            alike.append(not (ranks and unlike_machines([machine], ranks["machines"][:1])))
        tables[name] = tables[name][np.array(alike, bool)]
    uses = []
    if "best_use" in tables:
        rows = records(tables["best_use"])
        labels = {
            f"{prefix}label": [str(names_of(row, prefix)) for row in rows]
            for prefix in ("", "alternative_")
        }
        uses = best_uses(tables["best_use"].assign(**labels), tables)
    measured = {name: records(tables[name]) for name in tables.keys() - {"pooled"}}
    speedup = [
        row
        for row in measured.get("speedup", ())
        if row["ratio_low"] is not None and row["decides"] and row["basis"] == "epoch"
    ]
    return Measured(uses, speedup, measured.get("configurations", ()), memories(folder))


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
        used = [process["rss_bytes_max"] for process in run.get("resources") or ()]
        known = [number for number in used if number is not None]
        if run["status"] == "ok" and known:
            names = run["dataset"], run["workload"], run["variant"]
            largest.setdefault(names, []).append(max(known))
    return {
        names: ProcessMemory(max(sizes), f"measured in {with_noun(len(sizes), 'run')}", True)
        for names, sizes in largest.items()
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
    others = [memory for names, memory in measured.items() if names[:2] == (dataset, workload)]
    if others:
        largest = max(others, key=lambda memory: memory.bytes)
        return largest._replace(source=f"{largest.source} of another variant")
    requested = int(memory_gib * 2**30)
    return ProcessMemory(requested, "memory_gib of the experiment, which no run has checked", False)


def machine_of(folder: Path) -> dict:
    """Return the machine of the newest timing run of an experiment; empty without a run."""
    files = (folder / "runs").glob("*/*/*/*/*/*/rep*/run.json")
    newest = max(files, key=lambda file: file.stat().st_mtime, default=None)
    return (newest and read_json(newest).get("machine")) or {}


def with_ratios(candidates: Sequence[Candidate], ratios: Ratios) -> list[Candidate]:
    """Return candidates whose seconds follow measured ratios, where there are some.

    A candidate then takes the seconds of its reference multiplied by the measured ratio. Its draws
    have the interval of that ratio, and are independent of those of other candidates.
    """
    unmeasured = {candidate.configuration: candidate for candidate in candidates}
    first: dict[Configuration, Paired] = {}
    for (names, reference), paired in ratios.items():
        if {names, reference} <= unmeasured.keys() and paired.counts:
            first.setdefault(names, paired)
    followed: dict[Configuration, Candidate] = {}

    def follow(names: Configuration, above: frozenset[Configuration]) -> Candidate:
        candidate, paired = unmeasured[names], first.get(names)
        if paired is None or paired.reference in above:
            return candidate
        if names not in followed:
            reference = follow(paired.reference, above | {names})
            seconds = reference.seconds * draw(paired.ratio, len(candidate.seconds), names)
            ranks = max(candidate.ranks, unmeasured[paired.reference].ranks)
            predicted = interval(candidate.seconds / unmeasured[paired.reference].seconds, ranks)
            followed[names] = replace(
                candidate,
                seconds=seconds,
                job=candidate.job - candidate.seconds + seconds,
                paired=paired,
                predicted=predicted if candidate.calibration else None,
                extrapolated=tuple(note for note in candidate.extrapolated if note == ONLY_STEPS),
            )
        return followed[names]

    return [
        follow(candidate.configuration, frozenset([candidate.configuration]))
        for candidate in candidates
    ]
