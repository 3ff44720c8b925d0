"""Try a user's own program before it is measured: short runs, and what every run would start.

The trial is a run like every other (`escala.record.run.measure`), in a folder that does not stay.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.core.variables import CALLERS_PATH
from escala.data import kind_of
from escala.experiment import Experiment, Run, program_source
from escala.experiment.draft_program import ONE
from escala.experiment.spoken import layout_in_words
from escala.record import comparable, diagnose
from escala.record.estimate import duration, span
from escala.record.outcome import Outcome
from escala.record.plan import make_plan, split_description
from escala.record.run import measure
from escala.runtime import launch
from escala.runtime.launch import Launch
from escala.runtime.layout import Layout
from escala.runtime.node import LOOPBACK, describe
from escala.runtime.placement import EXTRA_PORTS, places, processes_per_node
from escala.strategies import STRATEGIES
from escala.strategies.place import Place
from escala.training import marks
from escala.training.plan import Plan
from escala.training.program_place import values, variables
from escala.workloads import program_environment
from escala.workloads.program import Program

#: A program may need longer than a trial waits.
LIMIT_SECONDS = 60.0
#: Several processes that take so many times as long as one do not pay, or wait for each other.
PATIENCE = 10
#: Epochs of a trial: the first one may hold what a framework compiles.
EPOCHS = 2
#: In shorter epochs and runs, most of the time is not training.
SHORT_SECONDS = 1.0
#: What precedes the last lines of a program in the reason of a run.
_LAST = "; its last lines: "
#: Variables by which programs find their ranks, and the option that sets them.
_MISSING = {
    r"\b(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT)\b": "--torch",
    r"\bTF_CONFIG\b": "--tf-config",
    r"\bOMPI_COMM_WORLD_\w+|\bHOROVOD_\w+": "--horovod or --mpi",
}
#: Options that write a key of the file.
_OPTIONS = {
    "environment: {python: DIR/bin/python}": "--python DIR/bin/python",
    "terminal: true": "--terminal",
    "epoch_ends": "--epoch-ends",
    "step_ends": "--step-ends",
}


@dataclass(frozen=True)
class Trial:
    """A program, as one short run shows it.

    Attributes
    ----------
    run : that it is like.
    seconds : from its start to its end, or until it was ended.
    ended : whether it ended by itself.
    known_by : how its steps are known (`escala.training.marks`).
    epoch_seconds : of its last epoch, None if it is not known.
    epochs : of the run.
    last : its last lines.
    notes : what else is to be said of it.
    start_seconds : of a whole run, how long its interpreter takes to start and to import what its
        scripts import; None if it is not known.
    result : its `run.json`, None if it did not end.
    """

    run: Run
    seconds: float
    ended: bool
    known_by: str
    epoch_seconds: float | None
    epochs: int
    last: str
    notes: tuple[str, ...] = ()
    start_seconds: float | None = None
    result: dict | None = None


def tried(experiment: Experiment, run: Run, limit_seconds: float = LIMIT_SECONDS) -> Trial:
    """Do a run of an experiment on a program once, for two epochs at most.

    A program that takes longer than the limit is ended.

    Raises
    ------
    InputError : it fails, or a pattern of its output matches no line; with its last lines.
    """
    with _attempted(experiment, run, limit_seconds) as (request, outcome, output):
        ranks, program = output.parent / "ranks", _program(request)
        _, _, said = diagnose.tail(ranks, 0).partition(_LAST)
        lines = (each for each in said.split(" | ") if " escala: " not in each)
        last = " | ".join(lines) or "nothing"
        if outcome.status == "timeout":
            known_by = _known_so_far(program, ranks)
            return Trial(run, limit_seconds, False, known_by, None, EPOCHS, last)
        result = read_json(output)
    told, epochs = result["program"], request["training"]["epochs"]
    whole = told["known_by"] == marks.WHOLE
    epoch = None if whole else result["epochs"][-1]["train_seconds"]
    notes = tuple(told["notes"])
    is_alone = Layout.parse(run.layout).processes == 1
    start = _start_seconds(program) if whole and is_alone else None
    seconds, known_by = told["whole_seconds"], told["known_by"]
    return Trial(run, seconds, True, known_by, epoch, epochs, last, notes, start, result)


def _start_seconds(program: Program) -> float | None:
    """Return how long a program's interpreter takes to start, and to import packages."""
    statements = program_source.imports(program.command, program.directory)
    if not program.interpreter or not statements:
        return None
    code = "\n".join(f"try: {each}\nexcept Exception: pass" for each in statements)
    began = time.monotonic()
    done = program_environment.run_in_place(program, [program.interpreter, "-c", code])
    return time.monotonic() - began if done.returncode == 0 else None


