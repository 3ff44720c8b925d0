"""Read what was measured of an experiment, and use it in place of predictions.

If the goal is time, the table `best_use` decides. For other goals the ratio of two configurations
in paired runs counts if it has a verdict. Two configurations without paired runs are compared by
independent draws of the ratio of each to its reference.
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
    configuration_of,
    draw,
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

#: Pattern of the runs that measured the memory of processes, in the folder of an experiment.
RESOURCES = "runs/*/*/*/*/*/*/resources/run.json"
#: Tables that are read, in the folder of an experiment.
TABLES = ("best_use", "configurations", "pooled", "speedup")


@dataclass(frozen=True)
class Measured:
    """What was measured of an experiment.

    Attributes
    ----------
    best_uses : the best use of each task.
    speedup : rows of the table `speedup` on times of an epoch, where these times decide.
    configurations : rows of the table `configurations`.
    memory : memory of the largest process, by dataset, workload and variant.
    """

    best_uses: Sequence[BestUse] = ()
    speedup: Sequence[Mapping] = ()
    configurations: Sequence[Mapping] = ()
    memory: Mapping[tuple[str, str, str], ProcessMemory] = field(default_factory=dict)

    def best_use(self, task: tuple[str, str], network: str, first: Configuration) -> BestUse | None:
        """Return the best use of a task over a network; None if no best use was measured.

        It compares configurations that make the same updates. One of these is `first`.
        """
        for best_use in self.best_uses:
            uses = [use.configuration for use in (best_use, *best_use.alternatives)]
            networks = {use.network for use in uses if use.layout.nodes > 1}
            is_of_task = (best_use.dataset, best_use.workload) == task
            if is_of_task and networks <= {network} and first in uses:
                return best_use
        return None

    def ratios(self, task: tuple[str, str], step_rows: Mapping[Configuration, int]) -> Ratios:
        """Return the ratios of configurations of a task that ran with these rows in a step."""
        ratios: dict[tuple[Configuration, Configuration], Paired] = {}
        for row in self.speedup:
            configuration, reference = configuration_of(row), configuration_of(row, "reference_")
            batches = row["global_batch"], row["reference_global_batch"]
            has_rows = batches == (step_rows.get(configuration), step_rows.get(reference))
            if (row["dataset"], row["workload"]) == task and has_rows:
                ratio = Interval(*(row[f"ratio{end}"] for end in ("", "_low", "_high")))
                sessions = row["sessions"] if row["over_sessions"] else None
                ratios[configuration, reference] = Paired(
                    reference, ratio, row["verdict"], row["matches"], sessions
                )
        return ratios


def read_measured(folder: Path, machine: Mapping) -> Measured:
    """Read what was measured of an experiment on machines of one kind.

    Parameters
    ----------
    folder : folder of the experiment. A missing table counts as an empty table.
    machine : the kind of machine whose measurements count, as in run.json; empty for any kind.
    """
    tables = {
        name: read_table(folder / "tables", name)
        for name in TABLES
        if (folder / "tables" / f"{name}.csv").is_file()
    }
    for name in tables.keys() - {"pooled"}:
        is_alike = []
        for row in records(tables[name]):
            # The machine of a configuration is that of its first run.
            runs = (folder / "runs").joinpath(*(row[key] for key in CONFIGURATION))
            files = sorted(runs.glob("rep*/run.json")) if machine else []
            ranks = read_json(files[0])["ranks"] if files else None
            is_alike.append(not (ranks and unlike_machines([machine], ranks["machines"][:1])))
        tables[name] = tables[name][np.array(is_alike, bool)]
    uses = []
    if "best_use" in tables:
        rows = records(tables["best_use"])
        labels = {
            f"{prefix}label": [str(configuration_of(row, prefix)) for row in rows]
            for prefix in ("", "alternative_")
        }
        uses = best_uses(tables["best_use"].assign(**labels), tables)
    speedup, configurations = (
        records(tables[name]) if name in tables else [] for name in ("speedup", "configurations")
    )
    by_epochs = [
        row
        for row in speedup
        if row["ratio_low"] is not None and row["decides"] and row["basis"] == "epoch"
    ]
    return Measured(uses, by_epochs, configurations, read_memory(folder))


def read_memory(folder: Path) -> dict[tuple[str, str, str], ProcessMemory]:
    """Return the memory of the largest process, by dataset, workload and variant.

    The resident memory of a process includes pages of libraries that several processes share.

    Parameters
    ----------
    folder : folder of the experiment.
    """
    largest: dict[tuple[str, str, str], list[int]] = {}
    for file in sorted(folder.glob(RESOURCES)):
        run = read_run(file)
        processes = [process["rss_bytes_max"] for process in run.get("resources") or ()]
        sizes = [size for size in processes if size is not None]
        if run["status"] == "ok" and sizes:
            key = run["dataset"], run["workload"], run["variant"]
            largest.setdefault(key, []).append(max(sizes))
    return {
        key: ProcessMemory(max(sizes), f"measured in {with_noun(len(sizes), 'run')}", True)
        for key, sizes in largest.items()
    }


def memory_of(
    measured: Mapping[tuple[str, str, str], ProcessMemory],
    dataset: str,
    workload: str,
    variant: str,
    memory_gib: float,
) -> ProcessMemory:
    """Return the memory of a process: measured for the variant, or any variant, or requested.

    Parameters
    ----------
    memory_gib : memory that the experiment requests from a scheduler for each process.
    """
    if (dataset, workload, variant) in measured:
        return measured[dataset, workload, variant]
    others = [memory for key, memory in measured.items() if key[:2] == (dataset, workload)]
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
    """Return the candidates in the same order, with seconds from measured ratios.

    If a candidate has a measured ratio, its seconds are those of its reference, multiplied by this
    ratio. Its draws have the interval of the ratio, and are independent of the draws of other
    candidates.
    """
    before = {candidate.configuration: candidate for candidate in candidates}
    first_pair: dict[Configuration, Paired] = {}
    for (configuration, reference), paired in ratios.items():
        if {configuration, reference} <= before.keys() and paired.overrides_prediction:
            first_pair.setdefault(configuration, paired)
    after: dict[Configuration, Candidate] = {}

    # `above` are the configurations whose chains of references lead here. A circle of references
    # ends.
    def apply(configuration: Configuration, above: frozenset[Configuration]) -> Candidate:
        candidate, paired = before[configuration], first_pair.get(configuration)
        if paired is None or paired.reference in above:
            return candidate
        if configuration not in after:
            reference = apply(paired.reference, above | {configuration})
            seconds = reference.seconds * draw(paired.ratio, len(candidate.seconds), configuration)
            ranks = max(candidate.ranks, before[paired.reference].ranks)
            predicted = interval(candidate.seconds / before[paired.reference].seconds, ranks)
            after[configuration] = replace(
                candidate,
                seconds=seconds,
                job=candidate.job - candidate.seconds + seconds,
                paired=paired,
                predicted=predicted if candidate.calibration else None,
                extrapolated=tuple(note for note in candidate.extrapolated if note == ONLY_STEPS),
            )
        return after[configuration]

    return [apply(configuration, frozenset([configuration])) for configuration in before]
