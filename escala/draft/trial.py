"""Try a user's own program before it is measured: short runs, and what every run would start.

The trial is a run like every other (`escala.record.run.measure`). Its folder is deleted.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from escala.analysis import comparable
from escala.core.console import say
from escala.core.errors import InputError
from escala.core.files import read_json, temporary_folder
from escala.core.hardware import available_cores, available_gpus
from escala.core.readable import duration, in_words, name_first, span
from escala.core.variables import CALLERS_PATH, is_secret
from escala.data import kind_of
from escala.draft import command
from escala.draft.divide import describe as describe_division
from escala.draft.guess import as_options, guess_patterns
from escala.draft.program import ONE
from escala.experiment import Experiment, Run
from escala.experiment.runs import layout_in_words
from escala.measure.plan import LOOKS
from escala.programs import marks, printed, seen
from escala.programs.copy import MOST_LINKS, Copy
from escala.programs.lines import marks_of
from escala.programs.processes import file_use, list_unlisted
from escala.programs.program import Program
from escala.record import diagnose, invariants
from escala.record.plan import make_plan, split_description
from escala.record.run import measure
from escala.record.schema import read_result
from escala.runtime import launch
from escala.runtime.layout import EXTRA_PORTS, Launch, Layout, places, processes_per_node
from escala.runtime.node import LOOPBACK, describe
from escala.strategies import OPTIONS
from escala.strategies.base import Place
from escala.training.by_program import values, variables

#: The longest time of a trial. A program may need longer.
LIMIT_SECONDS = 60.0
#: If several processes take longer than one by this factor, they do not pay, or wait for each
#: other.
PATIENCE = 10
#: The epochs of a trial. In the first epoch the framework may compile code.
EPOCHS = 2
#: A program that ends within this time is measured to its end, if lines tell of its steps.
SOON_SECONDS = 10.0
#: In shorter epochs and runs, most of the time is not training.
SHORT_SECONDS = 1.0
#: The least core time from which the work can be judged.
_WORK_SECONDS = 1.0
#: The most files and folders that a sentence names.
_MOST_NAMED = 8
#: What a program says that asks for GPUs where there is none, the word that asks, and another one.
_GPU_WORDS = (
    (r"NCCL built in|nccl\d* requires|NCCL is only supported with GPUs", "nccl", "gloo"),
    (r"not compiled with CUDA|No CUDA GPUs|no NVIDIA driver|no CUDA-capable", "cuda", "cpu"),
)
#: Words by which a program that needs other processes tells so.
_OF_OTHERS = re.compile(
    r"\b(at least|process(es)?|workers?|ranks?|world|size|peers?)\b", re.IGNORECASE
)
#: Words of a program that ends without its work.
_GIVES_UP = re.compile(r"\b(exiting|aborting|quitting)\b", re.IGNORECASE)
#: What precedes the last lines of a program in the reason of a run.
_LAST = "; its last lines: "


@dataclass(frozen=True)
class Trial:
    """The observations of one short run of a program.

    Attributes
    ----------
    run : the run of the experiment that was tried.
    seconds : the seconds from the start of the program to its end.
    ended : whether the program ended by itself.
    known_by : how its steps are known (`escala.programs.marks`).
    epoch_seconds : the seconds of its last epoch; None if unknown.
    epochs : the epochs that the program has made; if unknown, the planned epochs.
    last : its last lines.
    whole_seconds : the seconds of the run, with most of the work of Escala around the program.
    steps, rows : the steps and the rows of an epoch, or the steps so far; None if unknown.
    scores : the last values of the numbers that it reported, by name.
    ran : the facts about its processes (`escala.record.invariants`); None if unknown.
    placeholders : names of the placeholders of its command.
    notes : further sentences for the user.
    read : files that it read and does not declare (`escala.programs.processes.list_unlisted`).
    result : its `run.json`, None if it did not end.
    window_steps : the steps that were timed, if its epoch is projected from these; else None.
    patterns : of lines that seem to end its steps or epochs, if these are not known otherwise
        (`escala.draft.guess`).
    period : the seconds from one step that recurs with other work to the next; 0: none recurs.
    planned_epochs : the epochs that it was to make, if its command names their number.
    """

    run: Run
    seconds: float
    ended: bool
    known_by: str
    epoch_seconds: float | None
    epochs: int
    last: str
    whole_seconds: float
    steps: int | None = None
    rows: int | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    ran: dict | None = None
    placeholders: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    result: dict | None = None
    window_steps: int | None = None
    patterns: Mapping[str, str] = field(default_factory=dict)
    period: float = 0.0
    planned_epochs: int = EPOCHS

    def is_short(self, epochs: int) -> bool:
        """Return whether the program makes all its epochs before a window of its steps ends."""
        made_all = "epochs" not in self.placeholders or epochs <= self.planned_epochs
        by_marks = self.known_by in (marks.HOOK, marks.OUTPUT) and not self.window_steps
        by_lines = bool(self.patterns and self.seconds < SOON_SECONDS)
        return self.ended and made_all and (by_marks or by_lines)

    def more_seconds(self, epochs: int) -> float:
        """Return by how many seconds a run of some epochs, without a window, is longer."""
        if self.epoch_seconds is not None:
            return max(0, epochs - self.epochs) * self.epoch_seconds
        if "epochs" not in self.placeholders:
            return 0.0
        start_seconds = (self.ran and self.ran["start_seconds"]) or 0.0
        return (epochs / self.planned_epochs - 1) * (self.seconds - start_seconds)


def why_untraced(tried: Trial) -> str | None:
    """Return why PyTorch's profiler cannot trace the steps of a program; None if it may."""
    if tried.result is None:  # A later step may be seen.
        return None
    if tried.known_by not in (marks.HOOK, marks.SEEN):
        return "a trace needs steps that are seen, or told by the hook"
    if "torch" not in tried.result["versions"]:
        return "a trace needs PyTorch, which its interpreter does not have"
    return None


