"""Run a user's own program in the place of a rank, and read its steps.

The program is a child of this process: it has its cores, its variables, and its end. What it writes
goes to the rank's log. Its steps are known by its hook (`escala/hook/escala_steps.py`), or by
patterns of its output, or they are seen (`escala/hook/escala_seen.py`), or not known at all; then
its time is that of the whole run.
"""

from __future__ import annotations

import csv
import math
import os
import re
import time
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from escala.core.errors import Diverged, Failed
from escala.core.files import write_json
from escala.core.load import Load
from escala.core.proc import Usage
from escala.core.readable import with_noun
from escala.core.variables import MARKS, THREADS, TRACED, WINDOW, restore_shell
from escala.probes import Probe
from escala.programs import child, lines, marks, printed, processes, seen
from escala.programs.copy import CopyPaths
from escala.programs.environment import environment
from escala.programs.marks import Epoch, Mark
from escala.programs.printed import better
from escala.programs.program import DATA, HOOK, Program
from escala.strategies import STRATEGIES
from escala.strategies.base import Place
from escala.training.process import STEP_COLUMNS

#: Variables of a rank that its program does not get: those of Escala, and those of a job step, by
#: which libraries would start in another way.
_RANK_VARIABLES = re.compile(r"ESCALA_\w+|PYTHONPATH")
_JOB_STEP = re.compile(r"(SLURM|SLURMD|SRUN)_(?!CONF$|CLUSTERS$)\w+")
#: Variables that give a process its rank and the number of ranks; also those of MPICH and Slurm.
_NUMBERS = {s.numbers for s in STRATEGIES.values() if s.numbers} | {("PMI_RANK", "PMI_SIZE")}
#: How much of a core processes may use that a program leaves behind: if it tells of epochs, and if
#: not.
_HELPING, _IDLE = 0.5, 0.05


class _Report(NamedTuple):
    """What the processes of a program reported.

    Attributes
    ----------
    known_by : how its steps are known: `marks.HOOK`, `SEEN`, `OUTPUT` or `WHOLE`.
    by_process : the marks of each process; those of its output are one more, the first.
    sequences : the same of processes that ran at the same time, with their numbers of steps.
    epochs : of each process that tells of some.
    unread : how many lines among the marks cannot be read.
    notes : on marks of its output, for the user.
    timed : the processes whose steps were seen, or, for a window, whose marks tell of steps.
    window : of their steps, if only a window is timed.
    """

    known_by: str
    by_process: list[list[Mark]]
    sequences: list[list[Mark]]
    epochs: list[list[Epoch]]
    unread: int
    notes: list[str]
    timed: list[seen.Process]
    window: seen.Window | None

    @property
    def all_marks(self) -> list[Mark]:
        return list(chain(*self.by_process))

    @classmethod
    def read(
        cls,
        program: Program,
        plan: Mapping,
        place: Place,
        marks_folder: Path,
        output: child.Output,
        execution: child.Execution,
        has_ended: bool,
    ) -> _Report:
        """Read what a program reported by its hook; without steps there, what was seen or printed.

        The user's patterns of its output come before what was seen. `has_ended`: by itself, and not
        after a window.
        """
        by_process, unread = marks.read_files(marks_folder)
        known_by, notes, timed = marks.HOOK, [], []
        has_steps = any(mark.event in (marks.STEP, marks.EPOCH) for mark in chain(*by_process))
        if not (has_steps or program.has_patterns):
            timed = seen.read(marks_folder)
        if has_steps and not has_ended:
            timed = seen.read(marks_folder)
        elif timed:
            known_by, by_process = marks.SEEN, [*map(seen.marks_of, timed), *by_process]
        elif not has_steps:
            all_lines, notes = _read_lines(program, plan, place, output)
            progress = program.window and seen.steps_of(all_lines, has_ended)
            # The epoch of an unknown length is `seen.UNKNOWN_EPOCH`, also of a program that ends.
            if progress and progress[0].notes > 1 and not (has_ended and progress[0].has_length):
                timed = [progress[0]]
                if has_ended:
                    timed[0].steady = timed[0].steady or timed[0].loops[0].steps[0][1]
            timed_lines = lines.drop_buffered_steps(all_lines)
            known_by, by_process = marks.OUTPUT, [timed_lines, *by_process]
            if len(timed_lines) < len(all_lines):
                notes.append(
                    "most lines of its steps arrived at once, so the times of steps are not known"
                )
        sequences = marks.join_sequences(filter(None, by_process))
        sequences = [marks.count_steps(sequence) for sequence in sequences]
        epochs = marks.epochs_by_process(sequences, execution.started)
        window = seen.window_of(timed) if program.window else None
        if window:
            epochs, sequences = window.epochs, []
            notes.extend(window.notes)
        elif not has_ended:
            epochs, sequences = [], []
        known_by = known_by if epochs else marks.WHOLE
        return cls(known_by, by_process, sequences, epochs, unread, notes, timed, window)


