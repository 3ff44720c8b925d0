"""A repeat that other work disturbed is measured again whole, and the least disturbed stands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from escala.core.environment import SESSION_VARIABLE
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.record import again
from escala.record.disturbance import is_disturbed
from escala.record.stored import keep_older
from scripts import train

TWO_SIDES = "1x1", "1x2"


def run(
    number: int, disturbed: bool | None, status: str = "ok", taken: float = 0.97, **changes: object
) -> dict:
    ok = status == "ok"
    because = "0.97 core of other processes" if disturbed else None
    disturbance = {
        "disturbed": disturbed, "reason": because, "kernel": None, "earlier": [],
        "nodes": [{"taken_cores": taken if disturbed else 0.0}],
    }  # fmt: skip
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
    return again.settle(measuring(*later), {}, turn, Path("data"), output, seconds)


def ended(
    output: Path, monkeypatch, attempts: list[tuple[dict, ...]], quiet: bool = True
) -> list[dict]:
    """Let a repeat of two sides be measured by these attempts; return the runs that stand."""
    outputs = [output.parents[1] / side / "run.json" for side in TWO_SIDES]
    for path, first in zip(outputs, attempts[0], strict=True):
        settle(path, first, repeat=[])
    later = measuring(*(each for attempt in attempts[1:] for each in attempt))
    stored = []
    monkeypatch.setattr(train, "measure_of", lambda turn: later)
    monkeypatch.setattr(train, "serve_or_measure", lambda *given, **_: stored.append(given[3]))
    monkeypatch.setattr(again, "wait_for_quiet", lambda: quiet)
    train.end_repeat(outputs)
    for path in outputs:
        assert not (path.parent / "again").exists() and not again.request_of(path)
        stands = read_json(path)
        assert stands == read_json(path.parent / "sessions/s.json")
        # All that a run leaves is of the attempt that stands.
        for name in ("ranks/rank0.log", "predictions.npy"):
            assert (path.parent / name).read_text() == stands["started"]
    runs = [read_json(path) for path in outputs]
    # What was disturbed at first was not stored before.
    first = {path for path, each in zip(outputs, attempts[0], strict=True) if is_disturbed(each)}
    replaced = {path for path in outputs if read_json(path)["started"] != "attempt 1"}
    assert sorted(stored) == sorted(first | replaced)
    return runs


def standing(runs: list[dict]) -> list[str]:
    return [run["started"] for run in runs]


def test_both_sides_of_a_disturbed_match_are_measured_again(output, monkeypatch):
    runs = ended(output, monkeypatch, [(run(1, True), run(1, False)), (run(2, False),) * 2])
    assert standing(runs) == ["attempt 2"] * 2
    for each, was in zip(runs, (True, False), strict=True):
        [earlier] = each["disturbance"]["earlier"]
        assert (earlier["started"], earlier["disturbed"]) == ("attempt 1", was)


@pytest.mark.parametrize(
    ("attempts", "stands"),
    [
        # The last attempt is not better because it is the last.
        ([(True, False), (True, True), (True, True)], 1),
        ([(True, True), (True, False), (True, True)], 2),
        ([(True, True), (True, True), (False, False)], 3),
        # A side of one attempt and a side of another are never set against each other.
        ([(True, False), (False, True), (True, False)], 1),
        # It ends as soon as no run is disturbed.
        ([(False, True), (False, False)], 2),
        ([(False, False)], 1),
    ],
)
def test_the_attempt_that_was_disturbed_least_stands_for_all_runs(
    output, monkeypatch, attempts, stands
):
    of = [tuple(run(n, each) for each in sides) for n, sides in enumerate(attempts, start=1)]
    runs = ended(output, monkeypatch, of)
    assert standing(runs) == [f"attempt {stands}"] * 2
    others = [f"attempt {n}" for n in range(1, len(attempts) + 1) if n != stands]
    for each in runs:
        assert [earlier["started"] for earlier in each["disturbance"]["earlier"]] == others


def test_of_equally_many_disturbed_runs_fewer_cores_decide_and_never_the_time(output, monkeypatch):
    heavy, light = (run(1, True, taken=1.5), run(1, True)), (run(9, True, taken=0.2),) * 2
    runs = ended(output, monkeypatch, [heavy, light, (run(2, True, taken=0.9),) * 2])
    assert standing(runs) == ["attempt 9"] * 2


def test_an_attempt_of_which_a_run_fails_replaces_nothing(output, monkeypatch):
    failed = (run(2, False), run(2, None, "failed"))
    runs = ended(output, monkeypatch, [(run(1, True), run(1, False)), failed, failed])
    assert standing(runs) == ["attempt 1"] * 2
    assert [e["status"] for e in runs[1]["disturbance"]["earlier"]] == ["failed"] * 2


def test_a_repeat_is_not_measured_again_on_a_machine_that_does_not_become_quiet(
    output, monkeypatch
):
    runs = ended(output, monkeypatch, [(run(1, True), run(1, False))], quiet=False)
    assert standing(runs) == ["attempt 1"] * 2 and runs[0]["disturbance"]["earlier"] == []


def test_what_is_interrupted_leaves_the_first_attempt_of_all_runs(output, monkeypatch):
    outputs = [output.parents[1] / side / "run.json" for side in TWO_SIDES]
    for path in outputs:
        measuring(run(1, True))({}, path, path, 0)

    def interrupted(to: Path) -> None:
        raise SystemExit(130)

    measured = measuring(run(2, False))
    with pytest.raises(SystemExit):
        again.measure_again(
            {outputs[0]: lambda to: measured({}, to, to, 0), outputs[1]: interrupted}
        )
    assert standing(map(read_json, outputs)) == ["attempt 1"] * 2
    assert not any((path.parent / "again").exists() for path in outputs)


def load_of(*taken: float) -> type:
    """Return what stands for `Load`, of a machine of which others take so many cores each time."""
    left = iter(taken)

    class Stretch:
        def __init__(self, roots: list[int]):
            self.found = {
                "seconds": 1.0, "busy": next(left), "counted": 2.0, "own": 0.0, "steal": 0.0,
                "throttled": None, "pressure": None, "major_faults": 0, "stretches": 1, "cores": 2,
            }  # fmt: skip

        def begin(self) -> None: ...
        def end(self) -> None: ...

    return Stretch


def test_it_waits_until_the_machine_is_quiet_but_not_longer_than_the_bound(monkeypatch, capsys):
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(again, "time", clock)
    monkeypatch.setattr("escala.core.progress.time", clock)
    monkeypatch.setattr(again, "Load", load_of(*[1.0] * 6, 0.0, 0.0, 0.9, 0.0, 0.05, 0.0, 9.0))
    assert again.wait_for_quiet() and clock.now == 12
    assert "waiting for quiet: 1.00 core of other processes" in capsys.readouterr().err
    monkeypatch.setenv(again.WAIT_VARIABLE, "20")
    monkeypatch.setattr(again, "Load", load_of(*[0.0, 0.7] * 100))
    began = clock.now
    assert not again.wait_for_quiet()
    assert 20 < clock.now - began <= 22
    assert "did not become quiet" in capsys.readouterr().err
    monkeypatch.setenv(again.WAIT_VARIABLE, "0")
    monkeypatch.setattr(again, "Load", load_of())
    assert again.wait_for_quiet()


def test_where_no_run_ends_the_repeat_a_disturbed_run_is_measured_again_at_once(output, capsys):
    assert settle(output, run(1, True), run(2, True), run(3, False))
    found = read_json(output)
    assert found == read_json(output.parent / "sessions/s.json")
    assert found["started"] == "attempt 3" and found["disturbance"]["disturbed"] is False
    earlier = found["disturbance"]["earlier"]
    assert {each["started"] for each in earlier} == {"attempt 1", "attempt 2"}
    assert (output.parent / "predictions.npy").read_text() == "attempt 3"
    assert "0.97 core of other processes" in capsys.readouterr().err


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


def test_what_does_not_fit_into_the_time_limit_is_not_measured_again(output, capsys):
    assert settle(output, run(1, True), seconds=15)
    assert read_json(output)["started"] == "attempt 1"
    assert "leaves no room" in capsys.readouterr().err


def test_a_run_leaves_its_request_until_its_repeat_has_ended(output, capsys, monkeypatch):
    # What other work disturbed is not stored before.
    assert not settle(output, run(1, True), repeat=[])
    assert read_json(output)["started"] == "attempt 1"
    assert again.request_of(output)["data"] == "data"
    monkeypatch.setenv(SESSION_VARIABLE, "other")
    assert again.request_of(output) is None


def test_the_number_of_times_is_the_users(output, monkeypatch):
    monkeypatch.setenv(again.VARIABLE, "0")
    assert settle(output, run(1, True), repeat=[])
    assert read_json(output)["disturbance"]["earlier"] == [] and not again.request_of(output)
    for variable, reader in (
        (again.VARIABLE, again.times),
        (again.WAIT_VARIABLE, again.wait_for_quiet),
    ):
        monkeypatch.setenv(variable, "often")
        with pytest.raises(InputError, match=variable):
            reader()


def test_of_a_session_that_the_store_holds_twice_the_last_attempt_counts(tmp_path):
    written = [json.dumps({"session": "s", "attempt": n}).encode() for n in (1, 2)]
    assert keep_older(tmp_path / "run.json", written) == {"s"}
    assert read_json(tmp_path / "sessions/s.json")["attempt"] == 2


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
