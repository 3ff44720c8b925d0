"""Programs that lie or misbehave: each is told in one clear message, and nothing of it is left."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean

import psutil
import pytest

from escala.core import plugins
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.data.files.arrays import prepare
from escala.engines import interpreter
from escala.experiment import Run
from escala.experiment.runs import NAMES
from escala.measure.plan import Plan, PlannedRun
from escala.programs import copy as program_copy
from escala.programs.environment import identity
from escala.programs.seen import UNKNOWN_EPOCH
from escala.record.run import measure
from escala.record.schema import Outcome
from escala.report.tables.base import is_cut, kind, seconds_per_epoch
from escala.workloads import program as workload_of
from tests.conftest import ROOT
from tests.programs import eventually, with_marks
from tests.workflow.test_seen import write_library

#: Time enough for two processes on a busy machine.
LIMIT_SECONDS = 60
#: It obeys what it is told; the tests change a word of it.
OBEDIENT = """
import json, os, sys, time
from escala_steps import begin, epoch, score, step
rows, epochs = map(int, sys.argv[1:3])
rank = int(os.environ["RANK"])
for number in range(epochs):
    begin()
    for _ in range(3):
        time.sleep(0.01)
        step(rows=rows)
    epoch(loss=1 / (number + 1))
"""
TOLD = "{python} train.py {rows_of_rank} {epochs}"
PRINTS = "import time\nfor n in (1, 2): time.sleep(0.05); print(f'epoch {n} loss=0.5')"


@dataclass
class Ran:
    outcome: Outcome
    result: dict
    folder: Path

    @property
    def said(self) -> str:
        """What is said of a run: its reason, or its notes."""
        return self.outcome.reason or "; ".join(self.result["program"]["notes"])


@pytest.fixture
def run(tmp_path, request_for, monkeypatch) -> Iterator[Callable[..., Ran]]:
    """Run a program as the workflow does, by its code or by a command of the shell."""
    monkeypatch.setenv(plugins.VARIABLE, "{}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)

    def started(
        code: str | None = None,
        command: str | list[str] = TOLD,
        layout: str = "1x1",
        strategy: str = "processes",
        limit: float = LIMIT_SECONDS,
        **declared: object,
    ) -> Ran:
        asked = request(tmp_path, request_for, code, command, layout, strategy, **declared)
        outcome = measure(asked, tmp_path / "data", tmp_path / "run" / "run.json", limit)
        return Ran(outcome, read_json(tmp_path / "run" / "run.json"), tmp_path)

    return started


def request(
    folder: Path,
    request_for: Callable[..., dict],
    code: str | None,
    command: str | list[str],
    layout: str,
    strategy: str,
    **declared: object,
) -> dict:
    """Return the request of a run of a program in a folder, and write the program there."""
    source = folder / "source"
    for each in (source, folder / "data"):
        each.mkdir(exist_ok=True)
    (source / "train.py").write_text(code or "")
    prepare("small", {"rows": None, "identify": "content"}, 1, {}, folder / "data")
    words = command.replace("{python}", sys.executable) if isinstance(command, str) else command
    about = {"command": words, "directory": str(source), "where": "workloads.lies"} | declared
    program = workload_of(about, folder).program()
    start = {"program": program.as_plan(), "paths": {}}
    training = {"epochs": 2, "batch": {"rows": 64, "per": "global"}, "seed": 0}
    return request_for(strategy, layout) | {
        "workload": "lies",
        "training": training,
        "program": identity(program),
        "start": start,
    }


def shell(line: str) -> list[str]:
    return ["sh", "-c", line]


def gone(folder: Path) -> bool:
    return eventually(lambda: not with_marks(folder), seconds=20)


FAULTS = {
    "takes other rows": (OBEDIENT.replace("rows=rows", "rows=7"), {}, "for 64 rows", "took 7"),
    "trains once": (OBEDIENT.replace("(epochs)", "(1)"), {}, "after 1 of 2 epochs"),
    "hides its error": (
        "import sys\ntry: 1 / 0\nexcept Exception: sys.excepthook(*sys.exc_info()); sys.exit(0)",
        {}, "exit code 0 after an error", "ZeroDivisionError",
    ),
    "fills the memory": ("bytearray(2**55)", {}, "out of memory", "Remedy: a smaller batch"),
    "diverges": (OBEDIENT.replace("1 / (number + 1)", "float('nan')"), {}, "loss nan"),
    "prints other words": (
        PRINTS, {"epoch_ends": "Epoch"}, "epoch_ends matched no line", "epoch 2 loss=0.5",
    ),
    "needs too many ways": (
        "print('a' * 60 + '!', flush=True); import time; time.sleep(30)",
        {"epoch_ends": "^(a+)+$"}, "epoch_ends '^(a+)+$' takes more than", "too many ways",
    ),
    "leaves and forgets": (
        None, {"command": ["env", "-i", "setsid", "sh", "-c", "sleep 99 & exit 0"]}, "left 1 of",
    ),
    "removes the run": (
        "import shutil, sys; shutil.rmtree(sys.argv[1] + '/..')",
        {"command": "{python} train.py {output}"}, "folder of the run was removed",
    ),
    "one fails first": (
        "import os, time, subprocess\nif os.environ['RANK'] == '1':\n"
        "    subprocess.Popen(['sleep', '2']); open('fails', 'w'); raise ValueError('it was me')\n"
        "while not os.path.exists('fails'): time.sleep(0.01)\n"
        "time.sleep(1); raise ConnectionError('the other one is gone')",
        {"layout": "1x2"}, "rank 1: ", "it was me",
    ),
    "one ends early": (
        OBEDIENT.replace("(epochs)", "(2 + rank)"),
        {"layout": "1x2", "command": "{python} train.py 32 2"},
        "rank 0 ended after 2 epochs, and rank 1 after 3",
    ),
    "one leaves the others": (
        "import os, time\nif os.environ['RANK'] == '0': time.sleep(1); raise OSError('no peer')",
        {"layout": "1x2"}, "rank 0: ", "rank 1 had ended before it", "no peer",
    ),
    "one hangs": (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.environ['RANK'] == '1': print('still', flush=True); time.sleep(99)",
        {"layout": "1x2", "limit": 2}, "after 2 seconds: rank 1 still runs", "1 of 2", "still",
    ),
    "hangs at its exit": (
        f"{OBEDIENT}time.sleep(99)", {"limit": 3},
        "the last of its 2 epochs ended after", "did not exit. Remedy: ",
    ),
}  # fmt: skip
STATUS = {"fills the memory": "out-of-memory"}
for part, status in (("hangs", "timeout"), ("diverges", "diverged")):
    STATUS |= {name: status for name in FAULTS if part in name}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_and_nothing_is_left(run, name):
    code, options, *words = FAULTS[name]
    ran = run(code, **options)
    assert ran.outcome.status == STATUS.get(name, "failed"), ran.said
    assert all(word in ran.said for word in words), ran.said
    assert "escala: " not in ran.said and "escala/training" not in ran.said, "it is not our fault"
    assert gone(ran.folder)


def test_a_program_that_is_too_slow_is_not_said_to_hang_at_its_exit(run):
    slow = OBEDIENT.replace("    epoch(loss", "    time.sleep(99 * number)\n    epoch(loss")
    ran = run(slow, limit=2)
    assert ran.outcome.status == "timeout" and "did not exit" not in ran.said, ran.said


NOTED = {
    "tells nothing": ("pass", {}, "Whether it used {epochs}, {rows_of_rank} is not known"),
    "tells no rows": (
        OBEDIENT.replace("step(rows=rows)", "step()"), {},
        "reported no rows of its steps, so whether it used {rows_of_rank} is not known",
    ),
    "hides a late error": (
        OBEDIENT + "\nimport traceback\ntry: 1 / 0\nexcept Exception: traceback.print_exc()",
        {}, "report an error, and it ended with exit code 0",
    ),
    "leaves a helper and a file of any name": (
        f"{OBEDIENT}import subprocess; subprocess.Popen(['sleep', '9'])\n"
        "open(b'\\xe9\\n', 'w').write('x')", {},
        "1 process outlived it", r"it wrote \udce9\n into the copy of its folder",
    ),
    "sets its threads": (
        None, {"command": shell(f"OMP_NUM_THREADS=7 {sys.executable} -c pass")},
        "it set OMP_NUM_THREADS to 7, and was given",
    ),
    "makes other steps": (
        OBEDIENT.replace("range(3)", "range(3 + rank)"), {"layout": "1x2"},
        "different numbers of steps: from 3 to 4",
    ),
    "writes alongside itself": (
        "open('model.pt', 'w').write('x')", {"in_place": True},
        "its folder holds new files: model.pt",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTED)
def test_what_does_not_spoil_a_run_is_noted(run, name):
    code, options, *words = NOTED[name]
    ran = run(code, **options)
    assert ran.outcome.status == "ok", ran.outcome.reason
    assert all(word in ran.said for word in words), ran.said


def test_what_a_program_reads_and_its_key_does_not_know_is_recorded(run, tmp_path):
    (tmp_path / "settings.json").touch()
    ran = run("open('../settings.json'); open('made', 'w').close(); open('made')", files=[])
    assert ran.result["program"]["read"] == [str(tmp_path / "settings.json")]
    # A program of another language tells nothing, and that is not the same as reading nothing.
    assert "read" not in run(None, command="true").result["program"]


def test_a_single_step_may_have_all_rows_there_are(run):
    ran = run(OBEDIENT.replace("range(3)", "range(1)").replace("rows=rows", "rows=7"))
    assert ran.outcome.status == "ok", ran.outcome.reason


BARS = """
import sys, time
for number in (1, 2):
    for part in (1, 2, 3, 4):
        time.sleep(0.05)
        sys.stderr.buffer.write(f"\\r\\x1b[32mEpoch {number}: {part}/4 |\u2588\u2588".encode())
        sys.stderr.flush()
    sys.stderr.buffer.write(b"\\n\\xff\\xfe not a text\\n")
