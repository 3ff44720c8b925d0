"""What the processes of a program tell becomes the result of its run."""

from __future__ import annotations

from pathlib import Path

import pytest

from escala.core.files import write_json
from escala.programs.program import Program
from escala.record.collect import collect
from escala.record.schema import Outcome
from escala.training.process import PARTS, Told


def planned(*words: str) -> dict:
    """Return the plan of two processes of a program, with further words of its command."""
    program = Program.of({"command": ["true", *words]}, Path.cwd(), "a test")
    return {
        "strategy": "processes", "ranks": 2, "instrument": None,
        "knobs": {"threads": {"intra_op": 1, "inter_op": 1}},
        "start": {"program": program.as_plan(), "paths": {}},
        "places": [{"host": "example", "cores": [0], "nodes": 1, "ranks": [0]}] * 2,
    }  # fmt: skip


def told(known_by: str, rows: int | None, seconds: float) -> dict:
    epoch = {
        "epoch": 2, "steps": None, "rows": rows, "began": 1.0,
        "train_seconds": seconds, "epoch_wall_seconds": seconds, "validation_seconds": None,
        "loss": None, "accuracy": None, "validation_accuracy": None, "validation_loss": None,
        "scores": {},
    }  # fmt: skip
    return dict.fromkeys(Told.__annotations__) | {
        "known_by": known_by, "epochs": [epoch], "first_epoch": 1.5, "scores": {},
        "seconds": dict.fromkeys(PARTS), "whole_seconds": 5.0,
        "ranks": 2, "threads": {"intra_op": 1, "inter_op": 1}, "notes": [],
        "ran": {
            "processes": 1, "places": [], "cores": 1.0, "core_seconds": 3.0, "python": True,
            "threads": False, "ended": True, "begun": True, "idle": False, "alike": None,
            "silent_seconds": 1.0, "start_seconds": None,
        },
        "host": "example", "boot": "1", "cores": [0],
    }  # fmt: skip


def collected(plan: dict, processes: list[dict], folder: Path) -> Outcome:
    for number, process in enumerate(processes):
        write_json(folder / f"rank{number}.json", process)
    return collect(plan, folder, folder)


@pytest.mark.parametrize(
    ("other", "rows", "seconds"),
    [
        (told("hook", 32, 3.0), 96, 3.0),
        # One that tells of no epoch trained too: what it did is not known.
        (told("whole run", None, 9.0), None, 2.0),
    ],
    ids=["all tell", "one tells"],
)
def test_rows_are_known_if_every_process_tells_of_them(tmp_path: Path, other, rows, seconds):
    outcome = collected(planned(), [told("hook", 64, 2.0), other], tmp_path)
    assert outcome.status == "ok", outcome
    result = outcome.found
    assert [epoch["rows"] for epoch in result["epochs"]] == [rows]
    assert result["seconds"]["train"] == seconds
    assert result["samples_per_second"] == (rows and rows / seconds)


def test_a_process_that_says_nothing_beside_one_that_tells_is_no_unknown_run(tmp_path: Path):
    silent = told("whole run", None, 9.0)
    notes = []
    for first in (told("output", None, 2.0), silent):
        found = collected(planned("{epochs}"), [first, silent], tmp_path).found
        notes.append([note for note in found["program"]["notes"] if "{epochs}" in note])
    assert [len(each) for each in notes] == [0, 1]
