"""Runs that other work disturbed are measured again, and keep what was measured before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from escala.core.environment import SESSION_VARIABLE
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.record import again
from scripts import train


def run(number: int, disturbed: bool | None, status: str = "ok", **changes: object) -> dict:
    ok = status == "ok"
    because = "0.97 core of other processes" if disturbed else None
    disturbance = {"disturbed": disturbed, "reason": because, "nodes": [], "earlier": []}
    return {
        "status": status, "reason": None if ok else "it failed", "started": f"attempt {number}",
        "session": "s", "repeat": 3, "instrument": None, "wall_seconds": 10.0,
        "seconds": {"train": float(number)} if ok else None,
        "disturbance": disturbance if ok else None, **changes,
    }  # fmt: skip


def measuring(*outcomes: dict) -> Callable:
    """Return what stands for `measure`, with these results one after the other."""
    left = list(outcomes)

    def measure(request: dict, data: Path, output: Path, seconds: float) -> None:
        result = left.pop(0)
        (output.parent / "ranks").mkdir(parents=True, exist_ok=True)
        for name in ("ranks/rank0.log", "predictions.npy"):
            (output.parent / name).write_text(result["started"])
        write_json(output.parent / "sessions" / "s.json", result)
        write_json(output, result)

    return measure


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SESSION_VARIABLE, "s")
    monkeypatch.delenv(again.VARIABLE, raising=False)
    return tmp_path / "rep3" / "run.json"


def settle(output: Path, first: dict, *later: dict, seconds: float = 3600, repeat=None) -> bool:
    measuring(first)({}, output, output, 0)
    turn = {"repeat": repeat}
    return again.settled(measuring(*later), {}, turn, Path("data"), output, seconds)


def test_where_no_run_ends_the_repeat_a_disturbed_run_is_measured_again_at_once(output, capsys):
    assert settle(output, run(1, True), run(2, True), run(3, False))
    found = read_json(output)
    assert found == read_json(output.parent / "sessions/s.json")
    assert found["started"] == "attempt 3" and found["disturbance"]["disturbed"] is False
    earlier = found["disturbance"]["earlier"]
    told = [(each["started"], each["train_seconds"]) for each in earlier]
    assert told == [("attempt 1", 1.0), ("attempt 2", 2.0)]
    for name in ("ranks/rank0.log", "predictions.npy"):
        assert (output.parent / name).read_text() == "attempt 3"
    assert not (output.parent / "again").exists()
    said = "disturbed: 0.97 core of other processes; it is measured again"
    assert said in capsys.readouterr().err


def test_a_run_is_measured_again_at_most_twice(output):
    assert settle(output, run(1, True), run(2, True), run(3, True))
    found = read_json(output)["disturbance"]
    assert found["disturbed"] and len(found["earlier"]) == 2


@pytest.mark.parametrize(
    "first",
    [run(1, False), run(1, None), run(1, None, "failed"), run(1, True, instrument="clocks")],
)
def test_what_is_not_a_disturbed_timing_run_is_not_measured_again(output, first):
    assert settle(output, first) == (first["status"] == "ok")
    assert read_json(output) == first


def test_a_measurement_that_fails_does_not_replace_a_disturbed_one(output):
    assert settle(output, run(1, True), run(2, None, "failed"), run(3, None, "timeout"))
    found = read_json(output)
    assert found["started"] == "attempt 1" and found["status"] == "ok"
    statuses = [(each["status"], each["reason"]) for each in found["disturbance"]["earlier"]]
    assert statuses == [("failed", "it failed"), ("timeout", "it failed")]
    assert (output.parent / "predictions.npy").read_text() == "attempt 1"


def test_what_does_not_fit_into_the_time_limit_is_not_measured_again(output, capsys):
    assert settle(output, run(1, True), seconds=15)
    assert read_json(output)["started"] == "attempt 1"
    assert "leaves no room" in capsys.readouterr().err


def test_an_interrupted_measurement_leaves_the_disturbed_one(output):
    def interrupted(request: dict, data: Path, to: Path, seconds: float) -> None:
        (to.parent / "ranks").mkdir(parents=True)
        raise SystemExit(130)

    measuring(run(1, True))({}, output, output, 0)
    with pytest.raises(SystemExit):
        again.measured_again(interrupted, {}, output, output, 60)
    assert read_json(output)["started"] == "attempt 1" and not (output.parent / "again").exists()


def test_where_the_end_of_the_repeat_is_known_a_run_waits_for_it(output, capsys, monkeypatch):
    # What other work disturbed is not stored before.
    assert not settle(output, run(1, True), repeat=[])
    assert read_json(output)["started"] == "attempt 1"
    assert "at the end of repeat 3" in capsys.readouterr().err
    assert again.request_of(output)["data"] == "data"
    monkeypatch.setenv(SESSION_VARIABLE, "other")
    assert again.request_of(output) is None


def test_the_number_of_times_is_the_users(output, monkeypatch):
    monkeypatch.setenv(again.VARIABLE, "0")
    assert settle(output, run(1, True))
    assert read_json(output)["disturbance"]["earlier"] == []
    monkeypatch.setenv(again.VARIABLE, "often")
    with pytest.raises(InputError, match=again.VARIABLE):
        again.times()


@pytest.mark.parametrize(
    ("ending", "said"),
    [(SystemExit(130), "interrupted"), (InputError("job", 17, "lost", "again"), "job: 17: lost")],
)
def test_a_run_is_complete_though_a_disturbed_one_was_not_measured_again(
    monkeypatch, capsys, ending, said
):
    def ended(outputs: list[Path]) -> None:
        raise ending

    monkeypatch.setattr("sys.argv", ["train", "--request", "{}", "--data", "d", "--output", "o"])
    monkeypatch.setattr(train, "die_with_parent", lambda: None)
    monkeypatch.setattr(train, "serve_or_measure", lambda *arguments: None)
    monkeypatch.setattr(train, "end_repeat", ended)
    assert train.main() is None
    assert said in capsys.readouterr().err


def test_each_repeat_of_each_task_and_pair_ends_with_its_last_run():
    def of(name: str, place: int, **changes: object) -> SimpleNamespace:
        fields = {"experiment": "e", "dataset": "d", "workload": "w", "series": None, "repeat": 1}
        return SimpleNamespace(file=name, place=place, **(fields | changes))

    runs = [
        of("b", 2), of("a", 1), of("again", 3, series="duplicate"), of("c", 4, repeat=2),
        of("other", 0, workload="v"), of("after", 9, series="x-1"), of("before", 8, series="x-1"),
    ]  # fmt: skip
    assert again.by_last_run(runs, lambda each: each.place) == {
        "again": ["a", "b", "again"],
        "c": ["c"],
        "other": ["other"],
        "after": ["before", "after"],
    }