def _read_lines(
    program: Program, plan: Mapping, place: Place, output: child.Output
) -> tuple[list[Mark], list[str]]:
    """Return the marks of the training that a program has printed, and notes on them."""
    epochs = plan["epochs"] if "epochs" in program.placeholders else None
    return lines.marks_of(output.marks.marks, len(place.ranks), epochs)


def run(plan: dict, folder: Path, place: Place, _: Probe | None, load: Load) -> dict:
    """Run the program of a rank, and return its `escala.training.process.Measurements`.

    `plan` is the run's (`escala.record.plan`). `folder`, its `ranks/`, receives the steps of this
    process, if they are known.

    A program is `Failed` if it ended with an error, left processes behind that go on with its work,
    made fewer epochs than were asked for, or took another number of rows. It is `Diverged` if it
    reported a loss or an error that is not finite.
    """
    start = plan["start"]
    program = paths_in_copy(plan).program(Program.from_plan(start["program"]))
    marks_folder = (folder / f"marks{place.process}").resolve()
    output_folder = folder.parent.resolve() / "output"
    marks_folder.mkdir()
    output_folder.mkdir(exist_ok=True)
    words = program.arguments(values(plan, place, output_folder, start["paths"]))
    output = child.Output(program)
    load.begin()
    given = variables(plan, place, marks_folder)
    so_far, began = folder / f"ran{place.process}.json", time.time()

    def describe(execution: child.Execution) -> dict:
        silent = {"silent_seconds": output.silence(execution.at)}
        return processes.describe(marks_folder, execution) | silent

    def write_so_far(execution: child.Execution) -> None:
        with suppress(OSError):  # A full disk ends no training.
            write_json(so_far, describe(execution), durable=False)

    def is_over() -> bool:
        """Return whether the window of steps is over that the lines tell of."""
        if not (program.window and program.has_patterns) or any(marks_folder.glob("*.jsonl")):
            return False
        progress = seen.steps_of(_read_lines(program, plan, place, output)[0], has_ended=False)
        # Without a total in its lines, the first epoch tells how many steps an epoch has.
        if not progress or (program.epoch_ends and not progress[0].has_length):
            return False
        process, rule = progress
        return rule.is_over(process.loops[-1].steps[-1][0], process.made, program.window)

    window = child.WindowEnd(folder / seen.WINDOW_FILE, is_over)
    execution = child.run(program, words, given, MARKS, output, write_so_far, _NUMBERS, window)
    so_far.unlink(missing_ok=True)
    load.end()
    output.close()
    try:
        has_ended = not window.file.exists()
        report = _Report.read(program, plan, place, marks_folder, output, execution, has_ended)
        if has_ended:
            _require_success(execution, output, report)
        elif report.timed and not report.window:  # Escala ended it, and it is no whole run.
            raise Failed(
                "the program was ended after a window of steps, and one of its processes made no "
                "steady steps. Remedy: let it run to its end: --whole, or window: 0"
            )
        _require_sound(report, execution)
        if report.known_by != marks.WHOLE:
            if not report.window:
                _require_epochs(program, plan, report)
            _require_rows(program, plan, place, report)
    except (Failed, Diverged) as error:
        error.at = time.time() - (time.monotonic() - execution.at)
        error.code = execution.code
        raise
    files, ran = processes.file_use(marks_folder, began), describe(execution)
    notes = [
        *output.notes,
        *_notes(execution, output, place, report),
        *_notes_on_marks(report, place, ran),
    ]
    threads = given["OMP_NUM_THREADS"]
    if others := files and files.threads - {threads, ""}:
        numbers = " and ".join(sorted(others))
        notes.append(f"it set OMP_NUM_THREADS to {numbers}, and was given {threads}")
    is_whole = report.known_by == marks.WHOLE
    epochs = report.epochs
    if is_whole:
        seconds = execution.at - execution.started
        epochs = [[Epoch(execution.started, execution.at, train_seconds=seconds)]]
    _write_steps(folder / f"rank{place.process}.steps.csv", epochs[0])
    return _measure(epochs, execution.started, report.window) | {
        "known_by": report.known_by,
        "projected": report.window and _project(report, program, plan, output, execution),
        "mean_steps": report.window and report.window.mean_steps,
        "parameters": marks.value_at_begin(report.all_marks, marks.PARAMETERS),
        "whole_seconds": execution.at - execution.started,
        # Those of the first process that reports a number: several ranks may be in it.
        "scores": dict(ChainMap(*map(marks.scores, report.by_process))),
        "ranks": plan["ranks"],
        "threads": plan["knobs"]["threads"],
        "notes": notes,
        "ran": ran,
        "read": files and files.read,
        "usage": None if is_whole else _usage(execution.used, epochs[0]),
    }


