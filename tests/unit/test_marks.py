"""The epochs and the steps of a program, from its marks and its lines."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from escala.core.errors import Failed
from escala.programs import lines as lines_of
from escala.programs import marks, printed
from escala.programs.marks import BEGIN, EPOCH, SCORE, STEP, Mark, OutputSearch
from escala.programs.program import HOOK


def marked(*events: tuple) -> list[Mark]:
    return [Mark(event, time, dict(values)) for event, time, *values in events]


def test_an_epoch_is_its_steps_without_validation_and_pauses():
    found = marks.epochs(
        marked(
            (BEGIN, 10.0), (STEP, 11.0), (STEP, 12.0),  # steps of one second
            (BEGIN, 20.0), (STEP, 22.0),                # after a pause of eight seconds
            (EPOCH, 30.0, ("loss", 0.5)),               # and eight of validation
            (BEGIN, 31.0), (STEP, 34.0), (EPOCH, 34.5),
        ),
        started=0.0,
    )  # fmt: skip
    assert [epoch.train_seconds for epoch in found] == [4.0, 3.0]
    assert found[0].steps == [1.0, 1.0, 2.0]
    assert (found[0].began, found[0].ended, found[0].marked) == (10.0, 30.0, True)
    assert found[0].values == {"loss": 0.5}


def test_epochs_without_steps_or_ends_or_a_known_beginning():
    # Without steps, an epoch lasts from the end of the one before.
    found = marks.epochs(marked((EPOCH, 7.0), (EPOCH, 9.0)), started=1.0)
    assert [(epoch.train_seconds, epoch.marked) for epoch in found] == [(6.0, False), (2.0, False)]
    [epoch] = marks.epochs(marked((BEGIN, 1.0), (STEP, 2.0), (STEP, 4.0)), started=0.0)
    assert (epoch.train_seconds, epoch.steps) == (3.0, [1.0, 2.0])
    assert marks.epochs([], started=0.0) == []
    # What is before the end of a first step whose beginning is not known is loading too.
    [epoch] = marks.epochs(marked((STEP, 6.1), (STEP, 6.2), (STEP, 6.4)), started=0.0)
    assert (epoch.began, epoch.ended, epoch.count) == (6.1, 6.4, 2)
    assert epoch.train_seconds == pytest.approx(0.3) == pytest.approx(sum(epoch.steps))
    told = marked((BEGIN, 1.0), (STEP, 2.0), (EPOCH, 2.5), (BEGIN, 3.0), (STEP, 4.0), (STEP, 5.0))
    assert [epoch.count for epoch in marks.epochs(told, started=0.0)] == [1]
    assert [marks.count_steps_after_epochs(each) for each in (told, told[:3], told[:2])] == [
        2,
        0,
        0,
    ]


@pytest.mark.parametrize("ends", ["\n", "\r", "\r\n"])
def test_lines_are_searched_as_they_arrive_however_they_are_cut(ends):
    text = ends.join(["epoch 1", "loss=1,250.5 done", "loss=nothing done", "step 32 rows"])
    searched = OutputSearch(r"loss=(?P<loss>[\w.,]+) done", r"step (?P<rows>\d+) rows")
    for place, letter in enumerate(text):
        searched.feed(letter.encode(), float(place))
    searched.end()
    searched.end()
    events = [(mark.event, mark.values) for mark in searched.marks]
    assert events == [(EPOCH, {"loss": 1250.5}), (EPOCH, {}), (STEP, {"rows": 32.0})]
    assert searched.marks[0].time < searched.marks[1].time < searched.marks[2].time


def test_scores_are_the_last_and_the_best_that_was_reported():
    reported = marked(
        (EPOCH, 1.0, ("loss", 0.2), ("accuracy", 0.5), ("seconds", 9.0), ("balance", 2.0)),
        (EPOCH, 2.0, ("loss", 0.4), ("accuracy", 0.4), ("n", 32), ("balance", 1.0)),
        (SCORE, 3.0, ("f1", 0.3), ("seconds", 7.0)),
        (STEP, 3.0, ("loss", 9.0)),
    )
    assert marks.scores(reported) == {
        "loss": 0.4, "best_loss": 0.2, "accuracy": 0.4, "best_accuracy": 0.5, "f1": 0.3,
        "balance": 1.0, "seconds": 7.0,
    }  # fmt: skip
    # Those of steps, where no epoch reports them.
    told = marked((STEP, 1.0, ("loss", 0.5), ("ms", 25.0)), (STEP, 2.0, ("loss", 0.6), ("lr", 0.1)))
    assert marks.scores(told) == {"loss": 0.6}
    [epoch] = marks.epochs(told, started=0.0)
    assert epoch.values["loss"] == 0.6


def test_times_speeds_and_counts_are_no_scores():
    scores = "loss valLoss total_loss f1 val/acc top1 MAE error_rate per_class_recall r2 change"
    others = "seconds epoch_time ms samples_per_second lr learningRate n rows steps it tokens"
    assert all(map(printed.is_score, scores.split()))
    assert not any(map(printed.is_score, others.split()))


def lines(
    *told: tuple[float, str],
    epoch_ends: str | None = None,
    step_ends: str | None = None,
    ranks: int = 1,
    asked: int | None = None,
) -> tuple[list[Mark], list[str]]:
    """Return the marks of lines that arrived at some times, and the notes on them."""
    searched = OutputSearch(epoch_ends, step_ends)
    for time, text in told:
        searched.feed(f"{text}\n".encode(), time)
    searched.end()
    found, notes = lines_of.marks_of(searched.marks, ranks, asked)
    return marks.count_steps(found), notes


def by_ranks(text: str, epochs: int = 3, late: float = 0.1) -> list[tuple[float, str]]:
    """Return the lines of two ranks, of which the second one needs longer for each epoch."""
    told = [
        ((1 + late * rank) * (epoch + 1), text.format(rank=rank, epoch=epoch, loss=1 / (epoch + 1)))
        for rank in range(2)
        for epoch in range(epochs)
    ]
    return sorted(told)


@pytest.mark.parametrize(
    ("text", "asked", "times"),
    [
        ("[rank {rank}] epoch {epoch} loss {loss:.3f}", None, [1.1, 2.2, 3.3]),
        ("Epoch: [{epoch}][10/10] loss {loss:.3f} on {rank}", None, [1.1, 2.2, 3.3]),
        ("epoch={epoch:03d} loss {loss}, 2 s", None, [1.1, 2.2, 3.3]),
        ("epoch end loss {loss:.3f}", 3, [1.1, 2.2, 3.3]),
        # It asked for other epochs, or for none: nobody knows.
        ("epoch end loss {loss:.3f}", None, None),
        ("epoch took 2 s, loss {loss:.3f}", None, None),
    ],
)
def test_of_lines_of_every_rank_the_last_ends_an_epoch(text, asked, times):
    found, notes = lines(*by_ranks(text), epoch_ends="(?i)epoch.* loss", ranks=2, asked=asked)
    assert ("not known" in notes[0]) == (times is None)
    assert len(found) == 6 if times is None else [m.time for m in found] == pytest.approx(times)


#: Lines of some times, what ends an epoch, the times of the epochs, a note, and options.
LINES = {
    "ranks that are far apart": (
        by_ranks("epoch {epoch} loss {loss}", late=0.9), "loss", [1.9, 3.8, 5.7], "", {"ranks": 2}
    ),
    "a number with a comma that later lines explain": (
        [(time, f"1,00{text}") for time, text in by_ranks("{epoch} of rank {rank}: {loss}")],
        r"^(?P<epoch>\S+) of", [1.1, 2.2, 3.3], "", {"ranks": 2},
    ),
    "one of several ranks, numbered": (
        [(n, f"epoch {n} loss 1") for n in range(1, 5)], "loss", [1, 2, 3, 4], None, {"ranks": 2}
    ),
    "one of several ranks, as many as asked for": (
        [(n, "loss 1") for n in range(1, 5)], "loss", [1, 2, 3, 4], None, {"ranks": 2, "asked": 4}
    ),
    "a bar that repeats the line of its epoch": (
        [
            (n / 10, f"Epoch {(n - 1) // 10}: {n}%|##| {(n - 1) % 10 + 1}/10 [loss={n}]")
            for n in range(1, 31)
        ],
        r"Epoch \d+.*loss=(?P<loss>\S+)\]", [1, 2, 3], "",
    ),
    "a part of the rows that are right": (
        [(n, f"Test set: loss: 0.05, Accuracy: {9800 + n}/10000 (98%)") for n in range(3)],
        "Test set", [0, 1, 2], "",
    ),
    "the number of another thing": (
        [(n, f"fold {n} epoch 0 loss 1") for n in range(6)], "loss", [*range(6)], None
    ),
    "the best epoch": (
        [(n, f"loss 1, best epoch {n // 2}") for n in range(6)], "loss", [*range(6)], None
    ),
    "a setting": ([(n, "max_epoch=9 loss") for n in range(6)], "loss", [*range(6)], None),
    "epochs of folds": (
        [(n, f"fold {n // 3} epoch {n % 3} loss 1") for n in range(6)], "loss", [*range(6)], ""
    ),
    "an earlier epoch again": (
        [*((n, f"epoch {n}: loss 0.{n}") for n in (1, 2, 3)), (4, "restores epoch 2: loss 0.9")],
        "loss", [1, 2, 3], "epoch 2 again",
    ),
    "a line without the number": (
        [*((n, f"epoch {n}: loss 0.{n}") for n in (1, 2, 3)), (3.5, "best epoch 2: loss 0.9")],
        r"(epoch \d: )?loss", [1, 2, 3], "1 of 4 lines",
    ),
    "every tenth epoch": (
        [(n, f"epoch {10 * n} loss 1") for n in range(4)], "loss", [0, 1, 2, 3], "grow by 10"
    ),
    "every half epoch": (
        [(n, f"{{'loss': 0.5, 'epoch': {n / 2:.2f}}}") for n in (1, 2, 3)],
        "loss", [1, 2, 3], "epochs grow by 0.5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_lines_end_the_epochs_that_they_tell_of(name):
    told, ends, times, note, *options = LINES[name]
    found, notes = lines(
        *((float(at), text) for at, text in told), epoch_ends=ends, **dict(*options)
    )
    assert [mark.time for mark in found] == pytest.approx(times)
    assert note in "; ".join(notes) if note is not None else not notes


@pytest.mark.parametrize("size", [2, 3])
def test_lines_that_follow_each_other_closely_each_time_are_those_of_one_epoch(size):
    """One process prints each twice, or of training and validation; or it starts those that do."""
    told = [
        (epoch + 0.02 * part, f"loss {epoch}{part}")
        for epoch in range(1, 4)
        for part in range(size)
    ]
    found, [note] = lines(*told, epoch_ends=r"loss (?P<loss>\S+)")
    last = size - 1
    assert [mark.values["loss"] for mark in found] == [10 + last, 20 + last, 30 + last]
    assert [mark.time for mark in found] == pytest.approx([n + 0.02 * last for n in (1, 2, 3)])
    assert "several lines" in note
    # So many were asked for; one more is of something else; or they were held back together.
    for others, asked in (
        (told, len(told)),
        ([*told, (5.0, "loss 9")], None),
        ([(float(round(at)), text) for at, text in told], None),
    ):
        assert len(lines(*others, epoch_ends="loss", asked=asked)[0]) == len(others)


BARS = {
    "tqdm": (" {}%|##  | {}/{} [00:01<00:02, 4.31it/s, loss=0.5]", "loss="),
    "keras": ("{}{}/{} [=====>........] - ETA: 0s - loss: 0.5", "loss:"),
    "keras 3": ("{}{}/{} ━━━━━━━━ 3s 25ms/step - loss: 0.5", "loss:"),
}


@pytest.mark.parametrize("name", BARS)
def test_of_bars_without_a_number_each_is_an_epoch(name):
    """The last of each may be printed twice. One of epochs has none that is done before it."""
    text, pattern = BARS[name]
    space = "" if "{}{}" in text else 10
    parts = [(epoch, part) for epoch in range(3) for part in (1, 4, 7, 10, 10)]
    told = [
        (epoch + n % 5 / 10, text.format(space, part, 10)) for n, (epoch, part) in enumerate(parts)
    ]
    found, notes = lines(*told, epoch_ends=pattern)
    assert [mark.time for mark in found] == pytest.approx([0.4, 1.4, 2.4]) and len(notes) == 1
    of_epochs = [(float(n), text.format(space, part, 3)) for n, part in enumerate((0, 1, 2, 3, 3))]
    found, [note, _] = lines(*of_epochs, epoch_ends=pattern)
    assert [mark.time for mark in found] == [1, 2, 4] and "one bar" in note


@pytest.mark.parametrize(
    ("text", "numbers", "note"),
    [
        ("step {0}k loss 1", [None] * 3, "each is taken for one step"),
        ("step {0}e3 loss 1", [None] * 3, "each is taken for one step"),
        ("epoch {0} G loss 1", [1, 2, 3], None),
    ],
)
def test_a_multiple_of_a_step_is_told(text, numbers, note):
    told = [(float(n), text.format(n)) for n in range(1, 4)]
    found, notes = lines(*told, **{f"{text.split()[0]}_ends": "loss"})
    assert [mark.number for mark in found] == numbers
    assert (note in notes[0]) if note else not notes


@pytest.mark.parametrize(
    ("text", "numbers", "made", "has_single_steps"),
    [
        ("iter {}: loss 1", range(6), 5, True),
        ("iter {}: loss 1", range(0, 60, 10), 50, False),
        ("| Step {}/1,000 | loss 1", range(985, 1045, 10), 50, False),
        ("{}/100 [00:03<00:20, 4.31it/s, loss=1]", range(6), 5, True),
        # Of bars, and of rows that are numbered alike, nobody knows the steps between two.
        ("{}/100 [00:03<00:20, 4.31it/s, loss=1]", [1, 4, 7, 7, 9, 10], None, False),
        ("Train Epoch: 1 [{}/60000 (1%)] loss 1", range(0, 384, 64), None, False),
        ("Epoch [1/5], Step [{}/600], loss: 2.2", range(100, 700, 100), 500, False),
        ("[1, {}] loss: 2.173", range(2000, 14000, 2000), 10000, False),
        ("accuracy 37/64 loss 1 after {} ms", range(6), 5, True),
        # No numbers of steps: the line is a step, as asked.
        ("batch 64: loss 1 after {} ms", range(6), 5, True),
        ("loss 1", range(6), 5, True),
    ],
)
def test_a_line_of_several_steps_is_several(text, numbers, made, has_single_steps):
    shown = [f"{n:,}" if "1,000" in text else n for n in numbers]
    told = [(6.0 + place, text.format(n)) for place, n in enumerate(shown)]
    found, _ = lines(*told, step_ends="loss")
    [epoch] = marks.epochs(found, started=0.0)
    assert (epoch.count, epoch.has_single_steps) == (made, has_single_steps)
    assert (epoch.began, epoch.train_seconds) == (6.0, 5.0)


def test_of_epochs_the_steps_are_counted_from_their_beginning():
    told = [
        (10.0 * epoch + step, f"epoch {epoch} step {step} loss 1" if step else "== end ==")
        for epoch in range(1, 4)
        for step in (4, 8, 0)
    ]
    told = sorted((time if "end" not in text else time + 9, text) for time, text in told)
    found, _ = lines(*told, epoch_ends="== end", step_ends="loss")
    assert [epoch.count for epoch in marks.epochs(found, started=0.0)] == [4, 8, 8]


@pytest.mark.parametrize("numbered", [True, False])
def test_steps_of_which_nobody_knows_who_wrote_them_are_not_counted(numbered):
    text = "[rank {rank}] step {epoch} loss {loss}" if numbered else "loss {loss}"
    found, _ = lines(*by_ranks(text, epochs=9, late=0.01), step_ends="loss", ranks=2)
    [epoch] = marks.epochs(found, started=0.0)
    assert epoch.count == (8 if numbered else None)
    assert epoch.train_seconds == pytest.approx(9.09 - (1.01 if numbered else 1.0))


def test_lines_before_the_steps_of_an_epoch_begin_it():
    told = [(6.0, "Epoch 1/2"), (7.0, "step 1"), (8.0, "step 2"), (9.0, "Epoch 2/2"),
            (10.0, "step 1"), (11.0, "step 2")]  # fmt: skip
    found, _ = lines(*told, epoch_ends="Epoch", step_ends="step")
    first, second = marks.epochs(found, started=0.0)
    assert (first.began, first.steps, second.steps) == (6.0, [1.0, 1.0], [1.0, 1.0])


@pytest.mark.parametrize(
    ("told", "ended", "said"),
    [
        ([(3.0, "Epoch 1/3"), (5.0, "Epoch 2/3"), (7.0, "Epoch 3/3")], 9.1, "refused"),
        ([(3.0, "Epoch 1/2, lr 1"), (9.0, "Epoch 2/2, lr 1")], 15.0, "refused"),
        ([(3.0, "Epoch 1/1")], 9.0, "refused"),
        ([(2.0, "epoch 1"), (4.0, "epoch 2")], 4.4, ""),
        ([(2.0, "epoch 1"), (2.1, "epoch 2")], 2.4, ""),  # its libraries end
        ([(2.0, "epoch 1 loss 0.5"), (4.0, "epoch 2 loss 0.4")], 4.9, ""),
        # It tests.
        ([(2.0, "epoch 1 loss 0.5"), (4.0, "epoch 2 loss 0.4")], 6.0, "noted"),
        ([(2.0, "step 1"), (3.0, "epoch 1"), (4.0, "step 1"), (5.0, "epoch 2")], 7.0, "noted"),
        ([(2.0, "epoch 1"), (3.0, "step 1"), (4.0, "epoch 2"), (6.0, "step 1")], 6.1, ""),
        ([(2.0, "epoch 1 took 1.5"), (4.0, "epoch 2 took 1.4")], 9.0, ""),
    ],
)
def test_lines_that_begin_epochs_are_not_taken_for_their_ends(told, ended, said):
    ends = r"(?i)epoch \d+(.* lr (?P<lr>\S+))?(.* loss (?P<loss>\S+))?( took (?P<seconds>\S+))?"
    found, _ = lines(*told, epoch_ends=ends, step_ends=r"step \d+")
    if said == "refused":
        with pytest.raises(Failed, match="may begin an epoch"):
            lines_of.require_ends(found, started=0.0, ended=ended)
    else:
        notes = lines_of.require_ends(found, started=0.0, ended=ended)
        assert [said] * bool(said) == ["noted" for note in notes if "the last one is not" in note]


@pytest.mark.parametrize(
    ("between", "name", "is_noted"),
    [
        (2.0, "seconds", True),
        (0.4, "seconds", False),
        # Not those of a whole epoch.
        *((2.0, name, False) for name in ("seconds_per_step", "eval_seconds", "seconds_left")),
    ],
)
def test_epochs_that_take_longer_than_their_lines_tell_are_noted(between, name, is_noted):
    """A script that evaluates after the line: its own seconds are those of the training alone."""
    told = [(n * (0.5 + between), f"epoch {n} in 0.5 sec, 9000 a sec") for n in (1, 2, 3, 4)]
    names = rf"in (?P<{name}>\S+) sec, (?P<images_per_second>\S+) a"
    found, _ = lines(*told, epoch_ends=names)
    notes = lines_of.notes_on_lengths([marks.epochs(found, started=0.0)])
    assert [("0.5 s" in each, "2.5 s" in each) for each in notes] == [(True, True)] * is_noted


def test_ranks_that_tell_only_of_steps_make_the_epochs_of_the_others():
    told = ((BEGIN, 1.0), (STEP, 2.0, ("rows", 8)), (EPOCH, 3.0), (STEP, 4.0, ("rows", 8)))
    silent, ends = marked(*(each for each in told if each[0] != EPOCH)), marked(*told, (EPOCH, 5.0))
    [found] = marks.epochs_by_process([silent, ends], started=0.0)
    assert [epoch.count for epoch in found] == [1, 1]
    assert [epoch.rows for epoch in found] == [[None], [None]], "those of all are not known"
    both = marks.epochs_by_process([silent, silent, []], started=0.0)
    assert [[epoch.rows for epoch in each] for each in both] == [[[8, 8]]] * 2


def test_processes_that_follow_each_other_are_one_training():
    """Such as those of folds; ranks, which run at the same time, are several."""
    first, second = marked((BEGIN, 1.0), (EPOCH, 3.0)), marked((BEGIN, 1.5), (EPOCH, 3.5))
    fold = marked((BEGIN, 4.0), (EPOCH, 6.0))
    assert marks.join_sequences([first, second, fold]) == [[*first, *fold], second]


SCRIPT = """
import os
from escala_steps import begin, epoch, score, step, steps
import numpy
begin(parameters=12)
for batch in steps([numpy.zeros((3, 2)), numpy.zeros((2, 2)), "text"], rows=len):
    pass
