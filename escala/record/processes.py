"""Compare what the processes of a program did with the plan of its run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path

from escala.programs.marks import HOOK, OUTPUT, WHOLE
from escala.programs.processes import unlisted
from escala.programs.program import Program
from escala.record.diagnose import tail
from escala.strategies import OPTIONS, STRATEGIES
from escala.strategies.base import ALONE, MPI, UNKNOWN
from escala.training.plan import Plan
from escala.training.process import Told

#: The better a way tells of steps, the earlier it stands here; Escala's own trainers tell all.
_WAYS = (None, HOOK, OUTPUT, WHOLE)


def telling(told: list[Told]) -> list[Told]:
    """Return what the processes that train told, of a program those that tell best of it."""
    training = [each for each in told if each["epochs"]]
    best = min((each["known_by"] for each in training), key=_WAYS.index)
    return [each for each in training if each["known_by"] == best]


def untimed(plan: Plan, told: list[Told], folder: Path) -> str | None:
    """Return why what the processes of a program told is no result, or None."""
    program = Program.from_plan(plan["start"]["program"])
    if ran := problem(plan, program.named, told):
        return f"{ran}{tail(folder, 0)}"
    known_by = telling(told)[0]["known_by"]
    patterns = [key for key in ("epoch_ends", "step_ends") if getattr(program, key)]
    if known_by == WHOLE and patterns:
        notes = sorted({note for each in told for note in each["notes"]})
        said = f"{' and '.join(patterns)} matched no line of its output"
        return "; ".join([said, *notes]) + f". Remedy: correct the pattern{tail(folder, 0)}"
    ends = {
        rank: each["epochs"][-1]["epoch"]
        for rank, each in enumerate(told)
        if each["known_by"] == known_by
    }
    if len(set(ends.values())) > 1:
        least, most = min(ends, key=ends.get), max(ends, key=ends.get)
        return (
            f"rank {least} ended after {ends[least]} epochs, and rank {most} after {ends[most]}. "
            "Remedy: let all make the same number of epochs"
        )
    return None


def described(plan: Plan, told: list[Told], folder: Path) -> dict:
    """Return what `program` of a `run.json` holds of what the processes told."""
    program, training = Program.from_plan(plan["start"]["program"]), telling(told)
    known_by = training[0]["known_by"]
    found = sorted({*notes(plan, told), *(note for each in told for note in each["notes"])})
    read = [each["read"] for each in told if each["read"] is not None]
    paths = plan["start"]["paths"].values()
    return {
        "known_by": known_by,
        "first_epoch_seconds": max(each["first_epoch"] or 0 for each in training) or None,
        "whole_seconds": max(each["whole_seconds"] for each in told),
        "notes": [*found, *_notes_on_steps(known_by, training, program.named)],
        "ran": summary(told),
        **(
            {"read": unlisted(sorted({*chain(*read)}), program, paths, folder.parent)}
            if read
            else {}
        ),
    }


def _notes_on_steps(known_by: str, training: list[Told], named: Collection[str]) -> Iterator[str]:
    """Yield that the processes made different numbers of steps, and what is not known of them."""
    made = [sum(epoch["steps"] or 0 for epoch in each["epochs"]) for each in training]
    if len(set(made)) > 1:
        yield f"the ranks made different numbers of steps: from {min(made)} to {max(made)}"
    asked = [f"{{{name}}}" for name in sorted({"rows", "rows_of_rank", "epochs"} & set(named))]
    if known_by == WHOLE and asked:
        yield (
            "it reported no step and no epoch, so its time is that of the whole run. Whether it "
            f"used {', '.join(asked)} is not known"
        )
    rows_asked = [name for name in asked if name != "{epochs}"]
    rows = {epoch["rows"] for each in training for epoch in each["epochs"]}
    if known_by != WHOLE and rows_asked and rows == {None}:
        used = ", ".join(rows_asked)
        yield f"it told no rows of its steps, so whether it used {used} is not known"


def summary(everyone: list[dict]) -> dict:
    """Return what the processes of a run did, in the form of `program.ran` of a `run.json`.

    Parameters
    ----------
    everyone : what each process that was started told.
    """
    told = [each["ran"] for each in everyone]
    places = _places(told)

    def total(name: str) -> float | None:
        values = [each[name] for each in told]
        return None if None in values else sum(values)

    return {
        "processes": total("processes"),
        "ranks": len(places) or None,
        "world_size": max((world for _, world in places), default=None),
        "cores": total("cores"),
        "core_seconds": total("core_seconds"),
        "start_seconds": max(filter(None, (each["start_seconds"] for each in told)), default=None),
        "silent_seconds": min(each["silent_seconds"] for each in told),
        "idle": all(
            each["idle"] and own["known_by"] == WHOLE
            for each, own in zip(told, everyone, strict=True)
        ),
    }


def _places(told: list[dict]) -> set[tuple[int, int]]:
    return {(rank, world) for each in told for rank, world in each["places"]}


def problem(plan: Plan, named: Collection[str], everyone: list[dict]) -> str | None:
    """Return how what ran differs from what was to run, with a remedy, or None.

    Parameters
    ----------
    named : placeholders of the command.
    """
    told, ranks, started = [each["ran"] for each in everyone], plan["ranks"], len(everyone)
    worlds = {world for _, world in _places(told)}
    by_itself = STRATEGIES[plan["strategy"]].layouts.process_per_node
    several = max(len(each["places"]) for each in told)
    most = max([several, *worlds])
    if not by_itself and (several > 1 or most > ranks == 1):
        ways = ", ".join(each.name for name, each in OPTIONS.items() if STRATEGIES[name].numbers)
        how = "was to be one process" if ranks == 1 else f"was started {started} times"
        return (
            f"the command {how}, and starts {most} ranks itself. Remedy: leave its launcher out, "
            f"and say how its processes find each other ({ways}); or let it "
            "name {ranks_of_node} in place of their number, with --launcher (strategy own-launcher)"
        )
    if by_itself and worlds - {ranks}:
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
    ran = summary(everyone)
    if ranks == 1 or worlds or ran["idle"]:
        return None
    worked, begun = ran["processes"], all(each["begun"] for each in told)
    threads = any(each["threads"] for each in told)
    if by_itself and worked and worked < ranks and begun and not threads:
        return (
            f"the command was asked for {ranks} ranks, and {worked} of its processes worked, in "
            "one thread. Remedy: let it start as many as {ranks_of_node} says; accelerate launch "
            "does not with --cpu"
        )
    alike = {each["alike"] for each in told}
    if (
        not by_itself
        and len(alike) == 1
        and None not in alike
        and plan["places"][0]["nodes"] == 1
        # A library of MPI is known at the end only.
        and (STRATEGIES[plan["strategy"]].meets_by != MPI or all(each["ended"] for each in told))
        and not {"rank", "ranks"} & set(named)
    ):
        return (
            f"none of the {ranks} processes asked which of them it is (RANK, TF_CONFIG, …) or "
            "joined a group, so each did the whole work. "
            "Remedy: let the script divide its work; or compare threads of one process, with "
            "--strategy single"
        )
    return None


def notes(plan: Plan, everyone: list[dict]) -> Iterator[str]:
    """Yield what is to be said of what a run's processes did."""
    told = [each["ran"] for each in everyone]
    if summary(everyone)["idle"]:
        yield "it ended right after its imports, so there is nothing to time"
    strategy = STRATEGIES[plan["strategy"]]
    joins = strategy.programs not in (UNKNOWN, ALONE) and strategy.meets_by != MPI
    if joins and plan["ranks"] > 1 and not _places(told) and all(each["python"] for each in told):
        yield "its processes joined no group, so they may exchange nothing"
    for place, each in zip(plan["places"], told, strict=True):
        cores, started = len(place["cores"]), each["processes"]
        if started and started > len(place["ranks"]):
            yield f"a start of it worked in {started} processes, which shared its cores"
        if started == 1 < cores and not each["threads"]:
            yield f"it worked in one thread of one process, and was given {cores} cores"