def try_once(experiment: Experiment, run: Run, limit_seconds: float = LIMIT_SECONDS) -> Trial:
    """Make one run of an experiment on a program, for `EPOCHS` epochs at most.

    A program that takes longer than the limit is ended.

    Raises
    ------
    InputError : the program fails, or a pattern matches no line of its output. The message has the
        last lines of the output.
    """
    began, request = time.time(), experiment.request(run)
    epochs = min(EPOCHS, experiment.settings["workloads"][run.workload]["epochs"])
    # The trial shows whether the command works. Its times do not count.
    request |= {"training": request["training"] | {"epochs": epochs}, "oversubscribe": True}
    program = _program(request)
    with temporary_folder("escala-try") as temporary:
        data, output = temporary / "data", temporary / "run" / "run.json"
        _describe_data(experiment, run, data)
        outcome = measure(request, data, output, limit_seconds)
        if outcome.status not in ("ok", "timeout"):
            how, _, last = (outcome.reason or outcome.status).partition(_LAST)
            raise _error(program, run, how, last)
        ranks = output.parent / "ranks"
        uses = [file_use(folder, began) for folder in ranks.glob("marks*")]
        all_read = sorted({path for use in filter(None, uses) for path in use.read})
        data_paths = request["start"]["paths"].values()
        read = tuple(list_unlisted(all_read, program, data_paths, ranks.parent))
        _, _, last_lines = diagnose.tail(ranks, 0).partition(_LAST)
        lines = (line for line in last_lines.split(" | ") if " escala: " not in line)
        last = " | ".join(lines) or "nothing"
        patterns = {}
        if not (program.epoch_ends or program.step_ends):
            patterns = guess_patterns(printed.text((ranks / "rank0.log").read_bytes()))
        if outcome.status == "timeout":
            trial = _cut_trial(run, limit_seconds, program, ranks, last)
            guessed = patterns if trial.known_by == marks.WHOLE else {}
            return replace(trial, read=read, patterns=guessed)
        result = read_result(output)
        reported = result["program"]
        if reported["ran"]["idle"]:
            reason = (
                "it ended with exit code 0 right after its imports: what it did, if anything, is "
                "too short to be timed. Remedy: give it more to do (epochs, rows, rounds), or what "
                "its last lines ask for"
            )
            raise _error(program, run, reason, last_lines)
        in_group = run.strategy == ONE or reported["ran"]["ranks"]
        if reported["known_by"] == marks.WHOLE and not in_group and _GIVES_UP.search(last_lines):
            reason = (
                "it ended with exit code 0, and its processes joined no group and made no step "
                "that is seen. Remedy: give it what its last lines ask for"
            )
            raise _error(program, run, reason, last_lines)
        window = seen.window_of(seen.read(ranks / "marks0"))
    whole, last_epoch = reported["known_by"] == marks.WHOLE, result["epochs"][-1]
    steps, rows, projected = last_epoch["steps"], last_epoch["rows"], 1.0
    if epoch_steps := result["training"]["steps_per_epoch"]:
        projected = epoch_steps / steps
        rows = rows and round(projected * rows)
    scores = (result["evaluation"] or {"scores": {}})["scores"]
    return Trial(
        run,
        seconds=reported["whole_seconds"],
        ended=True,
        known_by=reported["known_by"],
        epoch_seconds=None if whole else projected * last_epoch["train_seconds"],
        epochs=epochs if whole else last_epoch["epoch"],
        last=last,
        whole_seconds=result["wall_seconds"],
        steps=epoch_steps or steps,
        rows=rows,
        scores={name: score for name, score in scores.items() if not name.startswith(marks.BEST)},
        ran=reported["ran"],
        placeholders=program.placeholders,
        notes=tuple(reported["notes"]),
        read=read,
        result=result,
        window_steps=steps if epoch_steps else None,
        patterns=patterns if whole else {},
        period=window.period if window and epoch_steps else 0.0,
        planned_epochs=epochs,
    )