def together(experiment: Experiment) -> Run | None:
    """Return the run of most processes on one node, or None if all have one process."""
    layouts = ((Layout.parse(run.layout), run) for run in experiment.runs)
    on_one = [(layout.processes, run) for layout, run in layouts if layout.nodes == 1]
    most, run = max(on_one, key=lambda each: each[0])
    return run if most > 1 else None


def tried_together(
    experiment: Experiment, run: Run, alone: Trial, limit_seconds: float = LIMIT_SECONDS
) -> Trial:
    """Do a run of several processes as `tried` does, after a trial of one.

    Raises
    ------
    InputError : as `tried`; it does not end within the limit and ten times the time of one; or
        each process may write the lines of its epochs.
    """
    if not alone.ended:
        return tried(experiment, run, limit_seconds)
    limit_seconds = max(limit_seconds, PATIENCE * alone.seconds)
    found = tried(experiment, run, limit_seconds)
    reason = found.result and comparable.other_lines(alone.result, found.result)
    if reason:
        raise _failed(_program(experiment.request(run)), run, reason)
    if not found.ended:
        reason = (
            f"the program did not end within {duration(limit_seconds)}, and one process ended "
            f"after {span(alone.seconds)}. Remedy: let no process wait for another one that "
            f"sends nothing{_LAST}{found.last}"
        )
        raise _failed(_program(experiment.request(run)), run, reason)
    return found


@contextmanager
def _attempted(
    experiment: Experiment, run: Run, limit_seconds: float
) -> Iterator[tuple[dict, Outcome, Path]]:
    """Yield the request of a short run, how it ended, and its `run.json`, in a folder that goes."""
    request = experiment.request(run)
    epochs = min(EPOCHS, experiment.settings["workloads"][run.workload]["epochs"])
    request["training"] = request["training"] | {"epochs": epochs}
    with TemporaryDirectory(prefix="escala-try-") as temporary:
        data, output = Path(temporary, "data"), Path(temporary, "run", "run.json")
        _describe(experiment, run, data)
        outcome = measure(request, data, output, limit_seconds)
        if outcome.status not in ("ok", "timeout"):
            raise _failed(_program(request), run, outcome.reason or outcome.status)
        yield request, outcome, output


def _program(request: dict) -> Program:
    return Program.from_plan(request["start"]["program"])


def _describe(experiment: Experiment, run: Run, folder: Path) -> None:
    """Describe the dataset of a run; the content of its files is not read for a trial."""
    settings, seed = experiment.datasets[run.dataset], experiment.split_seed(run.dataset, 1)
    kind = kind_of(settings)
    module = kind.load("settings")
    preparation = module.preparation(settings) | {"identify": "time"}
    inputs = module.prepared_from(settings, folder)
    folder.mkdir()
    kind.load("arrays").prepare(run.dataset, preparation, seed, inputs, folder)


def _known_so_far(program: Program, ranks: Path) -> str:
    """Return how the steps of a program are known that was ended."""
    if (ranks / "marks0").is_dir() and any(marks.read_files(ranks / "marks0")[0]):
        return marks.HOOK
    searched = marks.Searched(program.epoch_ends, program.step_ends)
    log = ranks / "rank0.log"
    searched.feed(log.read_bytes() if log.exists() else b"", 0.0)
    return marks.OUTPUT if searched.marks else marks.WHOLE


