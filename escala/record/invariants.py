"""Check the invariants of a run, and describe what the processes of a program did."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from escala.programs.marks import HOOK, OUTPUT, SEEN, WHOLE
from escala.programs.processes import list_unlisted
from escala.programs.program import Program
from escala.record.diagnose import tail
from escala.runtime.slurm import same_host
from escala.strategies import OPTIONS, STRATEGIES
from escala.strategies.base import ALONE, MPI, UNKNOWN
from escala.training.process import Measurements, Plan
from escala.training.shards import Shards, row_moments, total_moments


class EpochRows(NamedTuple):
    """The rows that all ranks together train on in an epoch.

    Attributes
    ----------
    rows : number of the rows; a row that several ranks take counts once for each rank.
    distinct : number of different rows.
    moments : the `row_moments` of the rows.
    """

    rows: int
    distinct: int
    moments: list[int]


def placement_fault(plan: Plan, processes: list[dict]) -> str | None:
    """Return the difference between requested and obtained hosts, cores or threads, or None."""
    for part, agree in (("host", same_host), ("cores", operator.eq)):
        wanted, obtained = [place[part] for place in plan["places"]], [p[part] for p in processes]
        if len(wanted) != len(obtained) or not all(map(agree, wanted, obtained)):
            return f"requested the {part} {wanted}, obtained {obtained}"
    threads = [p["threads"] for p in processes if p["threads"] != plan["knobs"]["threads"]]
    if threads:
        return f"requested the threads {plan['knobs']['threads']}, obtained {threads[0]}"
    return None


def invariant_fault(
    planned: Sequence[EpochRows],
    ranks: list[dict],
    table: pd.DataFrame,
    test_rows: int,
    exchange: bool = True,
) -> str | None:
    """Return the violated invariant of a run, or None.

    Parameters
    ----------
    planned : the rows of each epoch.
    ranks : the measurements of each rank.
    table : the steps of all ranks.
    test_rows : the number of test rows of the split.
    exchange : whether the ranks exchange. If they do, all must have the same weights.
    """
    digests = {digest for r in ranks for digest in r["weights_sha256"]}
    if exchange and len(digests) > 1:
        return f"ranks hold {len(digests)} different sets of weights after training"
    if len({tuple(e["steps"] for e in r["epochs"]) for r in ranks}) > 1:
        return "ranks made different numbers of steps"
    for epoch, rows in table.groupby("epoch")["rows"].sum().items():
        expected = planned[epoch - 1]
        trained = total_moments([r["epochs"][epoch - 1]["row_moments"] for r in ranks])
        if (rows, trained) != (expected.rows, expected.moments):
            return f"in epoch {epoch} the ranks did not train on the rows of their shards"
    evaluated = sorted(tuple(r["evaluated"]) for r in ranks)
    covered = sorted(row for start, stop in evaluated for row in range(start, stop))
    if covered != list(range(test_rows)):
        return f"the evaluation covered the rows {evaluated} of {test_rows}"
    return None


def plan_epochs(plan: Plan, rank: dict) -> list[EpochRows]:
    """Return the rows that the plan gives the ranks to train on, for each epoch.

    Parameters
    ----------
    rank : the measurements of one rank, with the fractions of all ranks and the steps of each
        epoch.
    """
    epochs = []
    for number, epoch in enumerate(rank["epochs"], start=1):
        batches = Shards.of_plan(plan, rank["fractions"]).epoch_batches(number)
        # A row that several ranks take occurs several times.
        rows = np.concatenate([*chain.from_iterable(islice(batches, epoch["steps"]))])
        epochs.append(EpochRows(len(rows), len(np.unique(rows)), row_moments(rows)))
    return epochs


#: The ways in which the steps of a process are known, the best first. None: a trainer of Escala
#: reports all steps.
_WAYS = (None, HOOK, SEEN, OUTPUT, WHOLE)


def best_reports(reports: list[Measurements]) -> list[Measurements]:
    """Return the reports of the processes that train and whose steps are known in the best way."""
    training = [process for process in reports if process["epochs"]]
    best = min((process["known_by"] for process in training), key=_WAYS.index)
    return [process for process in training if process["known_by"] == best]


def program_fault(plan: Plan, reports: list[Measurements], folder: Path) -> str | None:
    """Return why the reports of a program's processes are no result, or None."""
    program = Program.from_plan(plan["start"]["program"])
    if difference := mismatch(plan, program.placeholders, reports):
        return f"{difference}{tail(folder, 0)}"
    known_by = best_reports(reports)[0]["known_by"]
    patterns = [key for key in ("epoch_ends", "step_ends") if getattr(program, key)]
    if known_by == WHOLE and patterns:
        notes = sorted({note for process in reports for note in process["notes"]})
        fault = f"{' and '.join(patterns)} matched no line of its output"
        return "; ".join([fault, *notes]) + f". Remedy: correct the pattern{tail(folder, 0)}"
    ends = {
        rank: process["epochs"][-1]["epoch"]
        for rank, process in enumerate(reports)
        if process["known_by"] == known_by
    }
    if len(set(ends.values())) > 1:
        least, most = min(ends, key=ends.get), max(ends, key=ends.get)
        return (
            f"rank {least} ended after {ends[least]} epochs, and rank {most} after {ends[most]}. "
            "Remedy: let all make the same number of epochs"
        )
    return None