"""


@pytest.mark.parametrize("terminal", [False, True])
def test_steps_of_a_progress_bar_are_timed_as_they_end(run, terminal):
    ran = run(BARS, epoch_ends="4/4", step_ends=r"(\d)/4", terminal=terminal)
    assert ran.outcome.status == "ok", ran.said
    [epoch] = ran.result["epochs"]
    assert (epoch["epoch"], epoch["steps"]) == (2, 4)
    assert ran.result["step_seconds"]["median"] == pytest.approx(0.05, rel=0.5)


def test_of_much_output_the_beginning_and_the_end_are_kept(run):
    ran = run("print('first')\nfor _ in range(200): print('x' * 50_000)\nraise ValueError('last')")
    assert "ValueError: last" in ran.said
    text = (ran.folder / "run" / "ranks" / "rank0.log").read_text()
    assert len(text) < 5 * 2**20 and "first" in text and "are left out" in text


def test_a_program_that_closes_its_output_or_becomes_another_is_timed_to_its_end(run):
    ran = run(None, shell("exec >&- 2>&-; exec sleep 0.4"))
    assert ran.outcome.status == "ok", ran.said
    assert ran.result["program"]["whole_seconds"] > 0.4


SECRET, OPEN = "fish-and-chips", "a plain text"


def test_a_program_gets_its_variables_and_no_file_of_the_run_holds_them(run, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", SECRET)
    monkeypatch.setenv("MY_DATABASE", OPEN)
    monkeypatch.setenv("NOT_NAMED", "x")
    code = (
        "import hashlib, os\n"
        "found = [os.environ.get(n) for n in ('MY_TOKEN', 'MY_DATABASE', 'NOT_NAMED')]\n"
        "print(hashlib.md5(repr(found).encode()).hexdigest())"
    )
    ran = run(code, environment={"variables": ["MY_TOKEN", "MY_DATABASE", "NOT_SET"]})
    expected = hashlib.md5(repr([SECRET, OPEN, "x"]).encode()).hexdigest()
    assert expected in (ran.folder / "run" / "ranks" / "rank0.log").read_text()
    for path in filter(Path.is_file, ran.folder.rglob("*")):
        assert SECRET not in path.read_text(errors="replace"), path
        assert OPEN not in path.read_text(errors="replace"), path


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"environment": {"lines": ["export A=1", "conda activate mine"]}}, ["activate mine"]),
        ({"environment": {"lines": ["read -p 'Which? ' answer"]}}, ["line before", "read -p"]),
        ({"command": "no-such-program {rows}"}, ["no-such-program", "PATH"]),
        ({"command": "./train.py"}, ["may not be executed", "chmod +x"]),
        ({"epoch_ends": "(loss"}, ["epoch_ends", "not a regular expression"]),
    ],
)
def test_what_cannot_start_is_refused_before_anything_runs(run, declared, words):
    with pytest.raises(InputError) as refused:
        run("", **declared)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_lines_before_the_command_may_print_and_do_not_take_its_words(run):
    lines = ["echo hello; printf escala", "set -- mine", "false || true", "export A=$1"]
    code = "import os, sys; print(os.environ['A'], *sys.argv[1:])"
    ran = run(code, environment={"lines": lines})
    assert ran.outcome.status == "ok", ran.said
    assert "mine 64 2" in (ran.folder / "run" / "ranks" / "rank0.log").read_text()


def test_a_folder_of_many_or_large_files_is_digested_or_refused_at_once(run, tmp_path):
    source = tmp_path / "source"
    (source / "many").mkdir(parents=True)
    for number in range(300):
        (source / "many" / f"{number}.txt").touch()
    ran = run("pass")
    assert ran.outcome.status == "ok"
    assert set(ran.result["program"]["files"]) == {"train.py", "300 other files"}
    with open(source / "large.bin", "wb") as file:
        file.truncate(5 * 2**30)
    with pytest.raises(InputError, match=r"more than 256 MiB.*\*\.py"):
        run("pass", command="{python} train.py again")


#: It goes on from what it finds, in its folder and in that of the run.
RESUMES = """
import pathlib, sys
places = [pathlib.Path("last.txt"), pathlib.Path(sys.argv[1], "last.txt")]
done = max((int(place.read_text()) for place in places if place.exists()), default=0)
for number in range(done, 3):
    print("epoch", number, flush=True)