def _require_success(execution: child.Execution, output: child.Output, report: _Report) -> None:
    """Refuse a program that ended with an error, or before its work was done."""
    if execution.code:
        how = child.how_ended(execution.code, output.last)
        raise Failed(f"the program ended with {how}")
    # Whether it trained to its end before it left processes behind.
    if report.known_by == marks.WHOLE:
        is_complete = (
            execution.load < _IDLE and execution.at - execution.started > child.GRACE_SECONDS
        )
    else:
        in_time = all(epochs[-1].ended <= execution.at for epochs in report.epochs if epochs)
        is_complete = execution.load < _HELPING and (in_time or report.known_by == marks.OUTPUT)
    if execution.left and not is_complete:
        raise Failed(
            f"the program ended and left {execution.left} of its processes running, which were "
            "ended. Remedy: let it wait for them; what runs in the background cannot be timed"
        )
    if printed.has_failed(output.last) and not report.epochs:
        raise Failed("the program ended with exit code 0 after an error. Remedy: let it end with 1")


def _require_sound(report: _Report, execution: child.Execution) -> None:
    """Refuse missing marks, a loss or an error that is not finite, and times that cannot be."""
    if lost := max((mark.lost for mark in report.all_marks), default=0):
        raise Failed(
            f"its hook could not write {lost:.0f} of its marks, so its times are not known. "
            "Remedy: make room on the disk of the results"
        )
    for mark in report.all_marks:
        for name, value in mark.values.items():
            if better(name) is False and not math.isfinite(value):
                raise Diverged(f"the program reported {name} {value}")
    started, ended = execution.started, execution.at
    if report.known_by == marks.HOOK:
        marks.require_order(report.by_process, started, ended)
    elif report.known_by == marks.OUTPUT and not report.window:
        marks.require_order(report.by_process, started, None)
        report.notes.extend(lines.require_ends(report.all_marks, started, ended))