def _cut_trial(run: Run, seconds: float, program: Program, ranks: Path, last: str) -> Trial:
    """Return the trial of a program that Escala ended, from its reports until then."""
    folder, searched = ranks / "marks0", marks.OutputSearch(program.epoch_ends, program.step_ends)
    by_process = marks.read_files(folder)[0] if folder.is_dir() else []
    reported = next(iter(by_process), [])
    log, plan = ranks / "rank0.log", read_json(ranks / "plan.json")
    if any(mark.event in (marks.STEP, marks.EPOCH) for mark in reported):
        known_by = marks.HOOK
    elif training := seen.read(folder):
        known_by, reported = marks.SEEN, seen.marks_of(training[0])
    else:
        searched.feed(log.read_bytes() if log.exists() else b"", 0.0)
        epochs = plan["epochs"] if "epochs" in program.placeholders else None
        reported, _ = marks_of(searched.marks, len(plan["places"][0]["ranks"]), epochs)
        known_by = marks.OUTPUT if reported else marks.WHOLE
    reports = [
        {"known_by": known_by, "ran": read_json(file)} for file in sorted(ranks.glob("ran*.json"))
    ]
    ran = None
    if len(reports) == len(plan["places"]):
        if problem := invariants.mismatch(plan, program.placeholders, reports):
            raise _error(program, run, problem, last)
        ran = invariants.summarize_processes(reports)
    made_epochs = sum(mark.event == marks.EPOCH for mark in reported)
    made = [mark.made for mark in marks.count_steps(reported) if mark.event == marks.STEP]
    return Trial(
        run, seconds, False, known_by, None, made_epochs, last, seconds,
        None if None in made else int(sum(made)), ran=ran, placeholders=program.placeholders,
    )  # fmt: skip


def first_run(experiment: Experiment) -> Run:
    """Return the run with the fewest processes, of which this machine may have cores for some.

    A node of a cluster may have more cores than the machine that submits its jobs.
    """
    run = experiment.runs[0]
    if _fits_here(experiment, run):
        return run
    fit = len(available_cores()) // run.declared.variant["cores_per_process"]
    return replace(run, layout=Layout(1, max(1, fit)))


def find_largest(experiment: Experiment) -> Run | None:
    """Return the run with the most processes on one node that fits this machine.

    None if all these runs have one process.
    """
    runs = [run for run in experiment.runs if run.layout.nodes == 1]
    fitting = [run for run in runs if run.layout.processes > 1 and _fits_here(experiment, run)]
    return max(fitting, key=lambda run: run.layout.processes, default=None)


def _fits_here(experiment: Experiment, run: Run) -> bool:
    """Return whether this machine has the cores of a run, or processes may share cores."""
    return experiment.settings["oversubscribe"] or run.cores <= len(available_cores())


class NeedsSeveral(InputError):
    """A program works with several processes, and not with so few as were to be compared with."""


