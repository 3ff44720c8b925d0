"""Collection of what the processes of a program told."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from escala.probes import planned_probe
from escala.record import processes, steps
from escala.record.diagnose import tail
from escala.record.disturbance import disturbance
from escala.record.invariants import misplaced
from escala.record.outcome import Outcome, merge
from escala.runtime import allocation
from escala.training.marks import HOOK, OUTPUT, WHOLE
from escala.training.plan import Plan
from escala.training.program_processes import unlisted
from escala.workloads import Program

#: The better a way tells of steps, the earlier it stands here.
_WAYS = (HOOK, OUTPUT, WHOLE)
#: Parts of a run's time that nobody knows of a program.
_UNKNOWN_SECONDS = (
    "loading", "build", "first_step", "first_prediction", "broadcast", "checkpoint", "evaluation",
    "save",
)  # fmt: skip


def collect_program(plan: Plan, everyone: list[dict], folder: Path) -> Outcome:
    """Return what the processes of a program told.

    The epochs are those of the process that tells best of them; where several tell alike, an epoch
    takes as long as in the slowest of them.

    Parameters
    ----------
    everyone : what each process measured (`escala.training.by_command`).
    folder : the ranks' folder, with their steps.
    """
    known_by = min((each["known_by"] for each in everyone), key=_WAYS.index)
    program = Program.from_plan(plan["start"]["program"])
    named = program.named
    if problem := misplaced(plan, everyone) or _problem(plan, named, everyone, known_by, folder):
        return Outcome("failed", problem)
    telling = [each for each in everyone if each["known_by"] == known_by]
    epochs = [_joined(list(same)) for same in zip(*(e["epochs"] for e in telling), strict=True)]
    if len(telling) < len(everyone):
        # What the others trained on is not known.
        epochs = [epoch | {"rows": None} for epoch in epochs]
    train_seconds = sum(epoch["train_seconds"] for epoch in epochs)
    rows = [epoch["rows"] for epoch in epochs]
    startups = [each["seconds"]["startup"] for each in telling]
    scores = {name: value for each in reversed(telling) for name, value in each["scores"].items()}
    notes = {note for each in everyone for note in each["notes"]}
    notes = sorted(notes | set(processes.notes(plan, everyone)))
    parameters = [each["parameters"] for each in telling if each["parameters"]]
    found = {
        "epochs": epochs,
        "seconds": {
            "startup": None if None in startups else max(startups),
            "train": train_seconds,
            **dict.fromkeys(_UNKNOWN_SECONDS),
        },
        "step_seconds": _step_seconds(folder, len(everyone), telling),
        "samples_per_second": None if None in rows else sum(rows) / train_seconds,
        "evaluation": {"rows": None, "scores": scores} if scores else None,
        "program": {
            "known_by": known_by,
            "first_epoch_seconds": max(each["first_epoch"] or 0 for each in telling) or None,
            "whole_seconds": max(each["seconds"]["whole"] for each in everyone),
            "notes": [*notes, *_notes(known_by, telling, named)],
            "ran": processes.summary(everyone),
        },
        "ranks": {"obtained": everyone[0]["ranks"]},
        "training": {
            "parameters": int(parameters[0]) if parameters else None,
            "epochs_done": epochs[-1]["epoch"],
        },
    }
    read = [each["read"] for each in everyone if each.get("read") is not None]
    if read:
        paths = plan["start"]["paths"].values()
        found["program"]["read"] = unlisted(
            sorted(set().union(*read)), program, paths, folder.parent
        )
    return Outcome("ok", found=merge(found, common(plan, folder, everyone)))


def common(plan: Plan, folder: Path, everyone: list[dict]) -> dict:
    """Return what is known alike of every kind of training."""
    probe = planned_probe(plan, folder)
    return {
        "disturbance": disturbance(everyone),
        "usage": [each["usage"] for each in everyone if each.get("usage")] or None,
        **({"job": {"step": everyone[0]["step"]}} if allocation.number() else {}),
        "ranks": {"one_clock": len({each["boot"] for each in everyone}) == 1},
        **({probe.name: probe.read(everyone)} if probe and probe.result else {}),
    }


def _problem(
    plan: Plan, named: Collection[str], everyone: list[dict], known_by: str, folder: Path
) -> str | None:
    """Return why what the processes told is no result, or None."""
    if ran := processes.problem(plan, named, everyone):
        return f"{ran}{tail(folder, 0)}"
    patterns = [key for key in ("epoch_ends", "step_ends") if plan["start"]["program"][key]]
    if known_by == WHOLE and patterns:
        notes = sorted({note for each in everyone for note in each["notes"]})
        said = f"{' and '.join(patterns)} matched no line of its output"
        return "; ".join([said, *notes]) + f". Remedy: correct the pattern{tail(folder, 0)}"
    ends = {
        rank: each["epochs"][-1]["epoch"]
        for rank, each in enumerate(everyone)
        if each["known_by"] == known_by
    }
    if len(set(ends.values())) > 1:
        least, most = min(ends, key=ends.get), max(ends, key=ends.get)
        return (
            f"rank {least} ended after {ends[least]} epochs, and rank {most} after {ends[most]}. "
            "Remedy: let all make the same number of epochs"
        )
    return None


def _notes(known_by: str, telling: list[dict], named: Iterable[str]) -> Iterable[str]:
    """Yield that the processes made different numbers of steps, and what is not known of them."""
    made = [sum(epoch["steps"] or 0 for epoch in each["epochs"]) for each in telling]
    if len(set(made)) > 1:
        yield f"the ranks made different numbers of steps: from {min(made)} to {max(made)}"
    asked = sorted({"rows", "rows_of_rank", "epochs"} & set(named))
    if known_by == WHOLE and asked:
        yield (
            "it reported no step and no epoch, so its time is that of the whole run. Whether it "
            f"used {', '.join(f'{{{name}}}' for name in asked)} is not known"
        )
    named_rows = [f"{{{name}}}" for name in asked if name != "epochs"]
    told = {epoch["rows"] for each in telling for epoch in each["epochs"]}
    if known_by != WHOLE and named_rows and told == {None}:
        used = ", ".join(named_rows)
        yield f"it told no rows of its steps, so whether it used {used} is not known"


def _joined(same: list[dict]) -> dict:
    """Return an epoch of all processes from that of each."""
    rows = [epoch["rows"] for epoch in same]
    found = {key: value for key, value in same[0].items() if key != "began"}
    for name in ("loss", "accuracy", "validation_accuracy", "validation_loss"):
        found[name] = next((epoch[name] for epoch in same if epoch[name] is not None), None)
    for name in ("train_seconds", "epoch_wall_seconds"):
        found[name] = max(epoch[name] for epoch in same)
    return found | {"rows": None if None in rows else sum(rows)}


def _step_seconds(folder: Path, processes: int, telling: list[dict]) -> dict | None:
    """Return the summary of the steps, None unless every process told of each."""
    if len(telling) < processes or any(e["steps"] is None for p in telling for e in p["epochs"]):
        return None
    table = steps.read(folder, processes)
    return None if table.empty else steps.summary(table)
