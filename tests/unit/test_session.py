"""A session measures what is left of a plan: order, matches, disturbance, time, store, its end."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from escala import command
from escala.commands import measure as script
from escala.core import alone, console, variables
from escala.core.environment import SESSION_VARIABLE
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.experiment import Experiment, Run
from escala.measure import lost, session
from escala.measure.missing import Present
from escala.measure.plan import Plan, PlannedRun, plan_runs, plan_session
from escala.measure.session import Session
from escala.record import key
from escala.record.schema import FORMAT
from escala.runtime.slurm import parse_job

SIMULATED = {"type": "simulated", "rows": {"train": 40, "validation": 0, "test": 10}}
SETTINGS = {
    "experiment": "small",
    "title": "Small",
    "datasets": {
        "small": {
            "kind": "motifs",
            "source": SIMULATED,
            "length": 20,
            "split": {"test_fraction": 0.3, "seeds": [4]},
        }
    },
    "workloads": {"tal1-cnn": {"epochs": 1, "save_model": False}},
    "variants": {"tuned": {}},
    "timeline": {"enabled": False},
    "clocks": {"enabled": False},
    "configurations": [
        {"strategy": "single", "layouts": ["1x1"]},
        {"strategy": "horovod-mpi", "layouts": ["1x2"]},
        {"strategy": "horovod-gloo", "layouts": ["1x2"]},
    ],
    "repeats": 2,
}
#: Of every run, in short: its strategy and the name of its folder.
Name = tuple[str, str]


def named(planned: PlannedRun) -> Name:
    return planned.run.strategy, Path(planned.run.folder).name


class House:
    """A folder with an experiment, what measures its runs, and what was measured."""

    def __init__(self) -> None:
        self.settings = dict(SETTINGS)
        self.begun: list[Name] = []
        #: What a run is measured as, the next time or each time.
        self.outcomes: dict[Name, list[dict]] = {}
        self.session, self._plans, self._present = "s0", {}, Present()
        for seed in (4, 5):
            self.prepare(seed, "0")

    def prepare(self, seed: int, digest: str) -> None:
        described = {"rows": {"train": 40, "test": 10}, "inputs": [], "targets": None}
        described |= {"sha256": {"train.npy": digest}}
        write_json(Path(f"results/small/data/small/split{seed}/dataset.json"), described)

    @property
    def plan(self) -> Plan:
        written = json.dumps(self.settings)
        if written not in self._plans:
            self._plans[written] = plan_session(self.experiment)
        return self._plans[written]

    @property
    def experiment(self) -> Experiment:
        return Experiment(self.settings, "e.yaml")

    def measure(self, plan: Plan | None = None, session: str | None = None, **options: Any) -> int:
        """Measure in a session, by default one of its own; `begun` then holds what it measured."""
        self.begun, self.session = [], session or f"s{int(self.session[1:]) + 1}"
        self._present = Present()
        options = {"measure_run": self.measure_run, "write_lost": self.write_lost} | options
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SESSION_VARIABLE, self.session)
            return Session(plan or self.plan, **options).measure()

    def begins(self, *given: Any, **options: Any) -> list[Name]:
        self.measure(*given, **options)
        return self.begun

    def measure_run(self, planned: PlannedRun, output: Path) -> None:
        name = named(planned)
        self.begun.append(name)
        output.unlink(missing_ok=True)
        waiting = self.outcomes.get(name, [])
        outcome = waiting.pop(0) if waiting else {}
        if end := outcome.get("raises"):
            raise end
        if outcome.get("kills"):
            os._exit(9)
        self.write(planned, output, outcome)

    def write_lost(self, planned: PlannedRun, status: str, reason: str) -> None:
        self.write(planned, Path(planned.file), {"status": status, "reason": reason})

    def write(self, planned: PlannedRun, output: Path, outcome: dict) -> None:
        taken = outcome.get("taken", 0.0)
        disturbed = outcome.get("disturbed", False)
        status = outcome.get("status", "ok")
        reason = None if status == "ok" else outcome.get("reason", "it failed")
        record = {
            "format": FORMAT, "status": status, "reason": reason,
            "session": self.session, "repeat": planned.run.repeat, "layout": planned.run.layout,
            "instrument": planned.run.instrument, "series": planned.run.series,
            "started": f"{len(self.begun):03}",
            "wall_seconds": 10.0, "seconds": {"train": 1.0} if status == "ok" else None,
            "disturbance": {
                "disturbed": disturbed, "reason": "a neighbour" if disturbed else None,
                "kernel": None, "earlier": [], "nodes": [{"taken_cores": taken}],
            } if status == "ok" else None,
            "environment": variables.describe(),
            **(identity := self._present.identity(planned)),
            "data": {"sha256": identity["data"]},
        }  # fmt: skip
        folder = output.parent
        (folder / "ranks").mkdir(parents=True, exist_ok=True)
        (folder / "ranks" / "rank0.log").write_text(record["started"])
        (folder / "sessions").mkdir(exist_ok=True)
        for path in (folder / "sessions" / f"{self.session}.json", output):
            path.write_text(json.dumps(record))

    def killed(self, name: Name, **options: Any) -> None:
        if (child := os.fork()) == 0:
            self.outcomes[name] = [{"kills": True}]
            try:
                self.measure(**options)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        self.session = f"s{int(self.session[1:]) + 1}"

    def runs(self) -> dict[Name, dict]:
        found = {named(each): Path(each.file) for each in self.plan.runs}
        return {name: read_json(path) for name, path in found.items() if path.exists()}

    def path(self, strategy: str, last: str) -> Path:
        [found] = (each.file for each in self.plan.runs if named(each) == (strategy, last))
        return Path(found)

    def table(self) -> list[dict]:
        return read_json(Path("results/small/measurements.json"))["runs"]


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Answer as `squeue` does of the job 17, with a state that a test names, or not at all."""

    def answer(state: str) -> None:
        program = tmp_path / "bin" / "squeue"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n[ -z '{state}' ] || echo '17|{state}'\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return answer