def try_together(
    experiment: Experiment, run: Run, alone: Trial | None, limit_seconds: float = LIMIT_SECONDS
) -> Trial:
    """Do a run of several processes as `try_once` does, and compare it with a trial of fewer.

    Raises
    ------
    NeedsSeveral : the program ended, and fewer processes did not end or did nothing.
    InputError : as `try_once`; fewer processes ended, and these did not within `PATIENCE` times
        their time; or each process may write the lines of its epochs.
    """
    if alone and alone.ended:
        limit_seconds = max(limit_seconds, PATIENCE * alone.seconds)
    several = try_once(experiment, run, limit_seconds)
    if not alone:
        return several
    reason, last, error = None, several.last, InputError
    fewer = layout_in_words(alone.run.layout, alone.run.strategy)
    if alone.ended and several.ended:
        reason = comparable.other_lines(alone.result, several.result)
    elif alone.ended:
        reason = (
            f"the program did not end within {duration(limit_seconds)}, and {fewer} ended "
            f"after {span(alone.seconds)}. Remedy: let no process wait for another one that "
            "sends nothing"
        )
    if not reason and run.layout.processes > alone.run.layout.processes and several.ended:
        if not alone.ended and PATIENCE * several.seconds < alone.seconds:
            error, last = NeedsSeveral, alone.last
            reason = (
                f"the program ended after {span(several.seconds)}, and {fewer} did not end within "
                f"{duration(alone.seconds)}: it may be a server or a master that waits for others. "
                "Remedy: let one process train alone"
            )
        elif alone.ended and _does_nothing(alone, several):
            error = NeedsSeveral
            reason = (
                f"{fewer} used {span(alone.ran['core_seconds'] or 0.0)} of a core after the "
                f"imports, and the program {span(several.ran['core_seconds'])}: it may be a server "
                "or a master that trains nothing. Remedy: let one process train alone"
            )
    if reason:
        raise _error(_program(experiment.request(run)), run, reason, last, error)
    return several


def _does_nothing(alone: Trial, several: Trial) -> bool:
    """Return whether a program works with several processes only, by their core time."""
    if (alone.rows and several.rows) or (alone.steps and several.steps):
        return False
    used, together = (trial.ran["core_seconds"] or 0.0 for trial in (alone, several))
    return together > max(_WORK_SECONDS, 2 * several.run.layout.ranks * used)


def try_pair(experiment: Experiment, limit_seconds: float = LIMIT_SECONDS) -> tuple[Trial, Trial]:
    """Do a run of each side of a pair (`escala.draft.pair`), the reference first.

    Raises
    ------
    InputError : as `try_once`; or their times cannot be compared.
    """
    first, second = experiment.runs[:2]
    reference = try_once(experiment, first, limit_seconds)
    say(f"The same with {second.variant}.")
    other = try_once(experiment, second, max(limit_seconds, PATIENCE * reference.seconds))
    if reference.result and other.result:
        reason = comparable.refusal(other.result, reference.result)
    elif reference.known_by != other.known_by:
        reason = f"epochs of one are known by {reference.known_by}, of the other {other.known_by}"
    else:
        reason = None
    if reason:
        words = shlex.join(_program(experiment.request(second)).command)
        remedy = "let both report their epochs in one way, or none: whole runs are compared then"
        raise InputError("the command", words, f"cannot be compared: {reason}", remedy)
    return reference, other


def try_as_typed(
    typed: Experiment | None, guess: Experiment, limit_seconds: float = LIMIT_SECONDS
) -> tuple[Trial, Trial | None, InputError | None]:
    """Do a run of the fewest processes, and one of several if there are configurations with more.

    Parameters
    ----------
    typed : the experiment on the command as it is typed, if the strategy of `guess` is guessed from
        the script. It is tried first.

    Returns
    -------
    The trials of the fewest processes and of several, and None. Where only the command as typed
    works: its trial, None, and the error of the guess.

    Raises
    ------
    NeedsSeveral : as `try_together`; or the fewest processes fail, and several do not.
    InputError : as `try_once` and `try_together`; both fail.
    """
    alone, first, run = None, first_run(guess), find_largest(guess)
    if run and run.layout.processes == first.layout.processes:
        run = None
    if typed:
        with suppress(InputError):  # The program may need the strategy.
            alone = try_once(typed, typed.runs[0], limit_seconds)
    try:
        single, several = try_together(guess, first, alone, limit_seconds), None
    except InputError as error:
        if alone:
            return alone, None, error
        if run and _OF_OTHERS.search(error.reason) and _ends(guess, run, limit_seconds):
            raise NeedsSeveral(error.where, error.value, error.reason, error.remedy) from error
        raise
    try:
        if run:
            say(f"The same with {layout_in_words(run.layout, run.strategy)}.")
            several = try_together(guess, run, single, limit_seconds)
        return single, several, None
    except NeedsSeveral:
        raise
    except InputError as error:
        if alone is None:
            raise
        return alone, None, error