epoch(loss=numpy.float32(0.5), nothing=None)
if os.fork() == 0:
    step(rows=1)
    os._exit(0)
os.wait()
score(f1=1)
"""


def hooked(folder: Path, source: str) -> list[list[Mark]]:
    """Run a script with the hook to its end, and return the marks of its processes."""
    environment = os.environ | {"PYTHONPATH": str(HOOK), "ESCALA_STEPS": str(folder)}
    subprocess.run([sys.executable, "-c", source], env=environment, check=True)
    by_process, unread = marks.read_files(folder)
    assert unread == 0
    return by_process


def test_the_hook_marks_steps_rows_and_epochs_of_each_process(tmp_path):
    first, forked = hooked(tmp_path, SCRIPT)
    told = [(mark.event, mark.values) for mark in first]
    rows = [(STEP, {"rows": float(number)}) for number in (3, 2, 4)]
    assert (
        told[:2] == [(BEGIN, {"parameters": 12.0}), (BEGIN, {"steps": 3.0})] and told[2:5] == rows
    )
    assert told[5:] == [(EPOCH, {"loss": 0.5}), (SCORE, {"f1": 1.0})]
    assert [mark.event for mark in forked] == [STEP]
    assert sorted(mark.time for mark in first) == [mark.time for mark in first]
    assert marks.value_at_begin(first, "parameters") == 12
    # Without Escala it does nothing.
    environment = {k: v for k, v in os.environ.items() if k != "ESCALA_STEPS"}
    (here := tmp_path / "here").mkdir()
    call = [sys.executable, "-c", SCRIPT]
    subprocess.run(call, env=environment | {"PYTHONPATH": str(HOOK)}, cwd=here, check=True)
    assert not list(here.iterdir())


#: Ways to make three steps of 20 ms an epoch, twice; `wait()` is the work of a step.
LOOPS = {
    "break after a step": """
    for number, batch in enumerate(steps(range(9))):
        wait()
        if number == 2: break""",
    "break before a step": """
    for number, batch in enumerate(steps(range(9))):
        if number == 3: break
        wait()""",
    "another loop ends first": """
    for _, batch in zip(range(3), steps(range(9))): wait()""",
    "next of the steps themselves": """
    turns = steps(range(9))
    for _ in range(3): next(turns); wait()""",
    "an error after the steps": """
    try:
        for number, batch in enumerate(steps(range(9))):
            wait()
            if number == 2: raise OverflowError
    except OverflowError: pass""",
    "steps of a loader that is looped over again": """
    assert len(loader) == 3 and loader.start == 0
    for batch in loader: wait()""",
    "told as well": """
    for batch in steps(range(3)):
        wait()
        step(rows=8)""",
}


@pytest.mark.parametrize("how", LOOPS)
def test_no_way_out_of_a_loop_loses_or_adds_a_step(how, tmp_path):
    source = (
        "import time\nfrom escala_steps import epoch, step, steps\n"
        "def wait(): time.sleep(0.02)\nloader = steps(range(3))\n"
        f"for number in range(2):{LOOPS[how]}\n    epoch(loss=1)\n    time.sleep(0.3)"
    )
    [told] = hooked(tmp_path, source)
    found = marks.epochs(told, started=told[0].time)
    assert [epoch.count for epoch in found] == [3, 3]
    assert all(0.06 <= epoch.train_seconds < 0.3 for epoch in found), found
    assert all(seconds >= 0.02 for epoch in found for seconds in epoch.steps)


def test_an_epoch_that_ends_within_a_loop_has_its_last_step(tmp_path):
    source = (
        "from escala_steps import epoch, steps\n"
        "for number, batch in enumerate(steps(range(6))):\n    if number % 3 == 2: epoch()"
    )
    [told] = hooked(tmp_path, source)
    assert [mark.event for mark in told] == [BEGIN, *([STEP] * 3 + [EPOCH]) * 2]


def test_nothing_that_the_hook_is_told_ends_a_training(tmp_path):
    source = """