for place in places:
    place.write_text("3")
pathlib.Path("train.py").write_text("lost")
pathlib.Path("../beside.txt").write_text("lost")
"""


# A fork of a test's server is not ended with the group of the program.
@pytest.mark.usefixtures("cold")
def test_every_run_begins_alike_and_its_folder_stays(run, tmp_path):
    (tmp_path / "beside.txt").write_text("kept")
    for _ in range(2):
        ran = run(RESUMES, "{python} train.py {output}")
        assert (tmp_path / "run/ranks/rank0.log").read_text().count("epoch") == 3, ran.said
        assert (tmp_path / "source/train.py").read_text() == RESUMES
        assert [path.name for path in (tmp_path / "source").iterdir()] == ["train.py"]
        assert (tmp_path / "run/output/last.txt").read_text() == "3"
        assert not (tmp_path / "run/ranks/copy").exists()
    # A file that is linked: the program ends before it has written.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_copy, "MOST_BYTES", 1)
        ran = run(RESUMES, "{python} train.py {output}")
    assert ran.outcome.status == "failed" and "train.py" in ran.said and "{output}" in ran.said
    assert (tmp_path / "source/train.py").read_text() == RESUMES
    assert (tmp_path / "beside.txt").read_text() == "lost", "only named: it is beside the folder"


def test_a_program_that_cannot_start_is_told_by_its_own_path(run, tmp_path):
    script = tmp_path / "source" / "run.sh"
    script.parent.mkdir()
    script.write_bytes(b"#!/bin/sh\r\necho done\r\n")
    script.chmod(0o755)
    ran = run(None, command="./run.sh")
    assert f"sed -i 's/\\r$//' {script}" in ran.said and "ranks/copy" not in ran.said


def test_a_full_disk_is_told_and_the_folder_stays(run, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(program_copy.shutil, "copy2", full)
    ran = run("pass")
    assert ran.outcome.status == "failed" and "No space left on device" in ran.said
    assert not (tmp_path / "run/ranks/copy").exists()
    assert (tmp_path / "source/train.py").read_text() == "pass"


@pytest.mark.parametrize("who", ["rank", "supervisor", "user"])
def test_children_of_a_killed_run_end_with_it(tmp_path, request_for, monkeypatch, who):
    """Also those in sessions of their own, where nobody is left to clean up.

    What the program wrote into its folder is gone, or in a copy.
    """
    monkeypatch.setenv(plugins.VARIABLE, "{}")
    line = "echo lost > train.py; "
    line += "setsid sh -c 'trap \"\" TERM; setsid sleep 98 & sleep 97' & trap '' TERM; sleep 96"
    asked = request(tmp_path, request_for, "", shell(line), "1x1", "processes")
    run = Run(**{name: asked[name] for name in NAMES})
    planned = PlannedRun(asked, str(tmp_path / "data"), LIMIT_SECONDS, None, (), 0, run)
    plan = Plan("programs", (), None, ((planned,),))
    (tmp_path / "plan.json").write_text(plan.text())
    command = [sys.executable, "-m", "escala.command", "measure", str(tmp_path / "plan.json")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "ESCALA_STORE": "off"}
    with open(tmp_path / "said", "w") as said:
        supervisor = subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=said, stderr=said
        )
    assert eventually(lambda: len(with_marks(tmp_path)) >= 4), (tmp_path / "said").read_text()
    if who == "rank":
        [rank] = [
            process
            for process in psutil.Process(supervisor.pid).children(recursive=True)
            if "escala.training.rank" in process.cmdline()
            and process.parent() is not None
            and "escala.training.rank" not in process.children()[0].cmdline()
        ]
        rank.kill()
    elif who == "supervisor":
        supervisor.kill()
    else:
        supervisor.send_signal(signal.SIGINT)
    supervisor.wait(timeout=LIMIT_SECONDS)
    if who == "rank":
        assert "ended by signal 9" in read_json(tmp_path / planned.file)["reason"]
    assert gone(tmp_path)
    assert (tmp_path / "source" / "train.py").read_text() == ""
    assert (tmp_path / planned.run.folder / "ranks" / "copy").exists() == (who == "supervisor")


#: It trains for hours, if nobody ends it.
SEEN = """
import time, torch
from torch.utils.data import DataLoader, TensorDataset
parameter = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for epoch in range(100_000):
    for [batch] in DataLoader(TensorDataset(torch.arange(400.0)), batch_size=4):
        optimizer.zero_grad()
        (parameter * batch).sum().backward()
        time.sleep(0.01)
        optimizer.step()