def _ends(experiment: Experiment, run: Run, limit_seconds: float) -> bool:
    """Return whether a run ends well within a limit."""
    say(f"It fails. The same with {layout_in_words(run.layout, run.strategy)}.")
    try:
        return try_once(experiment, run, limit_seconds).ended
    except InputError:
        return False


def describe_isolation(experiment: Experiment) -> Iterator[str]:
    """Yield sentences on the folder of a program, and on files that it could change."""
    program = _program(experiment.request(experiment.runs[0]))
    if program.in_place:
        yield f"Every run works in {program.directory} itself, with files of earlier runs."
        return
    copy = Copy(program, Path(os.devnull), Path(os.devnull))
    folders = " and ".join(map(str, copy.roots)) or "the folder"
    yield (
        f"Each run works in a copy of {folders}. The copy is deleted after the run: let the "
        "program write to {output} what must stay. Its home folder and absolute paths are real."
    )
    shared = []
    for text, where in command.list_places(program.command, program.directory).items():
        path = os.path.normpath(program.directory / os.path.expanduser(text))  # noqa: PTH111
        # By an absolute path, a script finds the original file, even if the file is copied.
        in_script = where != command.COMMAND and not text.startswith("..")
        if in_script or copy.paths.path(path) == path:
            shared.append(f"{text} ({where})")
        if text.startswith("..") and copy.crowded.intersection(Path(path).parents):
            yield (
                f"In the copy {text} ({where}) leads nowhere, because a folder above it holds more "
                f"than {MOST_LINKS} files. Remedy: name it by its absolute path."
            )
    if shared := [*copy.list_shared(), *shared]:
        yield f"It could change files that are not copied: {name_first(shared, _MOST_NAMED)}."


def _program(request: dict) -> Program:
    return Program.from_plan(request["start"]["program"])


def _describe_data(experiment: Experiment, run: Run, folder: Path) -> None:
    """Describe the dataset of a run; the content of its files is not read for a trial."""
    settings, seed = experiment.datasets[run.dataset], experiment.split_seed(run.dataset, 1)
    kind = kind_of(settings)
    preparation = kind.settings.preparation(settings) | {"identify": "time"}
    inputs = kind.settings.preparation_inputs(settings, folder)
    folder.mkdir()
    kind.load("arrays").prepare(run.dataset, preparation, seed, inputs, folder)


def _error(
    program: Program, run: Run, reason: str, last: str, kind: type[InputError] = InputError
) -> InputError:
    """Return the error of a program that failed.

    Parameters
    ----------
    reason : how the program ended, perhaps with a remedy.
    last : its last lines.
    """
    alone = run.layout.processes == 1
    where = "" if alone else f"with {layout_in_words(run.layout, run.strategy)}: "
    how, _, remedy = reason.removeprefix("rank 0: ").partition(" Remedy: ")
    if match := re.search(r"No module named '?([\w.]+)", last):
        remedy = (
            f"install {match[1]} for {program.python or 'its interpreter'}, or name another "
            "interpreter: --python DIR/bin/python"
        )
    elif (match := re.search(r"KeyError: '(\w+)'", last)) and is_secret(match[1]):
        remedy = f"if it reads the variable {match[1]}, pass it on: --variable {match[1]}"
    elif run.strategy == ONE:
        ways: dict[str, list[str]] = {}
        for option in OPTIONS.values():
            if match := re.search(rf"\b({option.variables})\b", last):
                ways.setdefault(match[0], []).append(option.name)
        if ways:
            [variable, names], *_ = ways.items()
            remedy = f"if it reads {variable}, {' or '.join(names)} sets it"
    elif not available_gpus():
        for pattern, word, other in _GPU_WORDS:
            if re.search(pattern, last, re.IGNORECASE):
                named = command.find_word(word, program.command, program.directory)
                place = f"it stands in {named}" if named else "it is the default"
                remedy = f"there is no GPU here: write {other} instead of {word}; {place}"
    if run.layout.processes > 1 and (
        script := command.find_script(program.command, program.directory)
    ):
        lines = describe_division(script) if "divide its work" in remedy else None
        remedy += f".\n{lines}\nNothing of this is written" if lines else ""
    wrong = "what its last lines name" if last else "what ends it"
    remedy = remedy or f"correct {wrong}, or the words of the command"
    words, lines = shlex.join(program.command), f"{_LAST}{last}" if last else ""
    return kind("the command", words, f"{where}{how.rstrip('.')}{lines}", remedy)