import escala_steps as e
class Odd:
    def __float__(self): raise KeyError
e.begin("now")
e.step(32)
e.epoch({"loss": 0.5}, per_class=[0.1, 0.9], phase="train", odd=Odd(), share="0.25")
e.epoch(None, per_class=[0.1])
for batch in e.steps([1], rows=lambda batch: batch.shape[7]): pass
for batch in e.steps([([1] * 8, [0] * 8), {"x": [1] * 8}], rows=len): pass
e.score(report={"virus": 0.5})
"""
    [told] = hooked(tmp_path, source)
    values = [mark.values for mark in told if mark.event in (EPOCH, SCORE)]
    assert values == [{"loss": 0.5, "share": 0.25}, {}, {}]
    left_out = [name for mark in told for name in mark.left_out]
    unnamed = "a value without a name"
    assert left_out == [
        unnamed, unnamed, "per_class", "phase", "odd", "per_class", *["rows"] * 3, "report",
    ]  # fmt: skip


def test_marks_that_cannot_be_written_end_no_training_and_are_counted(tmp_path):
    folder = tmp_path / "later"
    source = (
        "import os\nfrom escala_steps import epoch, step\nstep(rows=1)\nstep()\n"
        f"os.mkdir({str(folder)!r})\nepoch(won=1, lost=7)"
    )
    [[told]] = hooked(folder, source)
    assert (told.event, told.values, told.lost) == (EPOCH, {"won": 1.0, "lost": 7.0}, 2)


class Array(list):
    def __init__(self, *shape):
        super().__init__(range(shape[0]))
        self.shape = shape


class Loader(list):
    """As PyTorch's: it has 20 rows, and takes eight of them a batch."""

    batch_size, sampler = 8, range(20)