#: No test here changes code of the project.
CODE = cache(key.code_sha256)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(key, "code_sha256", CODE)
    # No machine crashes here, so nobody waits for the disk.
    monkeypatch.setattr("escala.core.files._sync", lambda path: None)
    monkeypatch.setenv(alone.VARIABLE, str(tmp_path))
    monkeypatch.setenv(session.VARIABLE, "2")
    monkeypatch.setattr(session, "wait_for_quiet", lambda: True)
    monkeypatch.delenv("ESCALA_MEASURE_AGAIN", raising=False)
    return House()


def of_repeat(names: Sequence[Name], repeat: int) -> set[Name]:
    return {name for name in names if name[1].endswith(f"rep{repeat}")}


#: A job as SLURM tells of it.
JOB = parse_job("17", "")
REFERENCE, MPI, GLOO = ("single", "rep1"), ("horovod-mpi", "rep1"), ("horovod-gloo", "rep1")


def test_repeats_follow_each_other_in_the_drawn_order_and_what_stands_is_left(house):
    assert house.measure() == console.DONE
    drawn = house.experiment.timed
    assert house.begun == [(run.strategy, f"rep{run.repeat}") for run in drawn]
    table = house.table()
    # The table has the order of the experiment.
    assert [row["file"] for row in table] == [run.file for run in house.experiment.runs]
    first = next(row for row in table if row["file"] == drawn[0].file)
    assert first == {
        "file": drawn[0].file, "status": "ok", "reason": None, "session": "s1", "repeat": 1,
        "instrument": None, "series": None, "started": "001", "wall_seconds": 10.0,
        "disturbed": False,
    }  # fmt: skip
    assert house.measure() == console.DONE
    assert house.begun == [] and house.table() == table