def report(alone: Trial, several: Trial | None, experiment: Experiment) -> Iterator[str]:
    """Yield sentences on the results of trials, on the runs that follow, and on their time.

    Parameters
    ----------
    alone, several : of one process, and of several unless all configurations have one; or of both
        sides of a pair.
    """
    is_pair = several and several.run.variant != alone.run.variant
    for trial in filter(None, (alone, several)):
        words = layout_in_words(trial.run.layout, trial.run.strategy)
        words = f"{trial.run.variant}: {words}" if is_pair else f"{words[0].upper()}{words[1:]}"
        if trial.ended:
            yield f"{words} ended without an error after {span(trial.seconds)}.{_describe(trial)}"
        else:
            yield (
                f"{words} did not end within {duration(trial.seconds)}, and was ended. That is no "
                f"error.{_describe(trial)}"
            )
    if several and not is_pair and alone.ended and several.ended:
        yield from _compare(alone, several)
    # The experiment that is measured may have another window than the one that was tried.
    measured = next(run for run in experiment.runs if run.workload == alone.run.workload)
    program = _program(experiment.request(measured))
    if alone.window_steps:
        how = {marks.SEEN: "seen as it makes them", marks.HOOK: "known by its hook"}
        how = how.get(alone.known_by, "known by lines of its output")
        step_time = f"{span(alone.epoch_seconds / alone.steps)} each"
        yield f"Its steps are {how}: {step_time}. {_describe_window(program)}".rstrip()
    elif alone.known_by != marks.WHOLE:
        how = "its hook" if alone.known_by == marks.HOOK else "lines of its output"
        how = "its steps, which are seen" if alone.known_by == marks.SEEN else how
        took = f"; the last one took {span(alone.epoch_seconds)}" if alone.epoch_seconds else ""
        yield f"Its epochs are known by {how}{took}."
    elif alone.patterns:
        yield (
            "Lines of its output seem to end its steps or epochs, and are timed: "
            f"{as_options(alone.patterns)}. If that is wrong, give other patterns, or --whole to "
            f"compare whole runs. {_describe_window(program)}".rstrip()
        )
    elif program.epoch_ends or program.step_ends:
        yield (
            "No line of its output matches its pattern so far. If none does until its end, a run "
            f"fails. Its last lines: {alone.last}"
        )
    else:
        compared = "whole runs are compared, start-up included"
        if alone.ended or not program.window:
            consequence = f"It reported no steps{'' if alone.ended else ' so far'}, so {compared}"
        else:
            consequence = (
                "It reported no steps so far. If they are seen later, each run ends after "
                f"{program.window:g} s of steady steps; else {compared}"
            )
        yield (
            f"{consequence}. To time its epochs, match the line that it prints after each with "
            "--epoch-ends REGEX. Or write into the script: `from escala_steps import steps, "
            "epoch`, `for batch in steps(loader):`, and epoch() after each epoch. "
            f"Its last lines: {alone.last}"
        )
    is_whole = alone.ended and alone.known_by == marks.WHOLE
    epochs = experiment.settings["workloads"][alone.run.workload]["epochs"]
    timed = alone.seconds + alone.more_seconds(epochs) if is_whole else alone.epoch_seconds
    start_seconds = (is_whole and alone.ran["start_seconds"]) or 0.0
    if is_whole and start_seconds > timed / 2:
        yield (
            f"Most of the run is no training: starting its interpreter and importing packages "
            f"takes {span(start_seconds)} of {span(timed)}. Give it more to do, or let its "
            "epochs be seen."
        )
    elif alone.ended and not alone.window_steps and timed is not None and timed < SHORT_SECONDS:
        yield (
            f"Too short to time well: {'the run' if is_whole else 'an epoch'} takes {span(timed)}, "
            "and the time of a short one varies more. Give it more to do: more epochs or more rows."
        )
    notes = dict.fromkeys(
        note
        for trial in (alone, several)
        if trial
        for note in trial.notes
        if not note.startswith(seen.PROJECTED)
    )
    yield from (f"{note[0].upper()}{note[1:]}." for note in notes)
    least, most = estimate(alone, several, experiment)
    runs, limit = len(experiment.timed), experiment.settings["time_limit_minutes"]
    how = f"at least {duration(least)}"
    if duration(most) != duration(least):
        how += f", and at most {duration(most)}"
    if sequential := experiment.sequential:
        minutes = sequential["minutes"]
        none_later = f"; none begins after {minutes:g} min" if minutes else ""
        yield (
            f"At most {sequential['at_most']} repeats follow, until the answer is decided"
            f"{none_later}. That is {how}."
        )
    elif least == most < 60 * limit * runs:
        yield f"{runs} runs follow. If they take as long as these, that is {duration(most)}."
    else:
        yield (
            f"{runs} runs follow. That is {how}: a run that does not end within {limit} minutes "
            "(time_limit_minutes) is ended, and is no result. Give it fewer epochs or steps."
        )