def test_rows_are_known_from_the_loader_or_the_user_and_never_guessed(monkeypatch):
    monkeypatch.syspath_prepend(HOOK)
    import escala_steps

    rows = []
    monkeypatch.setattr(escala_steps, "_mark", lambda event, *told: rows.extend(told[:-1]))
    known = [{"rows": each} for each in (8, 8, 4)]
    for batches in (
        [[Array(3, 40, 50) for _ in range(8)]] * 3,
        [([Array(3, 40, 50)] * 8, [{"boxes": Array(2, 4)}] * 8)] * 3,
        # The time first.
        [(Array(35, 8, 5), Array(35, 8))] * 3,
    ):
        bar = type("Bar", (list,), {"iterable": Loader(batches)})(batches)
        for loader, more, expected in (
            (batches, {}, [{"rows": None}] * 3),
            (Loader(batches), {}, known),
            (bar, {}, known),
            (batches, {"rows": 8}, [{"rows": 8}] * 3),
        ):
            rows.clear()
            assert list(escala_steps.steps(loader, **more)) == batches
            assert rows == expected


def test_callbacks_tell_what_frameworks_tell_them_and_end_no_training(tmp_path):
    for module, name in (
        ("keras.callbacks", "Callback"),
        ("lightning.pytorch", "Callback"),
        ("transformers", "TrainerCallback"),
    ):
        file = tmp_path / "packages" / Path(*module.split("."), "__init__.py")
        file.parent.mkdir(parents=True)
        (file.parents[1] / "__init__.py").touch()
        file.write_text(f"class {name}: pass")
    source = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'packages')!r})"
        + """
from types import SimpleNamespace as Of
import escala_steps as e
keras = e.keras()
for number in range(2):  # ten steps a call
    keras.on_epoch_begin(number)
    for last in (9, 19, 24): keras.on_train_batch_end(last, {"loss": 1})
    keras.on_epoch_end(number, logs={"loss": 0.5, "text": "a"} if number else None)
loader = Of(batch_size=8, sampler=range(20))
trainer, lightning = Of(train_dataloader=loader, callback_metrics={"val/loss": 0.25}), e.lightning()
lightning.on_train_epoch_start(trainer, None)
for number in range(3): lightning.on_train_batch_end(trainer, None, None, None, number)
lightning.on_train_epoch_end(trainer, None)
hugging = e.transformers()
hugging.on_epoch_begin(None, None, None, model=None)
hugging.on_step_end(None, None, None)
hugging.on_epoch_end(None, None, None)
lightning.on_train_batch_end(Of(), None)
e.score()
"""
    )
    (tmp_path / "marks").mkdir()
    [told] = hooked(tmp_path / "marks", source)
    found = marks.epochs(marks.count_steps(told), started=told[0].time)
    keras_and_lightning, hugging = found[:3], found[3]
    assert [epoch.count for epoch in keras_and_lightning[:2]] == [25, 25]
    assert not keras_and_lightning[0].has_single_steps
    assert [epoch.values for epoch in found] == [{}, {"loss": 0.5}, {"val/loss": 0.25}, {}]
    assert keras_and_lightning[2].rows == [8, 8, 4]
    assert hugging.count == 1 and told[-1].lost == 1


