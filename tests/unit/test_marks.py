"""The epochs and the steps of a program, from its marks."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from escala.core.errors import Failed
from escala.training import marks, program_place
from escala.training.marks import BEGIN, EPOCH, SCORE, STEP, Mark, Searched

HOOK = program_place.HOOK


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


def test_without_steps_an_epoch_lasts_from_the_end_of_the_one_before():
    found = marks.epochs(marked((EPOCH, 7.0), (EPOCH, 9.0)), started=1.0)
    assert [epoch.train_seconds for epoch in found] == [6.0, 2.0]
    assert not any(epoch.marked for epoch in found)


def test_steps_without_the_end_of_an_epoch_are_one():
    [epoch] = marks.epochs(marked((BEGIN, 1.0), (STEP, 2.0), (STEP, 4.0)), started=0.0)
    assert (epoch.train_seconds, epoch.steps) == (3.0, [1.0, 2.0])
    assert marks.epochs([], started=0.0) == []


@pytest.mark.parametrize("ends", ["\n", "\r", "\r\n"])
def test_lines_are_searched_as_they_arrive_however_they_are_cut(ends):
    text = ends.join(["epoch 1", "loss=1,250.5 done", "loss=nothing done", "step 32 rows", ""])
    searched = Searched(r"loss=(?P<loss>[\w.,]+) done", r"step (?P<rows>\d+) rows")
    for place, letter in enumerate(text):
        searched.feed(letter.encode(), float(place))
    events = [(mark.event, mark.values) for mark in searched.marks]
    searched.end()
    assert events == [(EPOCH, {"loss": 1250.5}), (EPOCH, {}), (STEP, {"rows": 32.0})]
    assert searched.marks[0].time < searched.marks[1].time


def test_a_last_line_without_an_end_is_searched():
    searched = Searched("epoch", None)
    for time, text in enumerate((b"epoch 1", b"\repoch 2", b"")):
        searched.feed(text, float(time))
    searched.end()
    searched.end()
    assert [mark.time for mark in searched.marks] == [0.0, 1.0]


def test_scores_are_the_last_and_the_best_that_was_reported():
    reported = marked(
        (EPOCH, 1.0, ("loss", 0.2), ("accuracy", 0.5)),
        (EPOCH, 2.0, ("loss", 0.4), ("accuracy", 0.4)),
        (SCORE, 3.0, ("f1", 0.3)),
        (STEP, 3.0, ("loss", 9.0)),
    )
    assert marks.scores(reported) == {
        "loss": 0.4, "best_loss": 0.2, "accuracy": 0.4, "best_accuracy": 0.5, "f1": 0.3,
    }  # fmt: skip


SCRIPT = """
import os
from escala_steps import begin, epoch, score, step, steps
import numpy
begin(parameters=12)
for batch in steps([{"x": numpy.zeros((3, 2))}, (numpy.zeros(2), 1), "text"]):
    pass
epoch(loss=numpy.float32(0.5), nothing=None)
if os.fork() == 0:
    step(rows=1)
    os._exit(0)
os.wait()
score(f1=1)
"""


def test_the_hook_marks_steps_rows_and_epochs_of_each_process(tmp_path):
    environment = {"PYTHONPATH": str(HOOK), "ESCALA_STEPS": str(tmp_path)}
    subprocess.run([sys.executable, "-c", SCRIPT], env=os.environ | environment, check=True)
    (first, forked), unread = marks.read_files(tmp_path)
    assert unread == 0
    told = [(mark.event, mark.values) for mark in first]
    assert told == [
        ("begin", {"parameters": 12.0}),
        ("begin", {}),
        ("step", {"rows": 3.0}),
        ("step", {"rows": 2.0}),
        ("step", {}),
        ("epoch", {"loss": 0.5}),
        ("score", {"f1": 1.0}),
    ]
    assert [mark.event for mark in forked] == ["step"]
    assert sorted(mark.time for mark in first) == [mark.time for mark in first]
    assert marks.told(first, "parameters") == 12


def test_the_hook_does_nothing_without_escala(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "ESCALA_STEPS"}
    call = [sys.executable, "-c", SCRIPT]
    subprocess.run(call, env=environment | {"PYTHONPATH": str(HOOK)}, cwd=tmp_path, check=True)
    assert not list(tmp_path.iterdir())


def test_a_line_that_was_cut_is_left_out_and_others_that_are_no_marks_are_counted(tmp_path):
    whole = json.dumps(["epoch", 1.0, {}])
    (tmp_path / "1.jsonl").write_text(f"{whole}\n{whole[:9]}")
    assert marks.read_files(tmp_path) == ([[Mark(EPOCH, 1.0, {})]], 0)
    bad = [
        "",
        "[]",
        "\x00",
        '["epoch", "soon", {}]',
        '["other", 1, {}]',
        '["step", 1, {"rows": []}]',
    ]
    (tmp_path / "1.jsonl").write_text("\n".join([*bad, '["epoch", 1, [2]]', whole, ""]))
    assert marks.read_files(tmp_path) == ([[Mark(EPOCH, 1.0, {})]], len(bad) + 1)


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
    with pytest.raises(Failed, match="holds its output back"):
        marks.flowing(marked((EPOCH, 2.0), (EPOCH, 2.0)))
    held = marked((STEP, 1.0), (STEP, 1.0), (STEP, 1.0), (EPOCH, 1.1), (EPOCH, 1.2))
    assert {mark.event for mark in marks.flowing(held)} == {EPOCH}
    flowing = marked((STEP, 1.0), (STEP, 1.0), (STEP, 1.1), (EPOCH, 1.1))
    assert marks.flowing(flowing) == flowing


def test_a_long_line_is_searched_in_time_that_grows_with_it_and_that_it_is_cut_is_said():
    searched = Searched("end", None)
    for _ in range(100):
        searched.feed(b"x" * 10**6, 1.0)
    searched.feed(b"end\nend\n", 2.0)
    searched.end()
    assert [mark.time for mark in searched.marks] == [2.0, 2.0]
    assert "1 line of its output had more than 8192 characters" in searched.notes[0]


def test_nan_in_a_line_of_which_no_number_is_read_is_said():
    searched = Searched(r"^epoch (?P<epoch>\d+)", r"step \d+ loss (?P<loss>[0-9.]+)")
    searched.feed(b"step 1 loss nan\nepoch 1 loss nan\nepoch 2 loss NaN\nbanana\n", 1.0)
    searched.end()
    assert [sorted(mark.values) for mark in searched.marks] == [["loss"], ["epoch"], ["epoch"]]
    [note] = searched.notes
    assert "2 lines" in note and "'epoch 1 loss nan'" in note


def test_the_hook_is_one_short_file_for_old_pythons():
    text = (HOOK / "escala_steps.py").read_text()
    assert len(text.splitlines()) <= 60
    compile(text, "escala_steps.py", "exec")
    import ast

    ast.parse(text, feature_version=(3, 8))