def _describe_window(program: Program) -> str:
    """Return in words when a run ends; nothing if it has no window."""
    if not program.window:
        return ""
    return (
        f"Each run ends after {program.window:g} s of steady steps; with --whole it goes on to its "
        "end."
    )


def _describe(trial: Trial) -> str:
    """Return in words what the processes of a trial did and reported."""
    ran, known = trial.ran, trial.known_by != marks.WHOLE
    if ran is None:
        return ""
    at_work, cores, ranks = ran["processes"], ran["cores"], ran["ranks"]
    scores = ", ".join(f"{name} {value:.4g}" for name, value in trial.scores.items())
    epochs = f"epochs{'' if trial.ended else ' so far'}: {trial.epochs if known else 'not known'}"
    if trial.window_steps:
        epochs = f"steps timed: {trial.window_steps}"
    parts = [
        f"processes at work: {at_work or 'not known'}"
        + ("" if cores is None else f", on up to {cores:.1f} cores"),
        f"ranks: {ranks} of a group of {ran['world_size']}" if ranks else "no group of ranks",
        epochs,
        f"steps{' of one' if trial.ended else ' so far'}: {trial.steps or 'not known'}",
        *([f"rows of one: {trial.rows or 'not known'}"] if trial.ended else []),
        *([f"scores: {scores or 'none'}"] if trial.ended else []),
        f"longest silence: {span(ran['silent_seconds'])}",
    ]
    return f" Found: {'; '.join(parts)}."


def _compare(alone: Trial, several: Trial) -> Iterator[str]:
    """Yield sentences if several processes do other work than fewer, by what their trials tell."""
    ranks = several.run.layout.ranks / alone.run.layout.ranks
    used, together = (trial.ran["core_seconds"] or 0.0 for trial in (alone, several))
    times = {}
    if alone.rows and several.rows:
        times["the rows of an epoch"] = several.rows / alone.rows
    elif alone.steps and several.steps and "rows" not in several.placeholders:
        # With the rows of a rank, a step of several takes as many rows as one of fewer.
        in_step = 1 if "rows_of_rank" in several.placeholders else ranks
        times["the steps of an epoch"] = in_step * several.steps / alone.steps
    elif used > _WORK_SECONDS:
        times["the core time after imports"] = together / used
    for what, ratio in times.items():
        if ratio > (1 + ranks) / 2:
            yield (
                f"Together the {several.run.layout.ranks} take {ratio:.1f} times {what} of "
                f"{in_words(alone.run.layout.ranks)}: each may do the whole work. Then times of "
                "different work are compared."
            )


def estimate(alone: Trial, several: Trial | None, experiment: Experiment) -> tuple[float, float]:
    """Return the least and the most seconds that all runs may take, estimated from the trials."""
    limit = 60.0 * experiment.settings["time_limit_minutes"]
    least = most = 0.0
    # Programs have no fits, so each repeat has the same runs.
    for run in (run for run in experiment.timed if run.repeat == 1):
        like = several if several and run.configuration == several.run.configuration else alone
        epochs = experiment.settings["workloads"][run.workload]["epochs"]
        shortest = longest = like.seconds
        if like.ended:
            shortest = longest = like.whole_seconds
            longest += 0.0 if like.window_steps else like.more_seconds(epochs)
            # A window may end a run whose steps are known.
            are_known = like.known_by != marks.WHOLE or like.patterns
            if not (are_known and _program(experiment.request(run)).window):
                shortest = longest
        elif like.patterns and _program(experiment.request(run)).window:
            # A run ends at the latest where its trial was ended.
            shortest = min(SOON_SECONDS, like.seconds)
        elif like.epochs and "epochs" in like.placeholders:
            shortest = longest = like.seconds * epochs / like.epochs
        else:
            longest = limit
        least, most = least + min(shortest, limit), most + min(longest, limit)
    if (sequential := experiment.sequential) is None:
        repeats = experiment.settings["repeats"]
        return repeats * least, repeats * most
    # The repeat that has begun when the time is over is completed.
    bound = math.inf if sequential["minutes"] is None else 60.0 * sequential["minutes"]
    return (
        min(LOOKS[0] * least, bound + least),
        min(sequential["at_most"] * most, bound + most),
    )