"""


@pytest.mark.torch
def test_a_window_of_steps_is_timed_and_an_epoch_projected(run):
    python = interpreter("torch")
    result = run(SEEN, command=[python, "train.py"], layout="1x1", window=0.5).result
    assert (result["status"], result["program"]["known_by"]) == ("ok", "seen"), result["reason"]
    training, [epoch] = result["training"], result["epochs"]
    assert training["steps_per_epoch"] == 100
    assert epoch["rows"] == 4 * epoch["steps"]
    assert is_cut(result) and kind(result) == "estimated", "it is no whole run, however long"
    seconds = seconds_per_epoch(result)
    assert seconds >= 100 * 0.01
    assert seconds / 100 == pytest.approx(epoch["train_seconds"] / epoch["steps"])


def test_a_run_that_a_window_ended_is_never_taken_for_a_whole_one(run, tmp_path):
    """A process makes few steps, before the one that ends the window."""
    write_library(tmp_path / "source")
    few = "from work import rounds; rounds({})"
    start = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', {!r}])\n{}"
    code = start.format(few.format(2), few.format(100_000))
    ended = run(code, "{python} train.py", window=0.5)
    assert (ended.outcome.status, "--whole" in ended.said) == ("failed", True), ended.said


#: It ends as it should in a test, if nobody ends it before: one rank prints, and notes what it saw.
LINES = """
import os, sys, time
ends = open("{log}", "a", buffering=1)
for epoch in range(1, 100):
    for step in range(1, {steps} + 1):
        time.sleep(0.02 if step > 3 or epoch > 1 else 0.2)
        if os.environ["RANK"] == "0":
            ends.write(f"{{time.monotonic()}}\\n")
            {line}
        if step == {steps} and os.environ["RANK"] == "0":
            print(f"epoch {{epoch}} loss 0.5")
