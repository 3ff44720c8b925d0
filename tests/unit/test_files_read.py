"""Which files a program is seen to read, in real processes of Python."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from escala.programs.copy import COPY, Copy
from escala.programs.processes import FilesTold, files_told, list_unlisted
from escala.programs.program import HOOK, Program

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

    def start(source: str, **given: str) -> tuple[FilesTold | None, str]:
        (folder / "train.py").write_text(source)
        time.sleep(0.02)
        began = time.time()
        variables = os.environ | {"ESCALA_STEPS": str(marks), "ELSEWHERE": str(elsewhere)} | given
        variables["PYTHONPATH"] = f"{HOOK}:{elsewhere}"
        done = subprocess.run(
            [sys.executable, "train.py"], cwd=folder, env=variables, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return files_told(marks, began), done.stdout + done.stderr

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


def test_the_programs_own_start_and_errors_are_as_without_it(started, tmp_path):
    own = tmp_path / "else-packages" / "sitecustomize.py"
    own.write_text("import sys\nprint('its own')\nsys.path.append('/own')\n")
    source = (
        "import sys\nassert '/own' in sys.path\ntry: open('a\\0b')\nexcept ValueError: print('e')"
    )
    assert started(source)[1].split() == ["its", "own", "e"]
    own.write_text("import no_such_module\n")
    assert "no_such_module" in started("")[1]
    own.unlink()
    # Its marks cannot be written.
    _, printed = started("open('settings.json')", ESCALA_STEPS="/proc/none")
    assert not printed


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
    into = copy.moved.into
    lines = ["r kept.json", "r changed.json", "w changed.json", "r made.json", "w made.json"]
    lines = [line.replace(" ", f" {into}{mine}/") for line in lines] + [f"r {into}{link}"]
    time.sleep(0.02)
    (marks / "1.files").write_text("\n".join(lines))
    assert files_told(marks, time.time()).read == [str(mine / "kept.json")]


def test_files_of_packages_are_not_among_the_most_that_are_told(started, tmp_path):
    modules = tmp_path / "site-packages"
    modules.mkdir()
    source = f"""\
for number in range(2100):
    open(f"{modules}/{{number}}.py", "w").close()
open("settings.json").close()
"""
    seen, _ = started(source)
    assert str(tmp_path / "mine" / "settings.json") in seen.read


def test_a_program_of_another_kind_tells_nothing(tmp_path):
    assert files_told(tmp_path, time.time()) is None


def test_a_measured_program_costs_little(started, tmp_path):
    source = """\
import time
def each(number):
    began = time.process_time()
    for _ in range(number):
        open("settings.json").close()
    return (time.process_time() - began) / number
each(1000)
print(min(each(2000) for _ in range(5)))
"""
    with_hook = float(started(source)[1])
    script = str(Path(tmp_path / "mine" / "train.py"))
    bare = subprocess.run(
        [sys.executable, script], cwd=tmp_path / "mine", capture_output=True, text=True, check=True
    )
    assert with_hook - float(bare.stdout) < 20e-6