def describe_starts(experiment: Experiment) -> Iterator[str]:
    """Yield lines on what each configuration would start; nothing is started.

    The lines name the words, the cores and the variables of the first and the last process. Ports
    and nodes of a cluster are examples: they are selected when a run begins.
    """
    for run, plan, started, shown in _starts(experiment):
        program = Program.from_plan(plan["start"]["program"])
        by_place = [pairs for _, pairs in shown]
        common = by_place[0] & by_place[-1]
        words = layout_in_words(run.layout, run.strategy)
        yield (
            f"{words[0].upper()}{words[1:]} ({' '.join(run.configuration[:3])}): "
            f"{len(plan['places'])} started by {started.launcher}, in "
            f"{'' if program.in_place else 'a copy of '}{program.directory}"
        )
        yield f"  {_assignments(common)}"
        for place, pairs in shown:
            placeholders = values(plan, place, Path("OUTPUT"), plan["start"]["paths"])
            cores = ", ".join(map(str, place.cores))
            yield f"  process {place.process} on {place.host}, cores {cores}:"
            local = _assignments(pairs - common)
            call = shlex.join(program.arguments(placeholders))
            yield f"    {local} {call}" if local else f"    {call}"


def describe_variables(experiment: Experiment) -> str:
    """Return a sentence that names the variables that Escala sets for a program."""
    pairs = (pair for *_, shown in _starts(experiment) for _, pairs in shown for pair in pairs)
    names = sorted({name for name, _ in pairs})
    return (
        f"It gets the variables of this shell. Escala sets {', '.join(names)}; --dry shows their "
        "values."
    )


def _starts(
    experiment: Experiment,
) -> Iterator[tuple[Run, dict, Launch, list[tuple[Place, set[tuple[str, str]]]]]]:
    """Yield each configuration's first run, its plan, its launch, and its first and last process.

    A process has its place, and the variables that are not those of this process, with their
    values.
    """
    first = [run for run in experiment.runs if run.repeat == 1]
    with temporary_folder("escala-try") as temporary:
        data = temporary / "data"
        _describe_data(experiment, first[0], data)
        description = split_description(data)
        for run in first:
            plan = make_plan(experiment.request(run), description, data)
            strategy, layout = run.declared.strategy, run.layout
            # Without an allocation, this machine is the example of each node.
            node = describe(LOOPBACK, processes_per_node(layout, strategy) + EXTRA_PORTS)
            if layout.nodes == 1:
                launcher = launch.MPIRUN if strategy.meets_by == "mpi" else launch.LOCAL
                started = Launch(launcher, [node], None)
            else:
                names = [f"NODE{number}" for number in range(1, layout.nodes + 1)]
                nodes = [replace(node, host=name, address=name) for name in names]
                started = Launch(launch.SRUN, nodes, None)
            plan["start"]["interface"] = started.nodes[0].interface
            program = Program.from_plan(plan["start"]["program"])
            plan["places"] = places(layout, strategy, plan["knobs"], started.nodes)
            of_ranks = launch.environment(run.strategy, plan["knobs"], started, program)
            shown = []
            for number in sorted({0, len(plan["places"]) - 1}):
                place = Place.of(plan, number)
                given = variables(plan, place, Path("MARKS"), os.environ | of_ranks)
                shown.append((place, given.items() - os.environ.items()))
            yield run, plan, started, shown


def _assignments(pairs: Iterable[tuple[str, str]]) -> str:
    """Return variables as a shell assigns them; the user's own part of PATH is `$PATH`."""
    path = os.environ.get(CALLERS_PATH, os.environ.get("PATH", ""))
    return " ".join(
        f"{name}={value.removesuffix(path)}$PATH"
        if name == "PATH" and path and value.endswith(path)
        else f"{name}={shlex.quote(value)}"
        for name, value in sorted(pairs)
    )