"""


@pytest.mark.parametrize(
    ("line", "steps", "patterns", "steps_per_epoch"),
    [
        ("step % 10 or print(f'epoch {epoch} [{step}/400] loss 0.5')", 400, ["step_ends"], 400),
        pytest.param(
            "print(f'iter {400 * (epoch - 1) + step} loss 0.5')", 400, ["step_ends"], UNKNOWN_EPOCH,
            marks=pytest.mark.sweep,
        ),
        # The first epoch tells how many steps an epoch has.
        pytest.param(
            "print(f'step {step} loss 0.5')", 30, ["step_ends", "epoch_ends"], 30,
            marks=pytest.mark.sweep,
        ),
        # Each epoch is a step.
        ("pass", 20, ["epoch_ends"], 1),
    ],
)  # fmt: skip
def test_a_window_of_lines_ends_all_ranks_and_projects_an_epoch(
    tmp_path, run, line, steps, patterns, steps_per_epoch
):
    log = tmp_path / "ends"
    before = time.monotonic()
    known = {"step_ends": r"(step|iter|\[)\W*\d+", "epoch_ends": r"^epoch \d+ loss"}
    result = run(
        LINES.format(log=log, line=line, steps=steps), "{python} train.py", "1x2", window=1,
        **{name: known[name] for name in patterns},
    ).result  # fmt: skip
    assert (result["status"], result["program"]["known_by"]) == ("ok", "output"), result["reason"]
    assert time.monotonic() - before < 60 and not with_marks(tmp_path)
    assert is_cut(result) and result["training"]["steps_per_epoch"] == steps_per_epoch
    times = [*map(float, log.read_text().split())]
    # The slow first steps are left out.
    later = [b - a for a, b in pairwise(times[10:])]
    seconds = seconds_per_epoch(result) / (steps if steps_per_epoch == 1 else steps_per_epoch)
    assert seconds == pytest.approx(mean(later), rel=0.3)
    assert result["program"]["projected"] is None, "nothing tells the number of epochs"


#: As the hook tells of steps, each process notes the end of its steps, and that it ended.
HOOKED = """
import os, time
from escala_steps import begin, epoch, step, steps
log = open("{log}" + os.environ["RANK"], "a", buffering=1)
def train():
    time.sleep(0.02)
    log.write(f"{{time.monotonic()}}\\n")
