"""Programs: their files, what they print and read, and the copies they work in."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from escala.core import environment
from escala.core.errors import InputError
from escala.core.files import write_json
from escala.programs import copy as program_copy
from escala.programs import printed
from escala.programs.copy import COPY, Copy
from escala.programs.environment import digests
from escala.programs.processes import FileUse, file_use, list_unlisted
from escala.programs.program import HOOK, Program
from escala.record.collect import collect
from escala.record.schema import Outcome
from escala.training.process import PARTS, STEP_COLUMNS, Measurements


def test_files_of_one_name_outside_of_the_directory_are_told_apart(tmp_path):
    directory, *others = (tmp_path / name for name in ("own", "one", "two"))
    for folder in (directory, *others):
        folder.mkdir()
        (folder / "config.yaml").write_text(folder.name)
    command = ("run", *(str(folder / "config.yaml") for folder in others))

    def found() -> dict[str, str]:
        declared = {"command": command, "files": ["config.yaml"]}
        return digests(Program.of(declared, directory, "program"))

    before = found()
    assert len(set(before.values())) == 3
    for folder in others:
        (folder / "config.yaml").write_text("changed")
        assert found() != before
        (folder / "config.yaml").write_text(folder.name)


#: As people write them: any characters; digits and a point; decimals; by a mistake, the last digit.
PATTERNS = (
    r"loss (?P<loss>\S+)",
    r"loss (?P<loss>[0-9.]+)",
    r"loss\D*(?P<loss>\d+\.?\d*)",
    r"loss.*(?P<loss>\d)",
)
NUMBERS = {
    "0.25": 0.25, "-0.25": -0.25, "+3": 3, ".5": 0.5, "12": 12, "-12": -12, "\u22120.5": -0.5,
    "3.21e-05": 3.21e-05, "-1E+3": -1000, "1e-4": 1e-4, "2.5D-03": 0.0025,
    "1,234.5": 1234.5, "1,234,567": 1234567, "0,0625": 0.0625,
    "nan": math.nan, "NaN": math.nan, "-nan": math.nan, "inf": math.inf, "-inf": -math.inf,
    "Infinity": math.inf,
}  # fmt: skip


def read(pattern: str, *lines: str) -> tuple[list[dict[str, float] | None], list[str]]:
    """Return the numbers of each line, None of one that does not match, and the notes."""
    numbers = printed.Numbers({"epoch", "rows"})
    found = [printed.search(re.compile(pattern), line) for line in lines]
    values = [None if each is None else numbers.values(each[1]) for each in found]
    return values, numbers.settle()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("after", ["", " acc", ", step", "%", "]"])
def test_a_number_is_read_whole_by_whatever_pattern_finds_it(pattern, after):
    for text, value in NUMBERS.items():
        [values], notes = read(pattern, f"epoch 3 loss {text}{after}")
        assert values == {"loss": pytest.approx(value, nan_ok=True)}, (text, notes)
        assert notes == []


@pytest.mark.parametrize(
    ("pattern", "line", "values"),
    [
        # What follows a number does not hide that it is another one than the pattern expects.
        (r"^loss (?P<loss>[0-9.]+)$", "loss -0.5", {"loss": -0.5}),
        (r"loss (?P<loss>[0-9.]+) (?P<a>[0-9.]+)", "loss 2e-05 0.5", {"loss": 2e-5, "a": 0.5}),
        (r"loss (?P<a>\d\.\d{4}) (?P<b>\de-\d+)", "loss nan 1e-04", {"a": math.nan, "b": 1e-4}),
        (r"(?P<loss>\d+\.\d+)$", "2026-11-28 12:00:00,123", None),
        # A later number is not taken for one that is not finite.
        (r"loss\D+(?P<loss>\d+\.\d+)", "loss nan acc 0.9", {"loss": math.nan}),
        (r"epoch (?P<epoch>\d+)", "[INF] epoch 3", {"epoch": 3}),
        # Numbers side by side, of which the pattern takes one or each.
        (r"epoch-(?P<epoch>\d+)", "epoch-3 loss", {"epoch": 3}),
        (r"(?P<epoch>\d+)/10", "Epoch 3/10", {"epoch": 3}),
        (r"^(?P<epoch>\d+),(?P<loss>[0-9.]+)", "3,-0.5,1", {"epoch": 3, "loss": -0.5}),
        (r"^(?P<epoch>\d+),(?P<loss>[0-9.]+)", "3,125,1", {"epoch": 3, "loss": 125}),
        (r"^(?P<epoch>\d+)", "3,0.25,12", {"epoch": 3}),
        (r",(?P<loss>[0-9.]+),", "3,2.5e-05,12", {"loss": 2.5e-5}),
        (r"loss (?P<loss>\S+)", "loss tensor(0.25, requires_grad=True)", {"loss": 0.25}),
        (r"(?P<parameters>[0-9.]+)M", "12.5M", {"parameters": 12.5}),
        (r"rows (?P<rows>\S+)", "rows 1,250", {"rows": 1250}),
        (r"a(?: b (?P<b>\d+))?", "a", {}),
    ],
)  # fmt: skip
def test_a_number_is_that_of_its_group(pattern, line, values):
    [found], notes = read(pattern, line)
    assert found == (values and pytest.approx(values, nan_ok=True))
    assert notes == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"loss (?P<loss>\S+)", "loss nothing"),
        (r"loss (?P<loss>.*)", "loss 0.5 acc 0.9"),
        (r"rows (?P<rows>\S+)", "rows 1.5k"),
        (r"rows (?P<rows>\S+)", "rows 0x10"),
        (r"rows (?P<rows>\S+)", "rows 1\u202f000,5"),
        (r"at (?P<seconds>\S+)", "at 1:30"),
        (r"loss (?P<loss>[0-9.]+)", "loss 1.#QNAN"),
    ],
)
def test_what_is_no_single_number_is_left_out_and_named(pattern, line):
    [found], [note] = read(pattern, line)
    assert found == {}
    [name] = re.compile(pattern).groupindex
    assert note.startswith(f"{name} '") or note.startswith(f'{name} "')
    assert note.endswith(" is no number, and is left out")


def test_a_comma_means_the_same_in_all_numbers_of_a_name():
    def losses(*texts: str) -> list[float | None]:
        found, _ = read(r"loss (?P<loss>\S+)", *(f"loss {text}" for text in texts))
        return [each.get("loss") for each in found]

    assert losses("1,234", "12,345") == [None, None], "two ways"
    assert losses("1,234", "0,987") == [1.234, 0.987]
    assert losses("1,234", "1,234.5") == [1234, 1234.5]
    assert losses("1,234", "999.5") == [1234, 999.5]
    assert losses("1.234,5", "2,5") == [1234.5, 2.5]
    assert losses("0.25", "0,25", "1,234") == [0.25, 0.25, None], "nobody writes both"


def lines(*pieces: tuple[bytes, float]) -> list[tuple[str, float]]:
    found = printed.Lines()
    return [line for data, time in pieces for line in found.feed(data, time)] + list(found.end())


def test_lines_are_read_as_a_person_reads_them():
    colours = "\x1b[32mepoch\x1b[0m 1 \x1b]0;title\x07\x1b[1mloss\x1b[0m 0.5\n"
    assert lines((colours.encode(), 1.0)) == [("epoch 1 loss 0.5", 1.0)]
    # As `tput` ends a colour, and as bars write over what they wrote.
    others = "\ufeff\x1b(B\x1b[mepoch\x1b(B 1 loss 0.9\x1b[K\x08\x08\x1b[1m.5\x1b7\x1b8\n"
    assert lines((others.encode(), 1.0)) == [("epoch 1 loss 0.5", 1.0)]
    # As Keras draws a bar: back to its beginning, and then a return.
    bar = b"".join(b"%d/3 - loss: 0.5" % n + b"\b" * 18 + b"\r" for n in (1, 2, 3)) + b"\n"
    assert [line for line, _ in lines((bar, 1.0)) if line] == [
        f"{n}/3 - loss: 0.5" for n in (1, 2, 3)
    ]
    assert lines((b"abc\b\b\b\b\bx\n", 1.0)) == [("xbc", 1.0)]
    both = "época 1\n".encode() + "época 2\n".encode("latin-1")
    pieces = [(both[n : n + 1], float(n)) for n in range(len(both))]
    assert [line for line, _ in lines(*pieces)] == ["época 1", "época 2"]


@pytest.mark.parametrize("letter", [".", "é"])
def test_of_a_long_line_the_beginning_and_the_end_are_read(letter):
    dots = (letter * 50_000).encode()
    for pieces in (
        [(b"first" + dots + b"last\n", 1.0)],
        [
            (b"first", 1.0),
            *((dots[n : n + 999], 2.0) for n in range(0, len(dots), 999)),
            (b"last", 3.0),
        ],
    ):
        [(line, _)] = lines(*pieces)
        assert line.startswith(f"first{letter}") and line.endswith(f"{letter}last")
        assert len(line.encode()) <= 2 * printed.LONGEST + 1
        assert set(line) == set(f"firstlast{letter}\n")


TRAIN = """\
import importlib, json, os, sqlite3, subprocess, sys
from concurrent.futures import ProcessPoolExecutor
import elsewhere, numpy
importlib.import_module("late." + "model")
json.load(open("settings.json"))
os.close(os.open(b"raw.bin", os.O_RDONLY))
open("made.txt", "w").write("1"); open("made.txt").read()
open("state.txt").read(); open("state.txt", "a").write("1")
with open(os.environ["ESCALA_STEPS"] + "/own.txt", "w"): pass
sqlite3.connect("rows.db").close()
try: open("missing.txt")
except OSError: pass
subprocess.run([sys.executable, "-c", "open('by-child.txt')"], check=True)
if os.fork() == 0:
    open("by-fork.txt")
    os._exit(0)