def describe_program(plan: Plan, reports: list[Measurements], folder: Path) -> dict:
    """Return `program` of a `run.json`, from the reports of the processes."""
    program, training = Program.from_plan(plan["start"]["program"]), best_reports(reports)
    known_by = training[0]["known_by"]
    of_processes = chain.from_iterable(process["notes"] for process in reports)
    notes = sorted({*notes_on_processes(plan, reports), *of_processes})
    if known_by == OUTPUT:
        ends = {"a step": program.step_ends, "an epoch": program.epoch_ends}
        # In a table, a semicolon and a space divide notes.
        notes += [
            f"{what} ends with a line that matches {pattern.replace('; ', ';[ ]')}"
            for what, pattern in ends.items()
            if pattern
        ]
    read = [process["read"] for process in reports if process["read"] is not None]
    paths = plan["start"]["paths"].values()
    unlisted = list_unlisted(sorted({*chain(*read)}), program, paths, folder.parent)
    epochs = [process["epochs"] for process in training]
    steps = [sum(epoch["steps"] or 0 for epoch in of_process) for of_process in epochs]
    # The processes of a window may have found their steps steady at different steps.
    if len(set(steps)) > 1 and not training[0]["epoch_steps"]:
        notes.append(
            f"the ranks made different numbers of steps: from {min(steps)} to {max(steps)}"
        )
    mean_steps = [process["mean_steps"] for process in training]
    named = sorted({"rows", "rows_of_rank", "epochs"} & set(program.placeholders))
    if known_by == WHOLE and named:
        notes.append(
            "it reported no step and no epoch, so its time is that of the whole run. Whether it "
            f"used {', '.join(f'{{{name}}}' for name in named)} is not known"
        )
    named_rows = [f"{{{name}}}" for name in named if name != "epochs"]
    rows = {epoch["rows"] for epoch in chain(*epochs)}
    if known_by != WHOLE and named_rows and rows == {None}:
        used = ", ".join(named_rows)
        notes.append(f"it reported no rows of its steps, so whether it used {used} is not known")
    return {
        "known_by": known_by,
        "first_epoch_seconds": max(process["first_epoch"] or 0 for process in training) or None,
        "whole_seconds": max(process["whole_seconds"] for process in reports),
        "projected": _slowest(process["projected"] for process in training),
        "mean_steps": None if None in mean_steps else [*chain(*mean_steps)],
        "notes": notes,
        "ran": summarize_processes(reports),
        **({"read": unlisted} if read else {}),
    }


def _slowest(projected: Iterable[dict | None]) -> dict | None:
    """Return the projection of the process that takes longest; None if one has none."""
    projections = [*projected]
    return None if None in projections else max(projections, key=operator.itemgetter("seconds"))


def summarize_processes(reports: list[Measurements]) -> dict:
    """Return a summary of what the processes of a run did: `program.ran` of a `run.json`.

    Parameters
    ----------
    reports : the report of each started process; `ran` is by `escala.programs.processes.describe`.
    """
    ran = [report["ran"] for report in reports]
    places = _places(ran)

    def total(name: str) -> float | None:
        values = [process[name] for process in ran]
        return None if None in values else sum(values)

    return {
        "processes": total("processes"),
        "ranks": len(places) or None,
        "world_size": max((world for _, world in places), default=None),
        "cores": total("cores"),
        "core_seconds": total("core_seconds"),
        "start_seconds": max(process["start_seconds"] or 0 for process in ran) or None,
        "silent_seconds": min(process["silent_seconds"] for process in ran),
        "idle": all(report["ran"]["idle"] and report["known_by"] == WHOLE for report in reports),
    }


