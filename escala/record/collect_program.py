"""Collection of what the processes of a program told into the result of a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from escala.probes import of_run
from escala.record import steps
from escala.record.diagnose import tail
from escala.record.disturbance import disturbance
from escala.record.invariants import misplaced
from escala.record.outcome import Outcome
from escala.training.marks import HOOK, OUTPUT, WHOLE

#: The better a way tells of steps, the earlier it stands here.
_WAYS = (HOOK, OUTPUT, WHOLE)


def collect_program(plan: dict, everyone: list[dict], folder: Path, result: dict) -> Outcome:
    """Write into `result` what the processes of a program told.

    The epochs are those of the process that tells best of them; where several tell alike, an epoch
    takes as long as in the slowest of them.

    Parameters
    ----------
    everyone : what each process measured (`escala.training.by_command`).
    folder : the ranks' folder, with their steps.
    """
    problem = misplaced(plan, everyone)
    if problem:
        return Outcome("failed", problem)
    known_by = min((each["known_by"] for each in everyone), key=_WAYS.index)
    telling = [each for each in everyone if each["known_by"] == known_by]
    patterns = [key for key in ("epoch_ends", "step_ends") if plan["start"]["program"][key]]
    if known_by == WHOLE and patterns:
        said = f"{' and '.join(patterns)} matched no line of its output. Remedy: mend the pattern"
        return Outcome("failed", f"{said}{tail(folder, 0)}")
    ends = {
        rank: each["epochs"][-1]["epoch"]
        for rank, each in enumerate(everyone)
        if each["known_by"] == known_by
    }
    if len(set(ends.values())) > 1:
        least, most = min(ends, key=ends.get), max(ends, key=ends.get)
        return Outcome(
            "failed",
            f"rank {least} ended after {ends[least]} epochs, and rank {most} after {ends[most]}. "
            "Remedy: let all make the same number of epochs",
        )
    epochs = [_joined(list(same)) for same in zip(*(e["epochs"] for e in telling), strict=True)]
    if len(telling) < len(everyone):
        # What the others trained on is not known.
        epochs = [epoch | {"rows": None} for epoch in epochs]
    train_seconds = sum(epoch["train_seconds"] for epoch in epochs)
    rows = [epoch["rows"] for epoch in epochs]
    startups = [each["seconds"]["startup"] for each in telling]
    scores = {name: value for each in reversed(telling) for name, value in each["scores"].items()}
    result |= {
        "epochs": epochs,
        "seconds": {
            "startup": None if None in startups else max(startups),
            "train": train_seconds,
            **dict.fromkeys(
                ("loading", "build", "first_step", "first_prediction", "broadcast", "checkpoint"),
            ),
            "evaluation": None,
            "save": None,
        },
        "step_seconds": _step_seconds(folder, len(everyone), telling),
        "samples_per_second": None if None in rows else sum(rows) / train_seconds,
        "evaluation": {"rows": None, "scores": scores} if scores else None,
        "disturbance": disturbance(everyone),
    }
    result["program"] |= {
        "known_by": known_by,
        "first_epoch_seconds": max(each["first_epoch"] or 0 for each in telling) or None,
        "whole_seconds": max(each["seconds"]["whole"] for each in everyone),
        "notes": [
            *sorted({note for each in everyone for note in each["notes"]}),
            *_uneven(telling),
            *_unknown(known_by, result["program"].get("named", ())),
        ],
    }
    probe = of_run(plan, folder)
    if probe and probe.result:
        result[probe.name] = probe.read(everyone)
    result["ranks"] |= {
        "obtained": everyone[0]["ranks"],
        "one_clock": len({each["boot"] for each in everyone}) == 1,
    }
    parameters = [each["parameters"] for each in telling if each["parameters"]]
    result["training"] |= {
        "parameters": int(parameters[0]) if parameters else None,
        "epochs_done": epochs[-1]["epoch"],
    }
    return Outcome("ok")


def _uneven(telling: list[dict]) -> list[str]:
    """Return what is to be said if the processes made different numbers of steps."""
    steps = [sum(epoch["steps"] or 0 for epoch in each["epochs"]) for each in telling]
    if len(set(steps)) < 2:
        return []
    return [f"the ranks made different numbers of steps: from {min(steps)} to {max(steps)}"]


def _unknown(known_by: str, named: Iterable[str]) -> list[str]:
    """Return what is not known of a program of which no process tells of its steps."""
    asked = sorted({"rows", "rows_of_rank", "epochs"} & set(named))
    if known_by != WHOLE or not asked:
        return []
    return [
        "it told of no step and no epoch, so its time is that of the whole run, and whether it "
        f"obeyed {', '.join(f'{{{name}}}' for name in asked)} is not known"
    ]


def _joined(same: list[dict]) -> dict:
    """Return an epoch of all processes from that of each."""
    rows = [epoch["rows"] for epoch in same]
    told = {
        name: next((epoch[name] for epoch in same if epoch[name] is not None), None)
        for name in ("loss", "accuracy", "validation_accuracy", "validation_loss")
    }
    return (
        {key: value for key, value in same[0].items() if key != "began"}
        | told
        | {
            "rows": None if None in rows else sum(rows),
            "train_seconds": max(epoch["train_seconds"] for epoch in same),
            "epoch_wall_seconds": max(epoch["epoch_wall_seconds"] for epoch in same),
        }
    )


def _step_seconds(folder: Path, processes: int, telling: list[dict]) -> dict | None:
    """Return the summary of the steps, None unless every process told of each."""
    if len(telling) < processes or any(e["steps"] is None for p in telling for e in p["epochs"]):
        return None
    table = steps.read(folder, processes)
    return None if table.empty else steps.summary(table)
