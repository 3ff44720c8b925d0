"""The store when its users are killed, its disk is full, and several use it at once.

What kills and what races runs in a Python of its own, which holds no other threads and forks.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from escala.cache import store
from escala.cache.code import Code
from tests.calls import lacking, python

PATIENCE_SECONDS = 120
#: Different steps of those who use a store at the same time.
STEPS = 12
KILLS = 15
NOBODY = 65534
TRACED = ("escala/cache/store.py", "escala/cache/entries.py", "escala/core/files.py", "/shutil.py")
BIG = 300_000


class Step:
    """A step whose outputs follow from its number; its big file is that of the other tens too."""

    def __init__(self, folder: Path, number: int, size: int = BIG):
        self.number, self.size = number, size
        names = {"run": "run.json", "model": "model", "logs": "logs"}
        self.outputs = {name: folder / file for name, file in names.items()}

    def expected(self) -> dict[str, bytes]:
        big = random.Random(self.number % 10).randbytes(self.size)
        logs = {f"logs/inner/{rank}": b"%d" % (self.number * rank) for rank in range(2)}
        return {"run.json": b"run %d" % self.number, "model": big, **logs}

    def found(self) -> dict[str, bytes]:
        folder = self.outputs["run"].parent
        files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
        # What a killed process was writing stands alongside the outputs, in a hidden folder.
        return {name: path.read_bytes() for name, path in files.items() if name[0] != "."}

    def make(self) -> None:
        for name, written in self.expected().items():
            path = self.outputs["run"].parent / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(written)

    def made(self, after: Callable[[], None] = lambda: None) -> str:
        about = {"code": Code({}), "inputs": {}, "outputs": self.outputs}
        about["parameters"] = {"number": self.number, "size": self.size}
        return store.get_or_compute("step", **about, make=lambda: (self.make(), after()))

    def forget(self) -> None:
        shutil.rmtree(self.outputs["run"].parent, ignore_errors=True)


def in_its_own_python(function: Callable, *arguments: object, **environment: str) -> dict:
    """Run a function of this module in a new process, and return what it says, as JSON."""
    call = f"t.{function.__name__}(*json.loads(sys.argv[1]))"
    code = f"import json, sys, tests.workflow.test_store_faults as t; print(json.dumps({call}))"
    words = ["-c", code, json.dumps(arguments, default=str)]
    done = python(*words, variables=environment, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) | {"said": done.stderr}


def lines_of_the_store(act: Callable[[int], None]) -> None:
    """From here on call `act` with the number of every line that the store executes."""
    count = 0

    def trace(frame, event: str, argument: object):
        nonlocal count
        if not frame.f_code.co_filename.endswith(TRACED):
            return None
        count += event == "line"
        act(count)
        return trace

    sys.settrace(trace)


def fork(body: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                body()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def was_killed_at(line: int, step: Step) -> bool:
    """Let a process be killed at a line of the store, after it has made a step."""

    def dies() -> None:
        lines_of_the_store(lambda number: number == line and os.kill(os.getpid(), signal.SIGKILL))

    return os.WIFSIGNALED(os.waitpid(fork(lambda: step.made(dies)), 0)[1])


def lines_of(step: Step) -> int:
    """Return how many lines of the store a step takes after it is made."""
    lines = [0]
    step.made(lambda: lines_of_the_store(lines.append))
    sys.settrace(None)
    return lines[-1]


def made_rightly(step: Step) -> tuple[str, bool]:
    """Return whether a step was served or made, and whether the outputs are right."""
    outcome = step.made()
    right = step.found() == step.expected()
    step.forget()
    return outcome, right


def kill_who_stores(folder: str, kills: int) -> dict:
    """Kill processes while they store: at the first line nothing is stored, at the last all."""
    folder, root = Path(folder), store.location()
    # Of a step whose big file is stored already, as most are that follow: the shortest way.
    lines = min(lines_of(Step(folder / "warm", 1_000_001 + 10 * n)) for n in range(2))
    result = {"killed": 0, "served": 0, "made": 0, "wrong": [], "damaged": []}
    # Whoever is to be killed after the last line ends by itself.
    for number, line in enumerate(np.linspace(1, 1.1 * lines, kills).round()):
        step = Step(folder / "child", number)
        result["killed"] += was_killed_at(line, step)
        step.forget()
        result["damaged"] += map(str, store.verify(root))
        outcome, right = made_rightly(Step(folder / "mine", number))
        result[outcome] += 1
        result["wrong"] += [number] * (not right)
    result["left"] = store.size(root).unneeded_bytes
    store.prune(root)
    result["left_by_prune"] = store.size(root).unneeded_bytes
    for number in range(kills):
        if made_rightly(Step(folder / "mine", number)) != ("served", True):
            result["wrong"].append(number)
    return result


def use_at_once(folder: str, seed: int, rounds: int) -> dict:
    """Two processes store and are served, the same and different steps, and a third prunes.

    Each goes on until it has been served, and has made more steps than there are: what it had made
    was pruned.
    """
    folder, root = Path(folder), store.location()

    def use(name: str, seed: int) -> None:
        chance, wrong, outcomes = random.Random(seed), [], {"made": 0, "served": 0}
        with contextlib.redirect_stderr(io.StringIO()) as said:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while sum(outcomes.values()) < rounds or (
                not (outcomes["served"] and outcomes["made"] > STEPS)
                and time.monotonic() < deadline
            ):
                step = Step(folder / name, chance.randrange(STEPS), 100_000)
                outcomes[step.made()] += 1
                if step.found() != step.expected():
                    wrong.append(step.number)
                step.forget()
        (folder / f"{name}.json").write_text(
            json.dumps({"wrong": wrong, "said": said.getvalue(), **outcomes})
        )

    def sweep() -> None:
        while True:
            store.prune(root, larger_than_bytes=700_000)

    Step(folder / "first", 0).made()
    users = [fork(lambda k=k: use(f"user{k}", seed + k)) for k in range(2)]
    pruner = fork(sweep)
    codes = [os.waitpid(user, 0)[1] for user in users]
    os.kill(pruner, signal.SIGKILL)
    os.waitpid(pruner, 0)
    found = [json.loads((folder / f"user{k}.json").read_text()) for k in range(2)]
    return {
        "codes": codes,
        "users": found,
        "damaged": [str(path) for path in store.verify(root)],
        "bytes": store.size(root).bytes,
    }


def test_whenever_a_writer_is_killed_nothing_damaged_is_served(tmp_path):
    result = in_its_own_python(
        kill_who_stores, tmp_path, KILLS, ESCALA_STORE=str(tmp_path / "store")
    )
    assert result["wrong"] == []
    assert result["damaged"] == [], "what stands in the store is whole"
    assert result["said"] == "", "nothing had to be mended"
    assert result["killed"] > KILLS / 2, "most were killed while they stored"
    assert result["made"] and result["served"], "some before the step was stored, some after"
    assert result["left"] > 0, "unfinished files were left"
    assert result["left_by_prune"] == 0


def test_two_may_use_a_store_at_once_while_a_third_prunes_it(tmp_path):
    result = in_its_own_python(use_at_once, tmp_path, 3, 40, ESCALA_STORE=str(tmp_path / "store"))
    assert result["codes"] == [0, 0]
    for user in result["users"]:
        assert user["wrong"] == [] and user["said"] == ""
        assert user["served"] and user["made"] > STEPS, "what was pruned was made again"
    assert result["damaged"] == []


def test_on_a_full_disk_the_work_goes_on_without_the_store(
    small_disk, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("ESCALA_STORE", str(small_disk / "store"))
    for _ in range(2):
        step = Step(tmp_path / "results", 1, 2_000_000)
        assert step.made() == "made"
        assert step.found() == step.expected()
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "No space left on device" in said, said
        step.forget()
    assert not list((small_disk / "store" / "incoming").iterdir()), "the unfinished file is gone"
    assert store.verify(small_disk / "store") == {}
    fitting = Step(tmp_path / "results", 2, 100_000)
    assert [fitting.made(), fitting.made()] == ["made", "served"]
    assert fitting.found() == fitting.expected()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder where others may read what this user writes."""
    mask = os.umask(0o022)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
    os.umask(mask)