def test_probes_and_ladders_are_groups_of_their_own(house):
    place = {"strategy": "single", "layout": "1x1", "variant": "tuned"}
    house.settings |= {
        "ladders": {"forward": [place, place | {"strategy": "horovod-mpi", "layout": "1x2"}]},
        "timeline": {"enabled": True},
        "clocks": {"enabled": True, "repeats": 2},
    }
    groups = [[named(each) for each in group] for group in house.plan.groups]
    clocks, ladder = (
        [{last for _, last in group} for group in groups if group[0][1].startswith(start)]
        for start in ("clocks", "forward")
    )
    assert clocks == [{"clocks.rep1"}, {"clocks.rep2"}]
    assert ladder == [{"forward-1.rep1"}, {"forward-1.rep2"}]
    lone = [group for group in groups if group[0][1] == "timeline"]
    assert lone and all(len(group) == 1 for group in lone)
    # A probe with repeats begins before the timing runs and ends after them.
    order = [group[0][1] for group in groups]
    assert order[:4] == ["clocks.rep1", "rep1", "rep2", "clocks.rep2"]
    # Pairs of ladders come after all other timing runs. The first side alternates.
    timed = [name for name in order if name.startswith(("rep", "forward"))]
    assert timed == ["rep1", "rep2", "forward-1.rep1", "forward-1.rep2"]
    pairs = [[strategy for strategy, _ in group] for group in groups if group[0][1] in timed[2:]]
    assert pairs == [["single", "horovod-mpi"], ["horovod-mpi", "single"]]
    # References are of the same group.
    for group in house.plan.groups:
        files = {each.file for each in group}
        assert all(files >= set(each.references) for each in group)
    assert house.begins() == [name for group in groups for name in group]


def test_a_run_is_measured_with_its_references_and_a_reference_alone(house):
    house.measure()
    house.path(*MPI).unlink()
    assert set(house.begins()) == {MPI, REFERENCE}
    # Others keep the match that they had with the reference before.
    house.path(*REFERENCE).unlink()
    assert house.begins() == [REFERENCE]
    # Without a common session neither keeps what it has.
    shutil.rmtree(house.path(*GLOO).parent / "sessions")
    write_json(house.path(*GLOO), read_json(house.path(*GLOO)) | {"session": "another"})
    assert set(house.begins()) == {GLOO, REFERENCE}
    # One configuration by its target, and what it is compared with.
    e = Experiment(SETTINGS, "e.yaml")
    target = next(run for run in e.runs if run.strategy == "horovod-mpi")
    alone = plan_runs(e, [target])
    assert {named(each) for each in alone.runs} == {MPI, REFERENCE}
    assert [each.references for each in alone.runs if each.run == target] == [
        (str(house.path(*REFERENCE)),)
    ]


@pytest.mark.parametrize("left", [Path.unlink, lambda path: path.write_text('{"status": "o')])
def test_a_damaged_measurement_is_as_good_as_none(house, left: Callable, capsys):
    house.measure()
    left(house.path(*REFERENCE))
    assert house.begins() == [REFERENCE]
    for path in [house.path(*REFERENCE), *house.path(*REFERENCE).parent.glob("sessions/*.json")]:
        left(path)
    assert set(house.begins()) == {REFERENCE, MPI, GLOO}


def test_other_settings_data_code_or_environment_are_measured_anew(house, monkeypatch):
    house.measure()
    house.settings["workloads"] = {"tal1-cnn": {"epochs": 2, "save_model": False}}
    assert len(house.begins()) == 6
    monkeypatch.setenv("MALLOC_ARENA_MAX", "3")
    assert len(house.begins()) == 6
    house.prepare(4, "1")
    assert len(house.begins()) == 6
    real = Present.identity

    def changed(present: Present, planned: PlannedRun) -> dict:
        new = {"source_sha256": "new"} if planned.run.strategy == "single" else {}
        return real(present, planned) | new

    monkeypatch.setattr(Present, "identity", changed)
    # Their own code is the same; that of their reference is another.
    assert len(house.begins()) == 6
    assert house.begins() == []