def _require_epochs(program: Program, plan: Mapping, report: _Report) -> None:
    """Refuse another number of epochs than the command names, or than another process made."""
    epochs = report.epochs
    done, least, planned = max(map(len, epochs)), min(map(len, epochs)), plan["epochs"]
    if least < done:
        raise Failed(
            f"of its processes, one reported {least} epochs and another one {done}. Remedy: let "
            "all report the same number, or one process only"
        )
    if "epochs" in program.placeholders and done != planned:
        how = "ended after" if done < planned else "reported"
        ways = {marks.HOOK: "mark", marks.OUTPUT: "print, so that epoch_ends matches it,"}
        way = ways.get(report.known_by)
        raise Failed(
            f"the program {how} {done} of {planned} epochs. Remedy: let it train as many as "
            "{epochs}" + (f", and {way} the end of each once" if way else "")
        )


def _require_rows(program: Program, plan: Mapping, place: Place, report: _Report) -> None:
    """Refuse other rows of a step than the command names; the last step may have fewer."""
    epochs = report.epochs
    if report.known_by == marks.SEEN:  # A step may take several batches.
        batches = (loop.rows for process in report.timed for loop in process.loops)
        rows_taken = list(filter(None, batches))
    else:
        rows_taken = [max(filter(None, e.rows)) for e in chain(*epochs) if any(e.rows)]
    if not rows_taken or not {"rows", "rows_of_rank"} & program.placeholders:
        return
    rows, ranks, most = plan["global_batch"], plan["ranks"], int(max(rows_taken))
    expected = rows_of_rank(rows, ranks, place.ranks[0])
    if most < expected and all(len(epoch.steps) == 1 for epoch in chain(*epochs)):
        return  # Its data may have no more rows.
    if most != expected:
        hint = ". Remedy: let it take the rows that the command names"
        if most == rows and ranks > 1:
            hint = ": each rank takes all of them. Remedy: give it {rows_of_rank}"
        raise Failed(
            f"the program was asked for {expected} rows a step of each rank ({rows} of all), and "
            f"took {most}{hint}"
        )


def _notes(
    execution: child.Execution, output: child.Output, place: Place, report: _Report
) -> list[str]:
    """Return the notes on the end of a program, its cores, and its marks and scores."""
    notes = []
    if printed.TRACEBACK in output.last:
        notes.append("its last lines report an error, and it ended with exit code 0")
    if execution.left:
        notes.append(
            f"{with_noun(execution.left, 'process', 'processes')} outlived it, and were ended"
        )
    if not execution.cores <= set(place.cores):
        was, given = sorted(execution.cores), sorted(place.cores)
        notes.append(f"it set its cores itself: {was}, and was given {given}")
    if report.unread:
        notes.append(f"{report.unread} lines among its marks cannot be read, and are left out")
    undefined = {
        name
        for mark in report.all_marks
        for name, value in mark.values.items()
        if not math.isfinite(value)
    }
    notes += [
        f"it reported {name} that is not a finite number: left out" for name in sorted(undefined)
    ]
    left_out = Counter(name for mark in report.all_marks for name in mark.left_out)
    notes += [
        f"it reported {name} that is no number: left out" + f", {times} times" * (times > 1)
        for name, times in sorted(left_out.items())
    ]
    return notes


def _notes_on_marks(report: _Report, place: Place, ran: Mapping) -> Iterator[str]:
    """Yield the notes on lines of the output, on steps, and on the lengths of epochs."""
    yield from report.notes
    # Without numbers, lines of epochs do not tell which of several processes writes them.
    has_numbers = all(
        mark.number is not None for mark in report.all_marks if mark.event == marks.EPOCH
    )
    is_of_one_rank = report.known_by == marks.OUTPUT and len(place.ranks) == 1
    if is_of_one_rank and not has_numbers and (ran["processes"] or 1) > 1:
        yield lines.WHOSE
    if after := sum(map(marks.count_steps_after_epochs, report.sequences)):
        yield f"steps after the end of its last epoch, which are in no epoch: {after}"
    if any(
        not first.marked and len(first.steps) < 2 and not more for first, *more in report.epochs
    ):
        yield "its only epoch begins with the process, so the start of the program is part of it"
    if not all(epoch.has_single_steps for epoch in chain(*report.epochs)):
        yield (
            "not every step has a mark of its own, by their numbers or because several processes "
            "may write them: the times of single steps are not known"
        )
    yield from lines.notes_on_lengths(report.epochs)