def _places(ran: list[dict]) -> set[tuple[int, int]]:
    """Return the rank and the world size of each process that joined a group."""
    return {(rank, world) for process in ran for rank, world in process["places"]}


def mismatch(plan: Plan, named: Collection[str], reports: list[Measurements]) -> str | None:
    """Return how the processes of a run differ from its plan, with a remedy, or None.

    Parameters
    ----------
    named : the placeholders in the command.
    """
    processes, ranks = [report["ran"] for report in reports], plan["ranks"]
    worlds = {world for _, world in _places(processes)}
    # Whether one start of the command starts all ranks of a node.
    starts_ranks = STRATEGIES[plan["strategy"]].layouts.process_per_node
    ranks_of_start = max(len(process["places"]) for process in processes)
    most = max([ranks_of_start, *worlds])
    if not starts_ranks and (ranks_of_start > 1 or most > ranks == 1):
        ways = ", ".join(
            option.name for name, option in OPTIONS.items() if STRATEGIES[name].numbers
        )
        how = "was to be one process" if ranks == 1 else f"was started {len(processes)} times"
        return (
            f"the command {how}, and starts {most} ranks itself. Remedy: leave its launcher out, "
            f"and say how its processes find each other ({ways}); or let it "
            "name {ranks_of_node} in place of their number, with --launcher (strategy own-launcher)"
        )
    if starts_ranks and worlds - {ranks}:
        return (
            f"the command was asked for {ranks} ranks, and {most} ran. Remedy: let it take their "
            "number from {ranks_of_node} or {ranks}"
        )
    if worlds - {ranks}:
        alone = "found itself alone" if worlds == {1} else f"joined a group of {most}"
        return (
            f"each of the {ranks} processes {alone}. Remedy: let all join one group, by the "
            "library whose launcher starts them: of MPI, the one that mpirun of the PATH belongs to"
        )
    summary = summarize_processes(reports)
    if ranks == 1 or worlds or summary["idle"]:
        return None
    worked, begun = summary["processes"], all(process["begun"] for process in processes)
    threads = any(process["threads"] for process in processes)
    if starts_ranks and worked and worked < ranks and begun and not threads:
        return (
            f"the command was asked for {ranks} ranks, and {worked} of its processes worked, in "
            "one thread. Remedy: let it start as many as {ranks_of_node} says; accelerate launch "
            "does not with --cpu"
        )
    alike = {process["alike"] for process in processes}
    did_the_same = len(alike) == 1 and None not in alike and not {"rank", "ranks"} & set(named)
    # Whether a process uses a library of MPI is known only when it ends.
    has_ended = all(process["ended"] for process in processes)
    is_known = STRATEGIES[plan["strategy"]].meets_by != MPI or has_ended
    if not starts_ranks and did_the_same and is_known and plan["places"][0]["nodes"] == 1:
        return (
            f"none of the {ranks} processes asked which of them it is (RANK, TF_CONFIG, …) or "
            "joined a group, so each did the whole work. "
            "Remedy: let the script divide its work; or compare threads of one process, with "
            "--strategy single"
        )
    return None


def notes_on_processes(plan: Plan, reports: list[Measurements]) -> Iterator[str]:
    """Yield notes on what the processes of a run did."""
    processes = [report["ran"] for report in reports]
    if summarize_processes(reports)["idle"]:
        yield "it ended right after its imports, so there is nothing to time"
    strategy = STRATEGIES[plan["strategy"]]
    joins = strategy.programs not in (UNKNOWN, ALONE) and strategy.meets_by != MPI
    are_python = all(process["python"] for process in processes)
    if joins and plan["ranks"] > 1 and are_python and not _places(processes):
        yield "its processes joined no group, so they may exchange nothing"
    for place, ran in zip(plan["places"], processes, strict=True):
        cores, started = len(place["cores"]), ran["processes"]
        if started and started > len(place["ranks"]):
            yield f"one start of the command worked in {started} processes, which shared its cores"
        if started == 1 < cores and not ran["threads"]:
            yield f"it worked in one thread of one process, and was given {cores} cores"
