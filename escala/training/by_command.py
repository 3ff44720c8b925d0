"""Run a user's own program in the place of a rank, and read its steps.

The program is a child of this process: it has its cores, its variables, and its end. What it writes
goes to the rank's log. Its steps are known by its hook (`escala/hook/escala_steps.py`), or by
patterns of its output, or not at all; then its time is that of the whole run.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from escala.core.errors import Diverged, Failed
from escala.core.files import write_json
from escala.core.usage import Usage
from escala.core.variables import MARKS
from escala.probes import Probe
from escala.strategies import STRATEGIES
from escala.strategies.place import Place
from escala.training import child, endings, files_read, marks, program_processes
from escala.training.data import STEP_COLUMNS
from escala.training.marks import Epoch, Mark
from escala.training.process import load_reader
from escala.training.program_place import moved_of, rows_of_rank, values, variables
from escala.workloads.program import Program

_TRACEBACK = "Traceback (most recent call last)"


def run(plan: dict, folder: Path, place: Place, probe: Probe | None) -> dict:
    """Run the program of a rank, and return what it tells of itself.

    `plan` is the run's (`escala.record.plan`). `folder`, its `ranks/`, receives the steps of this
    process, if they are known.

    A program is `Failed` if it ended with an error, left processes behind, made fewer epochs than
    were asked for, or took another number of rows. It is `Diverged` if it reported a number that is
    not finite.
    """
    start = plan["start"]
    program = moved_of(plan).program(Program.from_plan(start["program"]))
    told, output = (folder / f"marks{place.process}").resolve(), folder.parent.resolve() / "output"
    told.mkdir()
    output.mkdir(exist_ok=True)
    asked = values(plan, place, output, start["paths"])
    reader, written = load_reader(plan, place, grows=True), child.Written(program)
    reader.begin()
    given = variables(plan, place, told)
    so_far, began = folder / f"ran{place.process}.json", time.time()

    def ran(ended: child.Ended) -> dict:
        silent = {"silent_seconds": written.silence(ended.at)}
        return program_processes.describe(told, ended) | silent

    def tell(seen: child.Ended) -> None:
        with suppress(OSError):  # A full disk ends no training.
            write_json(so_far, ran(seen), durable=False)

    ended = child.run(program, program.arguments(asked), given, MARKS, written, tell)
    so_far.unlink(missing_ok=True)
    # A launcher, such as `mpirun`, reads its input to pass it on, whether anybody asks or not.
    ended.asked &= not STRATEGIES[plan["strategy"]].layouts.process_per_node
    reader.end()
    written.close()
    started = ended.started
    try:
        by_process, unread = marks.read_files(told)
        known_by = marks.HOOK if by_process else marks.OUTPUT
        by_process = by_process or [written.marks.marks]
        if known_by == marks.OUTPUT:
            by_process = [marks.flowing(each) for each in by_process]
        epochs = [marks.epochs(each, started) for each in by_process]
        known_by = known_by if any(epochs) else marks.WHOLE
        _require_success(ended, written, epochs)
        reported = [mark for each in by_process for mark in each]
        _require_finite(reported)
        if known_by != marks.WHOLE:
            marks.require_order(by_process, started, ended.at if known_by == marks.HOOK else None)
            _require_epochs(program, plan, epochs, known_by)
            _require_rows(program, plan, place, epochs)
    except (Failed, Diverged) as error:
        error.at = time.time() - (time.monotonic() - ended.at)
        error.code = ended.code
        raise
    seen = files_read.told(told, began)
    notes = [*written.notes, *_notes(ended, written, place, unread, known_by, reported)]
    if others := seen and seen.threads - {given["OMP_NUM_THREADS"], ""}:
        notes.append(
            f"it set OMP_NUM_THREADS to {' and '.join(sorted(others))}, and was given "
            f"{given['OMP_NUM_THREADS']}"
        )
    # Those of the first process that reports a number: several ranks may be in it.
    scores = {k: v for each in reversed(by_process) for k, v in marks.scores(each).items()}
    return _measured(known_by, epochs, reported, started, ended.at, folder, place) | {
        "scores": scores,
        "ranks": plan["ranks"],
        "threads": plan["knobs"]["threads"],
        "load": reader.found,
        "notes": notes,
        "ran": ran(ended),
        "read": seen and seen.read,
        "usage": None if known_by == marks.WHOLE else _used(ended.used, next(filter(None, epochs))),
    }


def _require_success(ended: child.Ended, written: child.Written, epochs: list[list[Epoch]]) -> None:
    said = written.last
    if ended.code:
        hint = endings.hint(ended.code, said, ended.asked)
        raise Failed(f"the program ended with {endings.how(ended.code)}{hint}")
    if ended.left:
        raise Failed(
            f"the program ended and left {ended.left} of its processes running, which were ended. "
            "Remedy: let it wait for them; what runs in the background cannot be timed"
        )
    if _TRACEBACK in said and not any(epochs):
        raise Failed("the program ended with exit code 0 after an error. Remedy: let it end with 1")


def _require_finite(reported: list[Mark]) -> None:
    """Refuse a loss that is not finite; another score that is not defined is left out."""
    for mark in reported:
        for name, value in mark.values.items():
            if "loss" in name.lower() and not math.isfinite(value):
                raise Diverged(f"the program reported {name} {value}")


def _require_epochs(
    program: Program, plan: Mapping, epochs: list[list[Epoch]], known_by: str
) -> None:
    """Refuse other numbers of epochs than a command that names `{epochs}` was asked for."""
    done, asked = max(map(len, epochs)), plan["epochs"]
    if "epochs" not in program.named or done == asked:
        return
    how = "ended after" if done < asked else "reported"
    by = "mark" if known_by == marks.HOOK else "print, so that epoch_ends matches it,"
    raise Failed(
        f"the program {how} {done} of {asked} epochs. Remedy: let it train as many as {{epochs}}, "
        f"and {by} the end of each once"
    )


def _notes(
    ended: child.Ended,
    written: child.Written,
    place: Place,
    unread: int,
    known_by: str,
    reported: list[Mark],
) -> list[str]:
    """Return the notes on a program that ended well."""
    found = []
    if _TRACEBACK in written.last:
        found.append("its last lines report an error, and it ended with exit code 0")
    if ended.asked:
        found.append("it read its input, which is empty here")
    if not ended.cores <= set(place.cores):
        was, given = sorted(ended.cores), sorted(place.cores)
        found.append(f"it set its cores itself: {was}, and was given {given}")
    if unread:
        found.append(f"{unread} lines among its marks cannot be read, and are left out")
    undefined = {name for m in reported for name, v in m.values.items() if not math.isfinite(v)}
    found += [
        f"it reported {name} that is not a finite number: left out" for name in sorted(undefined)
    ]
    if known_by == marks.OUTPUT and len(reported) < len(written.marks.marks):
        found.append("most lines of its steps arrived at once, so the times of steps are not known")
    return found


def _require_rows(program: Program, plan: Mapping, place: Place, epochs: list[list[Epoch]]) -> None:
    """Refuse steps of other numbers of rows than the command was given; the last may have fewer."""
    found = [
        int(max(filter(None, epoch.rows))) for each in epochs for epoch in each if any(epoch.rows)
    ]
    if not found or not {"rows", "rows_of_rank"} & program.named:
        return
    rows, ranks = plan["global_batch"], plan["ranks"]
    expected = rows_of_rank(rows, ranks, place.ranks[0])
    if max(found) < expected and all(len(epoch.steps) == 1 for each in epochs for epoch in each):
        return  # Its data may have no more rows.
    if max(found) != expected:
        hint = ""
        if max(found) == rows and ranks > 1:
            hint = ": each rank takes all of them. Remedy: give it {rows_of_rank}"
        raise Failed(
            f"the program was asked for {expected} rows a step of each rank ({rows} of all), and "
            f"took {max(found)}{hint or '. Remedy: let it take the rows that the command names'}"
        )


def _measured(
    known_by: str,
    epochs: list[list[Epoch]],
    reported: list[Mark],
    started: float,
    ended: float,
    folder: Path,
    place: Place,
) -> dict:
    """Return the measurements of this process in the form of `escala.training.train`."""
    if known_by == marks.WHOLE:
        whole = Epoch(started, ended, train_seconds=ended - started)
        epochs = [[whole]]
    several = [each for each in epochs if each]
    first = several[0]
    _write_steps(folder / f"rank{place.process}.steps.csv", several)
    # The first epoch holds what a framework compiles.
    skipped = 1 if len(first) > 1 else 0
    found = []
    for number in range(skipped, len(first)):
        same = [each[number] for each in several if number < len(each)]
        epoch = same[0]
        rows = [row for each in same for row in each.rows]
        found.append(
            {
                "epoch": number + 1,
                "steps": len(epoch.steps) or None,
                "rows": int(sum(rows)) if rows and None not in rows else None,
                "began": epoch.began,
                "train_seconds": max(each.train_seconds for each in same),
                "epoch_wall_seconds": epoch.ended - epoch.began,
                "validation_seconds": None,
                "loss": epoch.values.get("loss"),
                "accuracy": epoch.values.get("accuracy"),
                "validation_accuracy": epoch.values.get("val_accuracy"),
                "validation_loss": epoch.values.get("val_loss"),
                "scores": {},
            }
        )
    begun = first[0].began if first[0].marked else None
    return {
        "known_by": known_by,
        "epochs": found,
        "first_epoch": first[0].train_seconds if skipped else None,
        "first_step": first[0].steps[0] if first[0].steps else None,
        "parameters": marks.told(reported, marks.PARAMETERS),
        "seconds": {
            "startup": None if begun is None else begun - started,
            "whole": ended - started,
        },
    }


def _used(samples: list[tuple[float, Usage]], epochs: list[Epoch]) -> dict | None:
    """Return what a program used during the epochs that count, None without two samples of them.

    What it does between its epochs is among it. `steps` are those made meanwhile, on average, None
    if their number is not known.
    """
    counted = epochs[1:] or epochs
    within = [each for each in samples if counted[0].began <= each[0] <= counted[-1].ended]
    if len(within) < 2:
        return None
    (first, before), (last, after) = within[0], within[-1]
    grown = after.since(before)
    if min(grown) < 0:  # A descendant ended, and its parent did not wait for it.
        return None
    part = (last - first) / (counted[-1].ended - counted[0].began)
    steps = part * sum(len(epoch.steps) for epoch in counted)
    return grown._asdict() | {"steps": steps or None}


def _write_steps(path: Path, epochs: list[list[Epoch]]) -> None:
    """Write the steps of the first process that told of some, without those of the first epoch."""
    first = epochs[0]
    with open(path, "w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(STEP_COLUMNS)
        for number, epoch in enumerate(first, start=1):
            if number == 1 and len(first) > 1:
                continue
            for step, (seconds, rows) in enumerate(zip(epoch.steps, epoch.rows, strict=True), 1):
                writer.writerow((number, step, rows, 0.0, seconds, None, None))