def _failed(program: Program, run: Run, reason: str) -> InputError:
    """Return the error of a program that failed: how it ended, its last lines, and a remedy."""
    alone = Layout.parse(run.layout).processes == 1
    where = "" if alone else f"with {layout_in_words(run.layout, run.strategy)}: "
    ended, lines, said = reason.removeprefix("rank 0: ").partition(_LAST)
    ended, _, remedy = ended.partition(" Remedy: ")
    if match := re.search(r"No module named '?([\w.]+)", said):
        remedy = (
            f"install {match[1]} for {program.python or 'its interpreter'}, or name another "
            "interpreter: --python DIR/bin/python"
        )
    elif (match := re.search(r"KeyError: '(\w+)'", said)) and match[1] in os.environ:
        remedy = f"if it reads the variable {match[1]}, pass it on: --variable {match[1]}"
    elif run.strategy == ONE:
        found = ((re.search(pattern, said), option) for pattern, option in _MISSING.items())
        remedy = next((f"if it reads {m[0]}, {option} sets it" for m, option in found if m), remedy)
    wrong = "what its last lines name" if said else "what ends it"
    remedy = _as_options(remedy) or f"correct {wrong}, or the words of the command"
    words = shlex.join(program.command)
    reason = f"{where}{ended.rstrip('.')}{lines}{said}"
    return InputError("the command", words, reason, remedy)


def _as_options(text: str) -> str:
    """Return a text with the options of `escala try` in place of keys of an experiment's file."""
    for key, option in _OPTIONS.items():
        text = text.replace(key, option)
    return text


def report(found: Trial, several: Trial | None, experiment: Experiment) -> Iterator[str]:
    """Yield sentences on what trials told, what is measured, and how long that takes.

    Parameters
    ----------
    found, several : of one process, and of several unless all configurations have one.
    """
    runs = len(experiment.timed)
    if found.ended:
        yield f"One process ended without an error after {span(found.seconds)}."
    else:
        same = _number_like(found, experiment)
        yield (
            f"One process did not end within {duration(found.seconds)}, and was ended. That is no "
            f"error: {same} of {runs} runs are like it, so the study takes at least "
            f"{duration(same * found.seconds)}. A run ends after "
            f"{experiment.settings['time_limit_minutes']} minutes (time_limit_minutes)."
        )
    if several and found.ended:
        words = layout_in_words(several.run.layout, several.run.strategy)
        took = span(several.seconds)
        yield f"{words[0].upper()}{words[1:]} ended without an error after {took}."
    if found.known_by != marks.WHOLE:
        how = "its hook" if found.known_by == marks.HOOK else "lines of its output"
        took = f"; the last one took {span(found.epoch_seconds)}" if found.epoch_seconds else ""
        yield f"Its epochs are known by {how}{took}."
    else:
        yield (
            f"It reported no steps{'' if found.ended else ' so far'}, so whole runs are compared, "
            "start-up included. To time its epochs, match the line that it prints after each with "
            "--epoch-ends REGEX. Or write into the script: `from escala_steps import steps, "
            "epoch`, `for batch in steps(loader):`, and epoch() after each epoch. "
            f"Its last lines: {found.last}"
        )
    if found.start_seconds and found.start_seconds > found.seconds / 2:
        yield (
            f"Most of the run is no training: starting its interpreter and importing packages "
            f"takes {span(min(found.start_seconds, found.seconds))} of {span(found.seconds)}. Give "
            "it more to do, or let its epochs be seen."
        )
    elif found.ended and found.known_by == marks.WHOLE and found.seconds < SHORT_SECONDS:
        yield (
            f"Too short to time: the run takes {span(found.seconds)}, and most of it is its "
            "start. Give it more to do: more epochs or more rows."
        )
    elif found.ended and found.epoch_seconds is not None and found.epoch_seconds < SHORT_SECONDS:
        yield (
            f"Too short to time well: an epoch takes {span(found.epoch_seconds)}, and the time "
            "of a short one varies more. Give it more rows or steps in each epoch."
        )
    yield from (f"{note[0].upper()}{_as_options(note[1:])}." for note in found.notes)
    if found.ended:
        like = _number_like(several, experiment) if several else 0
        total = like * _seconds(several or found, experiment)
        total += (runs - like) * _seconds(found, experiment)
        yield f"{runs} runs follow. If they take as long as these, that is {duration(total)}."


