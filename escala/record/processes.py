"""Compare the processes that a program ran with those that its run was planned to have."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from escala.strategies import OPTIONS, STRATEGIES
from escala.strategies.base import ALONE, MPI, UNKNOWN
from escala.training.marks import WHOLE
from escala.training.plan import Plan


def summary(everyone: list[dict]) -> dict:
    """Return what the processes of a run did, in the form of `program.ran` of a `run.json`.

    Parameters
    ----------
    everyone : what each process that was started measured (`escala.training.by_command`).
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