def _measure(epochs: list[list[Epoch]], started: float, window: seen.Window | None) -> dict:
    """Return the `epochs` that count, the seconds of the `first_epoch`, and those to begin.

    `epochs` are those of each process, of which the first one's count; the program `started` by
    their clock. The steps of a `window` are recorded as one epoch. The steps of a whole epoch are
    recorded beside it.
    """
    first = epochs[0]
    # The first epoch holds what a framework compiles.
    skipped = 1 if len(first) > 1 else 0
    records = []
    for number in range(skipped, len(first)):
        of_processes = [process[number] for process in epochs]
        epoch = of_processes[0]
        rows = [row for other in of_processes for row in other.rows]
        records.append(
            {
                "epoch": number + 1,
                "steps": epoch.count or None,
                # A script that keeps its batches takes no rows any more.
                "rows": int(sum(rows)) or None if rows and None not in rows else None,
                "began": epoch.began,
                "train_seconds": max(other.train_seconds for other in of_processes),
                "epoch_wall_seconds": epoch.ended - epoch.began,
                "validation_seconds": None,
                "loss": epoch.values.get("loss"),
                "accuracy": epoch.values.get("accuracy"),
                "validation_accuracy": epoch.values.get("val_accuracy"),
                "validation_loss": epoch.values.get("val_loss"),
                "scores": {},
            }
        )
    return {
        "epochs": records,
        "epoch_steps": window and window.epoch_steps,
        "first_epoch": first[0].train_seconds if skipped else None,
        "seconds": {"startup": first[0].began - started if first[0].marked else None},
    }


def _project(
    report: _Report,
    program: Program,
    plan: Mapping,
    output: child.Output,
    execution: child.Execution,
) -> dict | None:
    """Return the time of the whole training (`program.projected` of run.json); None if unknown.

    What a program does after its window, if it ends by itself then, it does after its training.
    """
    epochs_of_hook = marks.value_at_begin(report.all_marks, "epochs")
    ways = {
        "its command": plan["epochs"] if "epochs" in program.placeholders else program.epochs,
        "its hook": epochs_of_hook and int(epochs_of_hook),
        "its lines": output.marks.epochs,
    }
    for source, epochs in ways.items():
        if epochs and (seconds := report.window.project(epochs, execution.started)):
            steps = report.window.epoch_steps
            if report.known_by != marks.OUTPUT and not execution.code:  # Else Escala ended it.
                seconds += execution.at - report.window.ended
            return {
                "seconds": seconds,
                "epochs": epochs,
                "steps": steps,
                "told_by": source,
                "rest_seconds": epochs * report.window.rest_seconds
                if report.window.sees_end
                else None,
            }
    return None


def _usage(samples: list[tuple[float, Usage]], epochs: list[Epoch]) -> dict | None:
    """Return what a program used during the epochs that count, None without two samples of them.

    This includes the time between epochs. `steps` is the mean number of steps made meanwhile, None
    if it is not known.
    """
    counted = epochs[1:] or epochs
    within = [s for s in samples if counted[0].began <= s[0] <= counted[-1].ended]
    if len(within) < 2:
        return None
    (first, before), (last, after) = within[0], within[-1]
    grown = after.since(before)
    if min(grown) < 0:  # A descendant ended, and its parent did not wait for it.
        return None
    part = (last - first) / (counted[-1].ended - counted[0].began)
    made = [epoch.count for epoch in counted]
    return grown._asdict() | {"steps": None if None in made else part * sum(made)}