def _number_like(found: Trial, experiment: Experiment) -> int:
    """Return how many runs of an experiment are like a trial."""
    return sum(run.configuration == found.run.configuration for run in experiment.timed)


def _seconds(found: Trial, experiment: Experiment) -> float:
    """Return how long a run like a trial takes, with all its epochs."""
    epochs = experiment.settings["workloads"][found.run.workload]["epochs"]
    return found.seconds + max(0, epochs - found.epochs) * (found.epoch_seconds or 0.0)


def starts(experiment: Experiment) -> Iterator[str]:
    """Yield lines on what each configuration would start; nothing is started.

    They name the words, the cores and the variables of the first and the last process. Ports and
    the nodes of a cluster are examples: they are selected when a run begins.
    """
    first = [run for run in experiment.runs if run.repeat == 1]
    with TemporaryDirectory(prefix="escala-try-") as temporary:
        data = Path(temporary, "data")
        _describe(experiment, first[0], data)
        description = split_description(data)
        for run in first:
            yield from _starts_of(run, make_plan(experiment.request(run), description, data))


def _starts_of(run: Run, plan: Plan) -> Iterator[str]:
    strategy, layout = STRATEGIES[run.strategy], Layout.parse(run.layout)
    started = _example(strategy, layout)
    plan["start"]["interface"] = started.nodes[0].interface
    program = Program.from_plan(plan["start"]["program"])
    everyone = places(layout, strategy, plan["knobs"], started.nodes)
    given = os.environ | launch.environment(run.strategy, plan["knobs"], started, program)
    shown = [Place(**everyone[number]) for number in sorted({0, len(everyone) - 1})]
    told = []
    for place in shown:
        found = variables(plan, place, Path("MARKS"), given)
        told.append({name: each for name, each in found.items() if os.environ.get(name) != each})
    common = set(told[0].items()) & set(told[-1].items())
    words = layout_in_words(run.layout, run.strategy)
    yield (
        f"{words[0].upper()}{words[1:]} ({' '.join(run.configuration[:3])}): {len(everyone)} "
        f"started by {started.launcher}, in {program.directory}"
    )
    yield f"  {_assignments(common)}"
    for place, its_own in zip(shown, told, strict=True):
        asked = values(plan, place, Path("OUTPUT"), plan["start"]["paths"])
        cores = ", ".join(map(str, place.cores))
        yield f"  process {place.process} on {place.host}, cores {cores}:"
        local, words = its_own.items() - common, shlex.join(program.arguments(asked))
        yield f"    {_assignments(local)} {words}" if local else f"    {words}"


def _assignments(matches: Iterable[tuple[str, str]]) -> str:
    path = os.environ.get(CALLERS_PATH, os.environ.get("PATH", ""))
    return " ".join(
        f"{name}={value.removesuffix(path)}$PATH"
        if name == "PATH" and path and value.endswith(path)
        else f"{name}={shlex.quote(value)}"
        for name, value in sorted(matches)
    )


def _example(strategy, layout: Layout) -> Launch:
    """Return this machine in the place of each node, without an allocation."""
    node = describe(LOOPBACK, processes_per_node(layout, strategy) + EXTRA_PORTS)
    if layout.nodes == 1:
        return Launch(launch.MPIRUN if strategy.meets_by == "mpi" else launch.LOCAL, [node], None)
    names = [f"NODE{number}" for number in range(1, layout.nodes + 1)]
    nodes = [replace(node, host=name, address=name) for name in names]
    return Launch(launch.SRUN, nodes, None)


def answer(summary: Path) -> list[str]:
    """Return the lines of a summary that answer, without their links."""
    text = re.sub(
        r" \(\[[^\]]*\]\([^)]*\)(, \[[^\]]*\]\([^)]*\))*\)", "", summary.read_text(encoding="utf-8")
    )
    lines = text.partition("\n## ")[0].splitlines()
    return [line.replace("**", "") for line in lines if line and not line.startswith("# ")]