def test_a_failed_run_is_a_gap_until_it_is_removed_and_ends_nothing(house):
    house.outcomes[MPI] = [{"status": "failed"}]
    assert house.measure() == console.DONE and len(house.begun) == 6
    [row] = (row for row in house.table() if row["status"] != "ok")
    assert (row["status"], row["reason"], row["disturbed"]) == ("failed", "it failed", False)
    assert house.begins() == []
    # A failed reference keeps nobody waiting, and a new run is measured without it.
    house.outcomes[REFERENCE] = [{"status": "failed"}]
    house.path(*REFERENCE).unlink()
    shutil.rmtree(house.path(*REFERENCE).parent / "sessions")
    assert set(house.begins()) == {REFERENCE, GLOO}
    house.path(*GLOO).unlink()
    assert house.begins() == [GLOO]
    for name in (REFERENCE, MPI):
        house.path(*name).unlink()
    assert set(house.begins()) == {REFERENCE, MPI, GLOO}


@pytest.mark.parametrize(
    ("attempts", "stands"),
    [
        # The last attempt is not better because it is the last.
        ([(1, 0), (1, 1), (1, 1)], 1),
        ([(1, 1), (1, 0), (1, 1)], 2),
        ([(1, 1), (1, 1), (0, 0)], 3),
        # A side of one attempt and a side of another are never set against each other.
        ([(1, 0), (0, 1), (1, 0)], 1),
        # It ends as soon as no run is disturbed.
        ([(0, 1), (0, 0)], 2),
        ([(0, 0)], 1),
        # Of as many runs, fewer cores decide.
        ([(1.5, 1), (0.2, 0.2), (0.9, 0.9)], 2),
    ],
)
def test_a_disturbed_group_is_measured_again_whole_and_the_least_disturbed_stands(
    house, attempts, stands
):
    house.settings |= {"configurations": SETTINGS["configurations"][:2], "repeats": 1}
    for name, side in ((REFERENCE, 0), (MPI, 1)):
        taken = [attempt[side] for attempt in attempts]
        house.outcomes[name] = [{"disturbed": bool(each), "taken": each} for each in taken]
    assert house.measure() == console.DONE
    assert [set(house.begun[place : place + 2]) for place in range(0, len(house.begun), 2)] == [
        {REFERENCE, MPI}
    ] * len(attempts)
    for name, run in house.runs().items():
        attempt = [place for place, each in enumerate(house.begun) if each == name][stands - 1]
        assert run["started"] == f"{attempt + 1:03}"
        assert run == read_json(house.path(*name).parent / "sessions/s1.json")
        assert (house.path(*name).parent / "ranks/rank0.log").read_text() == run["started"]
        assert len(run["disturbance"]["earlier"]) == len(attempts) - 1
    rows = {row["file"]: row["disturbed"] for row in house.table()}
    assert list(rows.values()).count(True) == sum(map(bool, attempts[stands - 1]))
    # It stands, disturbed or not.
    assert house.begins() == []


def test_a_disturbed_group_without_quiet_without_time_or_of_a_probe_is_left(
    house, monkeypatch, capsys
):
    house.settings |= {"repeats": 1, "timeline": {"enabled": True}}
    probe = next(named(each) for each in house.plan.runs if each.run.instrument)
    disturbed = {"disturbed": True, "taken": 1}
    house.outcomes = {MPI: [disturbed], probe: [disturbed]}
    monkeypatch.setattr(session, "wait_for_quiet", lambda: False)
    house.measure()
    count = len(house.plan.runs)
    assert len(house.begun) == count
    monkeypatch.setattr(session, "wait_for_quiet", lambda: True)
    shutil.rmtree("results/small/runs")
    house.outcomes = {MPI: [disturbed]}
    house.measure(
        lack_of_time=lambda seconds, has: "the job ends" if has and 10.0 in seconds else None
    )
    # The next group had no time either.
    assert len(house.begun) == 3
    assert "it is not measured again: the job ends" in capsys.readouterr().err


def test_what_is_not_complete_again_leaves_the_first_attempt(house):
    house.settings |= {"configurations": SETTINGS["configurations"][:2], "repeats": 1}
    first = house.plan.runs[0]
    house.outcomes = {
        named(first): [{"disturbed": True, "taken": 1}],
        named(house.plan.runs[1]): [{}, {"raises": SystemExit(130)}],
    }
    with pytest.raises(SystemExit):
        house.measure()
    assert [run["started"] for run in house.runs().values()] == ["001", "002"]
    assert not list(Path().glob("**/again"))
    assert house.begins() == []