def _write_steps(path: Path, epochs: list[Epoch]) -> None:
    """Write the steps of a process if each has a mark, without the first of several epochs."""
    if not all(epoch.has_single_steps for epoch in epochs):
        epochs = []
    with open(path, "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(STEP_COLUMNS)
        for number, epoch in enumerate(epochs, start=1):
            if number == 1 and len(epochs) > 1:
                continue
            for step, (seconds, rows) in enumerate(zip(epoch.steps, epoch.rows, strict=True), 1):
                writer.writerow((number, step, rows, 0.0, seconds, None, None))


def values(
    plan: Mapping, place: Place, output: Path, paths: Mapping[str, str]
) -> dict[str, object]:
    """Return the value of each placeholder in the command of a rank.

    `output` is a folder of the run, for files of the program, and `paths` are those of the dataset,
    by name.
    """
    rows, ranks = plan["global_batch"], plan["ranks"]
    address, port = place.extra_addresses[0].rsplit(":", 1)
    rank = place.ranks[0]
    node_ranks = len(place.ranks) * place.processes_per_node
    return {
        "rows": rows,
        "rows_of_rank": rows_of_rank(rows, ranks, rank),
        "epochs": plan["epochs"],
        "seed": plan["seed"],
        "ranks": ranks,
        "rank": rank,
        "local_rank": place.local * len(place.ranks),
        "ranks_of_node": node_ranks,
        "nodes": place.nodes,
        "node": place.node,
        "cores": len(place.cores),
        "address": address,
        "port": port,
        "output": output,
        **{f"{DATA}{name}": paths_in_copy(plan).path(path) for name, path in paths.items()},
    }


def paths_in_copy(plan: Mapping) -> CopyPaths:
    """Return where the paths of a program are in the copy of its folder, if the run has one."""
    return CopyPaths(**plan["start"].get("copy", {}))


def rows_of_rank(rows: int, ranks: int, rank: int) -> int:
    """Return the rows of a step for a rank; the first ranks take the remainder, one row each."""
    return rows // ranks + (rank < rows % ranks)


def variables(
    plan: Mapping, place: Place, folder: Path, of_rank: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment of the program of a rank, from that of the rank.

    The hook writes its marks into `folder`.
    """
    moved = paths_in_copy(plan)
    program = moved.program(Program.from_plan(plan["start"]["program"]))
    strategy, of_rank = STRATEGIES[plan["strategy"]], restore_shell(of_rank)
    result = {
        name: value
        for name, value in of_rank.items()
        if name in program.variables
        # MPI needs those of the job step.
        or not (
            _RANK_VARIABLES.fullmatch(name)
            or THREADS.fullmatch(name)
            or (strategy.meets_by != "mpi" and _JOB_STEP.fullmatch(name))
        )
    }
    result = moved.variables(result)
    paths = filter(None, of_rank.get("PYTHONPATH", "").split(os.pathsep))
    outside = [moved.path(path) for path in paths if Path(path).resolve() != HOOK.parents[1]]
    result |= strategy.process_variables(place, plan["start"]["interface"])
    threads = plan["knobs"]["threads"]
    numbers = {
        "TF_NUM_INTRAOP_THREADS": threads["intra_op"],
        "TF_NUM_INTEROP_THREADS": threads["inter_op"],
        "OMP_NUM_THREADS": threads["intra_op"] or max(1, len(place.cores) // len(place.ranks)),
    }
    # 0 leaves the number to the library.
    result |= {name: str(number) for name, number in numbers.items() if number}
    result |= {MARKS: str(folder), "PYTHONPATH": os.pathsep.join([str(HOOK), *outside])}
    if program.window and not program.has_patterns:  # Its lines end the window.
        result[WINDOW] = str(program.window)
    if plan["instrument"] and TRACED in os.environ:
        result[TRACED] = os.environ[TRACED]
    # Its lines arrive as it writes them, as in a terminal.
    result["PYTHONUNBUFFERED"] = "1"
    return environment(program, result)