try:
    for number in range(1, 100):
        {loop}
        epoch(loss=0.5)
finally:
    log.write("ended\\n")
"""
LOOPS = {
    "a loader": ("for _ in steps([0] * 400, rows=8): train()", 400),
    # Only the end of the first epoch tells how many steps it has.
    "a loop of its own": ("for _ in range(80): train(); step(rows=8)", 80),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_the_hook_ends_all_ranks_after_the_same_step_of_a_window(tmp_path, run, loop):
    log, (lines, steps_per_epoch) = tmp_path / "ends", LOOPS[loop]
    code = HOOKED.format(log=log, loop=lines)
    result = run(code, "{python} train.py", "1x2", window=1).result
    assert (result["status"], result["program"]["known_by"]) == ("ok", "hook"), result["reason"]
    assert is_cut(result) and result["training"]["steps_per_epoch"] == steps_per_epoch
    written = [Path(f"{log}{rank}").read_text().split() for rank in range(2)]
    assert [lines[-1] for lines in written] == ["ended", "ended"], "it cleans up"
    [epoch] = result["epochs"]
    assert len(written[0]) == len(written[1]) >= epoch["steps"]
    assert epoch["rows"] == 2 * 8 * epoch["steps"]
    times = [*map(float, written[0][:-1])]
    usual = mean(b - a for a, b in pairwise(times[10:]))
    assert seconds_per_epoch(result) / steps_per_epoch == pytest.approx(usual, rel=0.3)


#: The first steps are slow, as if it compiled. After each epoch is an evaluation.
EVALUATES = """
import sys, time
from escala_steps import epoch, steps
time.sleep(0.5)
for number in range(int(sys.argv[2])):
    for step in steps(range(50)):
        time.sleep(0.01 if number or step else 0.2)
    time.sleep(0.2)
    epoch(loss=0.5)
"""


def test_the_whole_training_is_projected_as_long_as_a_whole_run_takes(run, tmp_path):
    command = [sys.executable, "train.py", "--epochs", "8"]
    whole = run(EVALUATES, command, window=0, limit=60).result["program"]
    (tmp_path / "run").rename(tmp_path / "whole")
    projected = run(EVALUATES, command, window=1).result["program"]
    assert (whole["projected"], projected["projected"]["told_by"]) == (None, "its command")
    assert [projected["projected"][key] for key in ("epochs", "steps")] == [8, 50]
    assert projected["whole_seconds"] < whole["whole_seconds"] / 2
    assert projected["projected"]["seconds"] == pytest.approx(whole["whole_seconds"], rel=0.25)
    # An evaluation of 0.2 s after each epoch.
    assert projected["projected"]["rest_seconds"] == pytest.approx(8 * 0.2, rel=0.3)


def test_a_window_within_an_epoch_does_not_tell_what_comes_after_it(run):
    short = EVALUATES.replace("range(50)", "range(500)")
    found = run(short, [sys.executable, "train.py", "--epochs", "8"], window=0.5).result["program"]
    assert found["projected"]["steps"] == 500
    assert found["projected"]["rest_seconds"] is None