def test_a_line_that_was_cut_is_left_out_and_others_that_are_no_marks_are_counted(tmp_path):
    whole = json.dumps(["epoch", 1.0, {}])
    (tmp_path / "1.jsonl").write_text(f"{whole}\n{whole[:9]}")
    assert marks.read_files(tmp_path) == ([[Mark(EPOCH, 1.0, {})]], 0)
    bad = ["", "[]", "\x00", '["epoch", "soon", {}]', '["other", 1, {}]', '["epoch", 1, [2]]']
    bad.append('["step", 1, {"rows": []}]')
    (tmp_path / "1.jsonl").write_text("\n".join([*bad, whole, ""]))
    assert marks.read_files(tmp_path) == ([[Mark(EPOCH, 1.0, {})]], len(bad))


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (((BEGIN, 5.0), (STEP, 4.0)), "decrease"),
        (((STEP, 0.5),), "outside of its run"),
        (((STEP, 99.0),), "outside of its run"),
        (((EPOCH, 2.0, ("epoch", 2)), (EPOCH, 3.0, ("epoch", 1))), "epoch 1 after that of epoch 2"),
        (((EPOCH, 2.0, ("epoch", 1)), (EPOCH, 3.0, ("epoch", 1))), "epoch 1 after that of epoch 1"),
    ],
)
def test_times_and_numbers_of_epochs_grow(events, said):
    with pytest.raises(Failed, match=said):
        marks.require_order([marked(*events)], started=1.0, ended=9.0)
    good = marked((EPOCH, 2.0, ("epoch", 1)), (EPOCH, 3.0, ("epoch", 2)))
    marks.require_order([good, good], started=1.0, ended=9.0)
    assert marks.scores(good) == {}