def test_a_store_that_may_only_be_read_serves(open_folder, monkeypatch):
    """Another user's: who may not write there is served, and told that nothing is stored."""
    if os.geteuid():
        lacking("cannot become another user")
    monkeypatch.setenv("ESCALA_STORE", str(open_folder / "store"))
    Step(open_folder / "first", 1).made()
    before = {path: path.stat().st_mtime_ns for path in (open_folder / "store").rglob("*")}
    theirs = open_folder / "theirs"
    theirs.mkdir()
    shutil.chown(theirs, NOBODY, NOBODY)
    read, write = os.pipe()

    def ask() -> None:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        steps = [Step(theirs / str(number), number) for number in (1, 2)]
        with contextlib.redirect_stderr(io.StringIO()) as said:
            outcomes = [step.made() for step in steps]
        whole = [step.found() == step.expected() for step in steps]
        os.write(write, json.dumps([outcomes, whole, said.getvalue()]).encode())

    os.waitpid(fork(ask), 0)
    os.close(write)
    outcomes, whole, said = json.loads(os.read(read, 10_000))
    os.close(read)
    assert outcomes == ["served", "made"] and all(whole)
    assert said.count("\n") == 1 and "the work goes on without it" in said
    assert before == {path: path.stat().st_mtime_ns for path in (open_folder / "store").rglob("*")}
