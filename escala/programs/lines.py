"""The marks of one training, from all lines of an output that match a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise, zip_longest
from statistics import median, mode

from escala.core.errors import Failed
from escala.programs.marks import BEGIN, EPOCH, ROWS, STEP, Epoch, Mark, differences
from escala.programs.printed import is_length, is_score, is_seconds

#: A note on lines without a number, if there are several processes.
WHOSE = (
    "the lines of its epochs have no number, so whether one process or each of them writes one is "
    "not known"
)
#: Lines of one epoch follow each other within this fraction of the time to the next epoch.
_NEAR = 0.1
#: Seconds that a program may need to end after its last epoch.
_ENDING_SECONDS = 0.5
#: A line of an epoch may report a duration. If the measured epoch is longer by more than this
#: fraction, and by more than this many seconds (rounding), then the epoch includes other work.
_MORE, _ROUNDED_SECONDS = 0.25, 0.5


def marks_of(
    lines: Sequence[Mark], ranks: int, planned_epochs: int | None
) -> tuple[list[Mark], list[str]]:
    """Return the marks of one training from all lines that matched, and notes on them.

    Lines of one epoch, or of one step, are one mark, at the time of the last line: ranks that write
    into one output repeat lines, and so do progress bars. A number in a line tells its epoch or
    step. If lines that end epochs have no numbers, and there are `ranks` times as many lines as
    planned epochs, each rank has written a line for each epoch. If no step comes before the first
    such line, and steps come after the last, the lines begin epochs. If only some lines have
    numbers, lines without numbers are left out.

    Parameters
    ----------
    planned_epochs : None if the command names no number of epochs.
    """
    notes = []
    for event in (EPOCH, STEP):
        numbers = [mark.number for mark in lines if mark.event == event]
        if None in numbers and len(set(numbers)) > 2:
            lines = [mark for mark in lines if mark.event != event or mark.number is not None]
            notes.append(
                f"{numbers.count(None)} of {len(numbers)} lines that {event}_ends matches have no "
                f"number of the {event}, and are left out"
            )
    ends, steps = ([mark for mark in lines if mark.event == event] for event in (EPOCH, STEP))
    ends, notes_on_ends = _select_ends(ends, ranks, planned_epochs)
    notes += notes_on_ends
    are_numbered = _are_numbered(steps, ranks)
    are_distinct = ranks == 1
    if are_numbered and ranks > 1:
        # If the numbers of steps begin again in each epoch, they fall by nearly the steps of an
        # epoch. Ranks that write at different speeds let the numbers fall by less.
        numbers = [mark.number for mark in steps]
        falls = (most - n for most, n in zip(accumulate(numbers, max), numbers, strict=True))
        are_distinct = max(falls) <= (max(numbers) - min(numbers)) / 2
    chosen_steps = _last_by_number(steps, ranks) if are_distinct else steps
    if steps and not are_numbered and ranks == 1:
        notes.append("the lines of its steps have no number, so each is taken for one step")
    chosen = {id(mark) for mark in (*ends, *chosen_steps)}
    marks = [mark for mark in lines if id(mark) in chosen]
    if ranks > 1 and len(chosen_steps) < len(
        steps
    ):  # A line does not tell which ranks its rows belong to.
        for mark in chosen_steps:
            mark.values.pop(ROWS, None)
    if ends and chosen_steps and marks[0].event == EPOCH and marks[-1].event == STEP:
        marks = [Mark(BEGIN, marks[0].time, {}), *marks[1:], Mark(EPOCH, marks[-1].time, {})]
    if not are_numbered or not are_distinct:
        made = 1 if are_distinct else None
        marks = [m._replace(number=None, made=made) if m.event == STEP else m for m in marks]
    return marks, notes


def _select_ends(
    lines: Sequence[Mark], ranks: int, planned_epochs: int | None
) -> tuple[Sequence[Mark], list[str]]:
    """Return, from all lines of epochs, the line that ends each epoch, and notes on the lines."""
    all_lines, notes = lines, []
    if _are_numbered(lines, ranks):
        lines = _last_by_number(lines, ranks)
        if ranks == 1 and [growth > 0 for growth in differences(lines)[-2:]] == [True, False]:
            notes.append(
                f"its last line tells of epoch {lines[-1].number:.0f} again, and is left out"
            )
            lines, all_lines = lines[:-1], all_lines[:-1]
        usual = mode([growth for growth in differences(lines) if growth > 0] or [1])
        if usual != 1:
            notes.append(
                f"the numbers of its epochs grow by {usual:.3g}, which is taken for one epoch"
            )
    elif ranks == 1 and len(bars := {mark.bar for mark in lines}) > 1 and None not in bars:
        pairs = [(mark, after and after.bar) for mark, after in zip_longest(lines, lines[1:])]
        ends = [mark for mark, next_bar in pairs if next_bar is None or next_bar < mark.bar]
        if len(ends) == 1:
            notes.append("the lines of its epochs are parts of one bar: each is taken for an epoch")
            ends = [mark for mark, next_bar in pairs if mark.bar and next_bar != mark.bar]
        lines = ends
    elif ranks == 1 and len(lines) != planned_epochs:
        size = _size_of_groups(lines)
        lines = lines[size - 1 :: size]
    elif lines and ranks > 1 and len(lines) == ranks * (planned_epochs or 0):
        lines = lines[ranks - 1 :: ranks]
    elif lines and ranks > 1 and len(lines) != planned_epochs:
        notes.append(WHOSE)
    if len(lines) < len(all_lines):
        notes.append("several lines are those of one epoch, and its last one ends it")
    return lines, notes


def _size_of_groups(marks: Sequence[Mark]) -> int:
    """Return the size of groups of marks that follow each other closely; 1 if sizes differ.

    A process may print the line of an epoch twice, or one line on training and one on validation.
    Each process that it starts may also print a line.
    """
    gaps = [later.time - before.time for before, later in pairwise(marks)]
    size = next((n for n, gap in enumerate(gaps, 1) if gap > _NEAR * max(gaps)), 1)
    apart, near = gaps[size - 1 :: size], [g for n, g in enumerate(gaps, 1) if n % size]
    is_regular = size > 1 and len(marks) % size == 0 and min(near) > 0
    return size if is_regular and max(near) < _NEAR * min(apart) else 1


def _are_numbered(marks: Sequence[Mark], ranks: int) -> bool:
    """Return whether the marks tell the number of their epoch or step.

    If all marks have one number, the result is True only for one epoch that each rank or a bar
    repeats.
    """
    numbers = {mark.number for mark in marks}
    if len(numbers) != 1:
        return None not in numbers and bool(numbers)
    is_repeated = len(marks) <= ranks or all(mark.bar is not None for mark in marks)
    return numbers != {None} and marks[0].event == EPOCH and is_repeated


def _last_by_number(marks: Sequence[Mark], ranks: int) -> Sequence[Mark]:
    """Return the last mark of each number, or all marks if they have no numbers.

    With one rank, marks with equal numbers must follow each other. If a number comes again later,
    it belongs to another training.
    """
    if not _are_numbered(marks, ranks):
        return marks
    if ranks > 1:
        last = {mark.number: mark for mark in marks}
        return [mark for mark in marks if mark is last[mark.number]]
    pairs = zip_longest(marks, marks[1:])
    return [mark for mark, after in pairs if after is None or mark.number != after.number]


def drop_buffered_steps(marks: Sequence[Mark]) -> list[Mark]:
    """Return marks, without marks of steps if most of their lines arrived together from a buffer.

    If the ends of several epochs arrived at once, the program is `Failed`.
    """
    times = {event: [m.time for m in marks if m.event == event] for event in (STEP, EPOCH)}
    distinct = {event: len(set(moments)) for event, moments in times.items()}
    if distinct[EPOCH] < len(times[EPOCH]):
        raise Failed(
            "the ends of several epochs arrived at once: its epochs are too short to be timed, the "
            "program holds its output back, or several of its processes write each end. Remedy: "
            "leave epoch_ends out, to compare whole runs; or terminal: true, let it flush each "
            "line, or let one process write them"
        )
    held = distinct[STEP] < len(times[STEP]) / 2
    return [mark for mark in marks if not (held and mark.event == STEP)]


def require_ends(marks: Sequence[Mark], started: float, ended: float) -> list[str]:
    """Refuse lines that were taken for ends of epochs, and may be their beginnings.

    Lines may be beginnings if the program went on after the last line for more than half of the
    least time between two lines. A line that reports a duration or a speed is an end. For a line
    that reports a score or follows steps, a note is returned.

    Parameters
    ----------
    started, ended : when the program started and ended, by the clock of the marks.

    Raises
    ------
    Failed : the lines may begin epochs.
    """
    ends = [mark.time for mark in marks if mark.event == EPOCH]
    steps = [mark.time for mark in marks if mark.event == STEP]
    names = {name for mark in marks if mark.event == EPOCH for name in mark.values}
    if not ends or max(steps, default=0.0) > ends[-1]:  # Another note is about such steps.
        return []
    times = ends if len(ends) > 1 else [started, *ends]
    took, more = min(b - a for a, b in pairwise(times)), ended - ends[-1]
    if any(map(is_length, names)) or more <= max(took / 2, _ENDING_SECONDS):
        return []
    sentence = (
        f"the program went on for {more:.3g} s after the last line that epoch_ends matched, and "
        f"from one to the next it took {took:.3g} s"
    )
    if steps or any(map(is_score, names)):
        return [f"{sentence}: if the line begins an epoch, the last one is not timed"]
    raise Failed(
        f"{sentence}: so the line may begin an epoch. Remedy: match a line that ends it, with a "
        "number it reports, as loss (?P<loss>\\S+)"
    )


def notes_on_lengths(by_process: Sequence[Sequence[Epoch]]) -> list[str]:
    """Return a note if epochs take longer than the seconds that their lines report.

    The first epochs are left out, as in the results.
    """
    later = [epoch for epochs in by_process for epoch in epochs[1:] if not epoch.steps]
    pairs = [
        (epoch.train_seconds, value)
        for epoch in later
        for name, value in epoch.values.items()
        if is_seconds(name)
    ]
    took, reported = (
        (median(values) for values in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    )
    if took - reported <= max(_MORE * reported, _ROUNDED_SECONDS):
        return []
    return [
        f"its lines tell of {reported:.3g} s for an epoch, and from one to the next it takes "
        f"{took:.3g} s: what it does between them, such as an evaluation, is part of an epoch here"
    ]
