"""Which runs are measured with others, from the files that there are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from escala.experiment import Run
from escala.record.matches import Identity, Matches
from escala.record.schema import FORMAT
from escala.record.stored import keep_older, may_be_served

NOW = Identity("request", "source")


def run(strategy: str, repeat: int = 1) -> Run:
    return Run("e", "d", "w", strategy, "1x1", "tuned", "native", repeat)


REFERENCE, ONE, OTHER = (run(name) for name in ("single", "one", "other"))
RUNS = [REFERENCE, ONE, OTHER]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def measured(run: Run, *sessions: str, status: str = "ok", source: str = "source") -> None:
    """Leave what a run leaves that was measured in these sessions, the last of them ending so."""
    for session in sessions:
        last = {"status": status, "source_sha256": source} if session == sessions[-1] else {}
        record = {"session": session, "request_sha256": "request"}
        record |= {"format": FORMAT, "status": "ok", "source_sha256": "source"} | last
        path = Path(run.folder, "sessions", f"{session}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        for file in (path, Path(run.file)):
            file.write_text(json.dumps(record))


def more(needed: set[Run], done: set[Run] = frozenset(), sources: dict | None = None) -> set[Run]:
    """Return the runs that are measured with those of `needed`."""

    def expected(each: Run) -> Identity:
        return NOW._replace(source=(sources or {}).get(each, "source"))

    def references_of(each: Run) -> list[Run]:
        return [] if each == REFERENCE else [REFERENCE]

    return Matches(references_of, expected, needed, done).incomplete(RUNS)


def test_what_has_its_matches_is_left_alone():
    for each in RUNS:
        measured(each, "s1")
    assert more(set()) == set()
    # Matched in a session before the last one of both.
    measured(ONE, "s1", "s2")
    measured(REFERENCE, "s1", "s3")
    assert more(set()) == set()


def test_a_run_is_measured_with_its_reference_and_a_reference_alone():
    for each in RUNS:
        measured(each, "s1")
    Path(ONE.file).unlink()
    assert more({ONE}) == {REFERENCE}
    assert more({ONE}, done={REFERENCE}) == set()
    assert more({REFERENCE}) == set()
    # Without a common session neither keeps what it has.
    measured(ONE, "s2")
    Path(ONE.folder, "sessions", "s1.json").unlink()
    assert more(set()) == {ONE, REFERENCE}


def test_a_failed_run_is_a_gap_until_it_is_removed():
    measured(REFERENCE, "s1")
    measured(ONE, "s1", status="failed")
    assert more(set()) == set()
    measured(REFERENCE, "s1", status="failed")
    measured(ONE, "s1")
    assert more(set()) == set()
    # `retry` removes run.json, and keeps the copy in sessions/.
    Path(REFERENCE.file).unlink()
    assert more({REFERENCE}) == {ONE}


def damaged(file: Path) -> None:
    file.write_text('{"status": "o')


@pytest.mark.parametrize("left", [Path.unlink, damaged])
def test_a_match_does_not_need_the_current_measurement(left: Callable, capsys):
    measured(REFERENCE, "s1", "s2")
    measured(ONE, "s1")
    left(Path(REFERENCE.file))
    assert more({REFERENCE}) == set()
    # Without the old measurement there is none.
    left(Path(REFERENCE.folder, "sessions", "s1.json"))
    assert more({REFERENCE}) == {ONE}
    assert ("left out" in capsys.readouterr().err) == (left is damaged)


def test_of_changed_code_no_older_measurement_counts():
    """Runs whose own code is the same are measured again, since their reference's is another."""
    for each in RUNS:
        measured(each, "s1")
    assert more({REFERENCE}, sources={REFERENCE: "new"}) == {ONE, OTHER}
    assert more({ONE}, sources={ONE: "new"}) == {REFERENCE}
    # An interrupted call measured the reference only.
    measured(REFERENCE, "s1", "s2", source="new")
    assert more(set(), sources={REFERENCE: "new"}) == {ONE, OTHER, REFERENCE}


def test_a_run_is_served_only_if_the_store_holds_all_of_its_matches(tmp_path):
    def stored(*sessions: str) -> list[bytes]:
        return [json.dumps({"session": session}).encode() for session in sessions]

    sessions = keep_older(tmp_path / "run.json", stored("s1", "s2"))
    assert sessions == {path.stem for path in tmp_path.glob("sessions/*.json")} == {"s1", "s2"}
    assert may_be_served(sessions, [])
    assert may_be_served(sessions, [stored("s1"), stored("s3", "s2")])
    assert not may_be_served(sessions, [stored("s1"), stored("s3")])
    assert not may_be_served(sessions, [stored("s1"), []])