def test_a_group_that_does_not_fit_is_not_begun_and_the_same_call_goes_on(house, capsys):
    asked = []

    def lack_of_time(seconds: Sequence[float | None], has_measured: bool) -> str | None:
        asked.append((list(seconds), has_measured))
        return "the job ends in 20 s" if has_measured else None

    code = house.measure(lack_of_time=lack_of_time, remedy=lambda: "submit it again")
    assert code == console.NO_TIME and set(house.begun) == of_repeat(house.begun, 1)
    # Nothing was known of the first repeat, and all of the second one.
    assert asked == [([None] * 3, False), ([10.0] * 3, True)]
    said = capsys.readouterr().err
    assert "not begun: the job ends in 20 s: 3 of 6 runs measured; submit it again" in said
    assert len(house.table()) == 3
    assert house.measure() == console.DONE
    assert set(house.begun) == of_repeat(house.begun, 2) and len(house.table()) == 6


@pytest.mark.parametrize("end", [SystemExit(130), InputError("job", 17, "lost n2", "again")])
def test_an_end_in_the_middle_keeps_what_is_complete_and_goes_on_with_whole_matches(house, end):
    cut = house.plan.groups[1][1]
    house.outcomes[named(cut)] = [{"raises": end}]
    with pytest.raises(type(end)):
        house.measure()
    assert len(house.begun) == 5 and not Path(cut.file).exists()
    assert len(house.table()) == 4
    house.measure()
    # The first run of the cut repeat is measured again if it is compared with the others.
    assert of_repeat(house.begun, 2) == set(house.begun) and named(cut) in house.begun
    for each in house.plan.groups[1]:
        kept = f"{house.runs()[named(each)]['session']}.json"
        assert all((Path(path).parent / "sessions" / kept).exists() for path in each.references)
    assert len(house.table()) == 6


def test_one_run_left_of_a_group_measures_all_of_it_in_a_job(house):
    house.outcomes[GLOO] = [{"status": "failed"}]
    house.measure()
    house.path("horovod-mpi", "rep1").unlink()
    # But for what failed.
    assert set(house.begins(job=JOB)) == {REFERENCE, MPI}
    house.path("horovod-mpi", "rep2").unlink()
    assert len(house.begins(job=JOB)) == 3


@pytest.mark.parametrize("job", [None, JOB])
def test_targets_of_one_call_measure_their_common_reference_once(house, job):
    """Each target is a plan of its own, and the session is that of the call."""
    runs = {run.strategy: run for run in house.experiment.timed if run.repeat == 1}
    begun = []
    for strategy in ("horovod-mpi", "horovod-gloo", "single"):
        house.measure(plan_runs(house.experiment, [runs[strategy]]), session="s1", job=job)
        begun += house.begun
    assert sorted(begun) == sorted([REFERENCE, MPI, GLOO])


def test_a_session_looks_at_what_was_measured_before_it_goes_on(house):
    house.settings |= {"repeats": {"decide": True, "at_most": 12}}
    looks, ended = [], {}

    def look(repeats: int, runs: list[Run], why: str | None) -> str | None:
        looks.append((repeats, max(run.repeat for run in runs), len(runs)))
        return ended.get(repeats, why)

    ended[10] = "it is decided"
    assert house.measure(look=look) == console.DONE
    assert (
        looks == [(5, 5, 15), (7, 7, 21), (10, 10, 30)]
        and len(house.begun) == len(house.table()) == 30
    )
    assert house.begins(look=look) == [] and looks[3:] == looks[:3]
    ended.clear()
    house.measure(look=look)
    assert {last for _, last in house.begun} == {"rep11", "rep12"}
    assert looks[6:] == [*looks[:3], (12, 12, 36)] and len(house.table()) == 36


def test_a_later_group_is_told_what_may_still_be_measured(house):
    told = []
    house.measure(tell=lambda plan, left: told.append([each.run.repeat for each in left]))
    assert told == [[1, 1, 1, 2, 2, 2], [2, 2, 2], []]