def test_lines_that_arrive_at_once_have_no_times():
    with pytest.raises(Failed, match="too short to be timed, the program holds its output back"):
        lines_of.drop_buffered_steps(marked((EPOCH, 2.0), (EPOCH, 2.0)))
    held = marked((STEP, 1.0), (STEP, 1.0), (STEP, 1.0), (EPOCH, 1.1), (EPOCH, 1.2))
    assert {mark.event for mark in lines_of.drop_buffered_steps(held)} == {EPOCH}
    without_held_steps = marked((STEP, 1.0), (STEP, 1.0), (STEP, 1.1), (EPOCH, 1.1))
    assert lines_of.drop_buffered_steps(without_held_steps) == without_held_steps


def test_a_long_line_is_searched_in_time_that_grows_with_it_and_that_it_is_cut_is_said():
    searched = OutputSearch("end", None)
    for _ in range(100):
        searched.feed(b"x" * 10**6, 1.0)
    searched.feed(b"end\nend\n", 2.0)
    searched.end()
    assert [mark.time for mark in searched.marks] == [2.0, 2.0]
    assert "1 line of its output had more than 8192 characters" in searched.notes[0]


def test_nan_in_a_line_of_which_no_number_is_read_is_said():
    searched = OutputSearch(r"^epoch (?P<epoch>\d+)", r"step \d+ loss (?P<loss>[0-9.]+)")
    searched.feed(b"step 1 loss nan\nepoch 1 loss nan\nepoch 2 loss NaN\nbanana\n", 1.0)
    searched.end()
    assert [sorted(mark.values) for mark in searched.marks] == [["loss"], ["epoch"], ["epoch"]]
    [note] = searched.notes
    assert "2 lines" in note and "'epoch 1 loss nan'" in note


def test_the_hooks_are_for_old_pythons():
    for file in HOOK.glob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 8))