os.wait()
os.environ["OMP_NUM_THREADS"] = "1"
assert sys.path.index(os.environ["ELSEWHERE"]) == 2, sys.path
"""
READ = {
    "settings.json", "raw.bin", "rows.db", "by-child.txt", "by-fork.txt", "late/model.py",
}  # fmt: skip


@pytest.fixture
def started(tmp_path):
    """Start a script in a folder with files to read, and return what it told and printed."""
    folder, marks, elsewhere = (tmp_path / name for name in ("mine", "marks", "else-packages"))
    for place in (folder / "late", marks, elsewhere):
        place.mkdir(parents=True)
    for name in (*READ, "state.txt"):
        (folder / name).write_text("{}" if name.endswith(".json") else "")
    (folder / "rows.db").write_bytes(b"")
    (elsewhere / "elsewhere.py").touch()

    def start(source: str, **given: str) -> tuple[FileUse | None, str]:
        (folder / "train.py").write_text(source)
        time.sleep(0.02)
        began = time.time()
        variables = os.environ | {"ESCALA_STEPS": str(marks), "ELSEWHERE": str(elsewhere)} | given
        variables["PYTHONPATH"] = f"{HOOK}:{elsewhere}"
        done = subprocess.run(
            [sys.executable, "train.py"], cwd=folder, env=variables, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return file_use(marks, began), done.stdout + done.stderr

    return start


def test_what_processes_open_and_import_is_told_whatever_way_they_do(started, tmp_path):
    folder, outside = tmp_path / "mine", str(tmp_path / "else-packages" / "elsewhere.py")
    for _ in range(2):  # The second one finds its modules compiled.
        found, _ = started(TRAIN, OMP_NUM_THREADS="2")
        assert found.threads == {"1", "2"}
        assert set(found.read) == {*(str(folder / name) for name in READ | {"train.py"}), outside}
    program = Program.of({"command": "python train.py", "files": []}, folder, "here")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").touch()
    read = [*found.read, str(folder / ".git" / "HEAD"), str(tmp_path / "run" / "output" / "x")]
    left = list_unlisted(read, program, [str(folder / "late")], tmp_path / "run")
    assert left == sorted({outside, *READ} - {"late/model.py"})
    every = Program.of({"command": "python train.py"}, folder, "here")
    assert list_unlisted(read, every, [], tmp_path / "run") == [outside]


@pytest.mark.parametrize("is_there", [True, False])
def test_what_is_read_in_a_copy_is_told_as_of_the_folder_itself(is_there, tmp_path):
    mine, marks, link = tmp_path / "mine", tmp_path / "ranks" / "marks0", tmp_path / "link.json"
    for folder in (mine, marks):
        folder.mkdir(parents=True)
    program = Program.of({"command": "python train.py", "files": []}, mine, "here")
    for name in ("kept.json", "changed.json"):
        (mine / name).touch()
    link.symlink_to(mine / "kept.json")
    copy = Copy(program, marks.parent / COPY, tmp_path / "run")
    if is_there:
        copy.make()
    into = copy.paths.into
    lines = ["r kept.json", "r changed.json", "w changed.json", "r made.json", "w made.json"]
    lines = [line.replace(" ", f" {into}{mine}/") for line in lines] + [f"r {into}{link}"]
    assert file_use(marks, time.time()) is None, "a program of another kind"
    time.sleep(0.02)
    (marks / "1.files").write_text("\n".join(lines))
    assert file_use(marks, time.time()).read == [str(mine / "kept.json")]


TEXTS = {
    "mine/train.py": "x",
    "mine/model.pt": "trained for a week",
    "mine/data/one.csv": "1",
    "mine/link.pt -> model.pt": "",
    "mine/whole.pt -> {root}/mine/model.pt": "",
    "mine/outside -> ../shared": "",
    "mine/.venv/pyvenv.cfg": "",
    "mine/.venv/lib/torch.py": "",
    "mine/.git/HEAD": "ref",
    "mine/.git/objects/aa": "o",
    "mine/.git/refs/main": "1",
    "mine/.escala/kept": "",
    "mine/results/theirs/a.csv": "the user's",
    "mine/results/ours/.escala": "",
    "mine/results/ours/page": "",
    "shared/table.csv": "table",
    "elsewhere/tool.py": "y",
}


def made(folder: Path, texts: dict[str, str] = TEXTS) -> Path:
    """Write files by their paths; `a -> b` is a link."""
    for name, text in texts.items():
        path, arrow, target = name.partition(" -> ")
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if arrow:
            file.symlink_to(target.format(root=folder))
        else:
            file.write_text(text)
    return folder


def program(folder: Path, *command: str) -> Program:
    return Program.of({"command": list(command) or ["python", "train.py"]}, folder, "here")


def copied(folder: Path, *command: str) -> tuple[Copy, Path]:
    run = folder / "mine/results/ours/run"
    given = program(folder / "mine", *command)
    copy = Copy(given, run / "copy", run)
    copy.make()
    return copy, copy.paths.program(given).directory


def state(folder: Path) -> dict[str, tuple]:
    """Return the content, the times and the kind of all that a folder holds, but for the runs."""
    return {
        str(path): (
            path.lstat().st_mtime_ns,
            path.is_symlink(),
            path.is_file() and path.read_text(),
        )
        for path in folder.rglob("*")
        if "results/ours" not in str(path) and not path.is_dir()
    }


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return made(tmp_path)


def test_whatever_a_program_does_in_its_copy_the_folder_stays(folder):
    (folder / "mine/log.txt").touch()
    before = state(folder)
    copy, start = copied(folder)
    assert (start / "data/one.csv").read_text() == "1"
    assert (start / "../shared/table.csv").read_text() == "table", "relative paths lead outside"
    for name in ("model.pt", "link.pt", "whole.pt", "data/one.csv", "results/theirs/a.csv", "new"):
        (start / name).write_text(name)
    (start / "../beside.txt").write_text("new")
    (start / "data/made/of").mkdir(parents=True)
    (start / "data/made/of/late").write_text("x")
    (start / "train.py").unlink()
    os.utime(start / ".git/HEAD", (1, 1))
    assert state(folder) == before
    (folder / "mine/log.txt").write_text("of the shell that called, while the program ran")
    before = state(folder)
    assert copy.list_written() == ["data/", "model.pt", "new", "results/"]
    (start / "data/made/of").chmod(0o500)
    program_copy.remove(copy._into)
    assert not copy._into.exists() and state(folder) == before


def test_a_folder_above_that_holds_too_much_is_not_linked_by_each_run(folder, monkeypatch):
    for is_crowded in (False, True):
        monkeypatch.setattr(program_copy, "MOST_LINKS", len(list(folder.iterdir())) - is_crowded)
        copy, start = copied(folder)
        assert (start / "../shared/table.csv").exists() != is_crowded
        assert (folder in copy.crowded) == is_crowded
        assert (start / "train.py").read_text() == "x"
        program_copy.remove(copy._into)


def test_packages_and_objects_of_git_are_linked_and_results_left_out(folder):
    (folder / "mine/circle").symlink_to("circle")
    copy, start = copied(folder)
    linked = {path.relative_to(start).as_posix() for path in start.rglob("*") if path.is_symlink()}
    assert linked == {".venv", ".git/objects", "link.pt", "whole.pt", "outside", "circle"}
    assert not (start / ".escala").exists() and not (start / "results/ours").exists()
    assert [line.partition(" ")[0] for line in copy.list_shared()] == [str(folder / "mine/outside")]


@pytest.mark.parametrize(("limit", "most"), [("MOST_ENTRIES", 30), ("MOST_BYTES", 1_000)])
def test_what_is_too_much_is_linked_and_named(folder, limit, most, monkeypatch):
    """Small files before large ones, and small folders before large ones."""
    made(folder, {f"mine/pictures/{n}.png": "p" * 100 for n in range(30)})
    monkeypatch.setattr(program_copy, limit, most)
    copy, start = copied(folder)
    inside = [path for path in (start / "pictures").glob("*.png") if not path.is_symlink()]
    assert (start / "model.pt").is_file() and not (start / "model.pt").is_symlink()
    assert (start / "pictures/7.png").read_text() == "p" * 100
    if limit == "MOST_ENTRIES":
        assert (start / "pictures").is_symlink()
        assert any(line.startswith(f"{folder}/mine/pictures ") for line in copy.list_shared())
    else:
        assert 0 < len(inside) < 10 and len(copy.large) == 30 - len(inside)


@pytest.mark.parametrize("start", ["mine", "mine/scripts"])
def test_a_whole_tree_of_git_is_copied(folder, start):
    made(folder, {"mine/scripts/run.py": "", "mine/weights/best.pt": "a week"})
    given = program(folder / start)
    copy = Copy(given, folder / "copy", folder / "run")
    copy.make()
    above = copy.paths.program(given).directory / ("." if start == "mine" else "..")
    (above / "weights/best.pt").write_text("lost")
    assert (folder / "mine/weights/best.pt").read_text() == "a week"


def test_a_script_elsewhere_and_paths_as_wholes_are_those_of_the_copy(folder):
    mine = folder / "mine"
    words = ["python", f"{folder}/elsewhere/tool.py", f"--out={mine}/out", f"{mine}/.venv/a"]
    words += [f"{folder}/shared/table.csv", "{output}/mine", "../shared", f"file://{mine}/x"]
    copy, _ = copied(folder, *words)
    into = copy._into
    assert copy.roots == [mine, folder / "elsewhere"]
    assert copy.paths.program(program(mine, *words)).command == (
        "python", f"{into}{folder}/elsewhere/tool.py", f"--out={into}{mine}/out",
        f"{mine}/.venv/a", f"{folder}/shared/table.csv", "{output}/mine", "../shared",
        f"file://{into}{mine}/x",
    )  # fmt: skip
    given = {"PYTHONPATH": f"{mine}/src:/usr/x", "OUT": f"{mine}", "PATH": f"{mine}/bin"}
    moved = {"PYTHONPATH": f"{into}{mine}/src:/usr/x", "OUT": f"{into}{mine}"}
    assert copy.paths.variables(given) == given | moved


@pytest.mark.parametrize("place", ["home", "."])
def test_the_home_and_what_is_above_it_are_not_copied_whole(folder, place):
    made(folder, {"home/.ssh/id": "secret", "home/train.py": "", "above.py": ""})
    given = program(folder / place, "python", str(folder / "above.py"))
    copy = Copy(given, folder / "copy", folder / "run")
    copy.make()
    start = copy.paths.program(given).directory
    assert copy.roots == ([folder / "home"] if place == "home" else [])
    (start / "new.txt").write_text("x")
    assert not (folder / place / "new.txt").exists()
    assert not any(path.name == "id" and not path.parent.is_symlink() for path in start.rglob("id"))


WRITES = "import sys, time; time.sleep(0.2); open(sys.argv[1], sys.argv[2]); print('wrote')"


@pytest.mark.parametrize("mode", ["r+b", "a", "rb"])
def test_a_linked_file_is_not_opened_for_writing(folder, mode, monkeypatch):
    monkeypatch.setattr(program_copy, "MOST_BYTES", 1)
    copy, start = copied(folder)
    assert (start / "model.pt").is_symlink()
    with copy.guard() as why:
        words = [sys.executable, "-c", WRITES, str(start / "model.pt"), mode]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 30
        while child.poll() is None and not why() and time.monotonic() < deadline:
            time.sleep(0.05)
        reason = why()
        child.kill()
        said = child.communicate()[0]
    if mode == "rb":
        assert reason is None and "wrote" in said
    else:
        assert f"{folder}/mine/model.pt" in reason and "{output}" in reason and not said
    assert (folder / "mine/model.pt").read_text() == "trained for a week"


def test_a_folder_of_results_that_somebody_else_made_is_refused(tmp_path):
    theirs, new = (tmp_path / "results" / name for name in ("theirs", "new"))
    made(theirs, {"summary.md": "mine"})
    with pytest.raises(InputError, match=r"theirs.*--name OTHER.*touch"):
        environment.require_results(theirs, "name another: --name OTHER")
    with pytest.raises(InputError):
        environment.claim_results(theirs)
    assert [path.name for path in theirs.iterdir()] == ["summary.md"]
    new.touch()
    with pytest.raises(InputError, match="new': is a file"):
        environment.claim_results(new)
    new.unlink()
    for _ in range(2):
        environment.claim_results(new)
        assert environment.is_results(new)


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
    return dict.fromkeys(Measurements.__annotations__) | {
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
    result = outcome.measured
    assert [epoch["rows"] for epoch in result["epochs"]] == [rows]
    assert result["seconds"]["train"] == seconds
    assert result["samples_per_second"] == (rows and rows / seconds)


def test_processes_whose_windows_differ_are_timed_by_their_steps(tmp_path: Path):
    """A step takes 0.3 s in both processes, of which one counts five steps and one nine."""

    def window(steps: int) -> dict:
        process = told("seen", 8 * steps, 0.3 * steps)
        process["epochs"][0]["steps"] = steps
        return process | {"epoch_steps": 100}

    for number in range(2):
        (tmp_path / f"rank{number}.steps.csv").write_text(",".join(STEP_COLUMNS) + "\n")
    found = collected(planned(), [window(5), window(9)], tmp_path).measured
    [epoch] = found["epochs"]
    assert epoch["train_seconds"] / epoch["steps"] == pytest.approx(0.3)
    assert epoch["rows"] / epoch["steps"] == 2 * 8
    assert found["program"]["notes"] == []


def test_a_note_tells_which_lines_of_the_output_end_a_step(tmp_path: Path):
    pattern = r"^step (\d+); loss"
    plan = planned()
    plan["start"]["program"]["step_ends"] = pattern
    [note] = collected(plan, [told("output", None, 2.0)] * 2, tmp_path).measured["program"]["notes"]
    # Where tables divide notes, it stays one note, and a user can give it as an option.
    assert "; " not in note
    guess = re.compile(note.partition("matches ")[2])
    for line in ("step 12; loss 0.4", "epoch 12; loss 0.4"):
        assert bool(guess.search(line)) == bool(re.search(pattern, line))


def test_a_process_that_says_nothing_beside_one_that_tells_is_no_unknown_run(tmp_path: Path):
    silent = told("whole run", None, 9.0)
    notes = []
    for first in (told("output", None, 2.0), silent):
        found = collected(planned("{epochs}"), [first, silent], tmp_path).measured
        notes.append([note for note in found["program"]["notes"] if "{epochs}" in note])
    assert [len(each) for each in notes] == [0, 1]