@pytest.fixture
def stored(house, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESCALA_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


def test_what_was_measured_before_a_forced_call_does_not_count(house, stored):
    house.measure()
    assert len(house.begins(replace(house.plan, since="s2"))) == 6
    assert house.begins() == []


def test_the_store_serves_runs_with_their_matches_and_no_other(house, stored):
    house.measure()
    first = house.runs()
    shutil.rmtree("results/small/runs")
    assert house.begins() == [] and house.runs() == first
    assert (house.path(*MPI).parent / "ranks/rank0.log").is_file()
    # Without the other side of its match, nothing of a run is served.
    for path in stored.glob("entries/*/*/*.json"):
        if read_json(path)["determined"]["parameters"].get("strategy") == "horovod-gloo":
            path.unlink()
    shutil.rmtree("results/small/runs")
    house.measure()
    assert {strategy for strategy, _ in house.begun} == {"single", "horovod-gloo"}
    second = house.runs()
    assert {run["session"] for (name, _), run in second.items() if name == "horovod-mpi"} == {"s1"}
    # With the measurements of two sessions in the store, everything is served once more.
    shutil.rmtree("results/small/runs")
    assert house.begins() == [] and house.runs() == second


def test_of_a_disturbed_group_the_store_keeps_what_stands_and_nothing_of_failures(house, stored):
    house.settings |= {"repeats": 1}
    house.outcomes = {
        MPI: [{"disturbed": True, "taken": 1}, {}],
        GLOO: [{"status": "failed"}],
    }
    house.measure()
    runs = house.runs()
    kept = [read_json(path)["determined"]["parameters"] for path in stored.glob("entries/*/*/*")]
    assert sorted(each["strategy"] for each in kept) == ["horovod-mpi", "single"]
    shutil.rmtree("results/small/runs")
    assert set(house.begins()) == {REFERENCE, GLOO}
    for name in (REFERENCE, MPI):
        sessions = house.path(*name).parent / "sessions"
        assert read_json(sessions / "s1.json") == runs[name]
    assert house.runs()[MPI] == runs[MPI]


def test_a_plan_is_read_as_it_was_written_and_no_other_file_is(house, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(house.plan.text())
    assert Plan.read(path).text() == house.plan.text()
    with pytest.raises(InputError, match="no such file") as missing:
        script.run(command.parse(["measure", "none.json"])[1])
    assert "plan.json" in missing.value.remedy
    for content in ("", "[]", '{"format": 1}', '{"format": 3}'):
        path.write_text(content)
        with pytest.raises(InputError, match="is no plan of format 3"):
            Plan.read(path)


def test_the_command_measures_a_plan_with_its_turns_and_limits(house, monkeypatch):
    house.settings |= {"time_limit_minutes": 2}
    path = Path("plan.json")
    path.write_text(house.plan.text())
    given = []

    def measure(request, data, output, seconds, *, turn, links, nodes):
        given.append((data, seconds, turn, nodes))
        planned = next(each for each in house.plan.runs if each.request == request)
        house.measure_run(planned, output)

    monkeypatch.setattr("escala.record.run.measure", measure)
    monkeypatch.setenv(SESSION_VARIABLE, "s0")
    monkeypatch.setattr(script, "die_with_parent", lambda: None)
    _, arguments = command.parse(["measure", str(path), "--in-call"])
    assert script.run(arguments) == console.DONE
    data = Path("results/small/data/small/split4")
    assert given == [(data, 120, {"place": place, "of": 3}, []) for place in (1, 2, 3)] * 2
    assert {row["file"] for row in house.table()} == {each.file for each in house.plan.runs}


def test_a_run_that_is_killed_with_its_session_has_failed_and_is_not_measured_again(house):
    called = house.session
    house.killed(GLOO)
    house.session = called
    assert not house.path(*GLOO).exists()
    assert house.measure() == console.DONE
    run = house.runs()[GLOO]
    assert (run["status"], run["reason"]) == (
        "failed", "its session was killed, and left no result",
    )  # fmt: skip
    assert house.begun[:2] == [REFERENCE, MPI]
    row = next(row for row in house.table() if row["file"] == str(house.path(*GLOO)))
    assert row["status"] == "failed"
    assert house.begins() == []
    # As `escala retry` removes it.
    house.path(*GLOO).unlink()
    house.measure()
    assert GLOO in house.begun and house.runs()[GLOO]["status"] == "ok"


def test_of_a_call_that_was_killed_a_line_says_that_its_run_is_still_to_be_measured(house, capfd):
    house.killed(GLOO)
    capfd.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SESSION_VARIABLE, "later")
        lost.record(house.plan.runs, house.write_lost)
    said = capfd.readouterr().err
    assert "still to be measured: its call was killed" in said and "again" not in said
    assert GLOO not in house.runs() and GLOO in house.begins()


def test_a_run_that_goes_on_or_that_a_signal_ended_is_not_lost(house):
    seen = []

    def measure_run(planned: PlannedRun, output: Path) -> None:
        lost.record(house.plan.runs, house.write_lost)
        seen.append(planned.file in [each.file for each in lost.find_marks(house.plan.runs)])
        house.measure_run(planned, output)

    house.outcomes[MPI] = [{"raises": SystemExit(143)}]
    with pytest.raises(SystemExit):
        house.measure(measure_run=measure_run)
    assert seen and all(seen)
    assert MPI not in house.runs() and not lost.find_marks(house.plan.runs)
    house.measure()
    assert {run["status"] for run in house.runs().values()} == {"ok"}


@pytest.mark.parametrize(
    ("killed", "state", "log", "status", "reason"),
    [
        (True, "TIMEOUT", None, "timeout", "TIMEOUT"),
        (True, "FAILED", "slurmstepd-n1: error: StepId=4.batch exceeded memory limit (2 > 1)\n",
         "out-of-memory", "StepId=4.batch exceeded memory limit"),
        (True, "BOOT_FAIL", "slurmstepd: error: *** JOB 17 ON n1 DID NOT BOOT ***\n",
         "failed", "BOOT_FAIL: *** JOB 17 ON n1 DID NOT BOOT"),
        # Nobody remembers the job.
        (True, "", None, "failed", "its job ended without a result"),
        # Its user or the cluster ended it, and it goes on.
        (True, "CANCELLED", None, "ok", None),
        (True, "COMPLETING", None, "ok", None),
        # It has ended in order, and may be the cause or not.
        (False, "OUT_OF_MEMORY", None, "out-of-memory", "OUT_OF_MEMORY"),
        (False, "NODE_FAIL", None, "ok", None),
        (False, "TIMEOUT", None, "ok", None),
        (False, "", None, "ok", None),
    ],
)  # fmt: skip
def test_slurm_is_asked_how_the_job_of_a_lost_run_ended(
    house, squeue, tmp_path, killed, state, log, status, reason
):
    job = parse_job("17", f"JobId=17\n   StdOut={tmp_path}/my job.log\n")
    if log:
        Path(job.output).write_text(log)
    # The node of the job is another machine.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "n1")
        if killed:
            house.killed(MPI, job=job)
        else:
            house.outcomes[MPI] = [{"raises": SystemExit(143)}]
            with pytest.raises(SystemExit):
                house.measure(job=job)
    squeue(state)
    house.measure(house.plan.within(1))
    run = house.runs()[MPI]
    assert run["status"] == status and (not reason or reason in run["reason"])


def test_a_run_of_a_killed_call_is_measured_by_the_next_also_with_mended_settings(house):
    for epochs in (1, 2):
        house.killed(GLOO)
        house.settings["workloads"] = {"tal1-cnn": {"epochs": epochs, "save_model": False}}
        assert house.measure() == console.DONE
        assert GLOO in house.begun and house.runs()[GLOO]["status"] == "ok"
        house.path(*GLOO).unlink()


def test_a_job_of_a_killed_call_that_goes_on_is_not_measured_beside(house, squeue):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "n1")
        house.killed(MPI, job=JOB)
    squeue("RUNNING")
    begun = len(house.begun)
    with pytest.raises(InputError, match=r"is measured by the job 17 .*scancel 17"):
        house.measure()
    assert len(house.begun) == begun and MPI not in house.runs()
