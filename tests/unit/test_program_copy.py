"""The copy of a program's folder: what is in it, what is linked, what no program changes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from escala.core import environment
from escala.core.errors import InputError
from escala.programs import copy as program_copy
from escala.programs.copy import Copy
from escala.programs.program import Program

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
    """Return the copy that a run in a folder makes, and where its program then starts."""
    run = folder / "mine/results/ours/run"
    copy = Copy(program(folder / "mine", *command), run / "copy", run)
    copy.make()
    return copy, started(copy, folder / "mine", *command).directory


def started(copy: Copy, folder: Path, *command: str) -> Program:
    return copy.moved.program(program(folder, *command))


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
    monkeypatch.setattr(program_copy, "MOST_LINKS", len(list(folder.iterdir())))
    assert (copied(folder)[1] / "../shared/table.csv").exists()
    program_copy.remove(folder / "mine/results/ours/run/copy")
    (folder / "another").touch()
    copy, start = copied(folder)
    assert folder in copy.crowded and [*start.parent.iterdir()] == [start]
    assert (start / "train.py").read_text() == "x"


def test_packages_and_objects_of_git_are_linked_and_results_left_out(folder):
    (folder / "mine/circle").symlink_to("circle")
    copy, start = copied(folder)
    linked = {path.relative_to(start).as_posix() for path in start.rglob("*") if path.is_symlink()}
    assert linked == {".venv", ".git/objects", "link.pt", "whole.pt", "outside", "circle"}
    assert not (start / ".escala").exists() and not (start / "results/ours").exists()
    assert [line.partition(" ")[0] for line in copy.list_shared()] == [str(folder / "mine/outside")]


@pytest.mark.parametrize("many", ["files", "bytes"])
def test_what_is_too_much_is_linked_and_named(folder, many, monkeypatch):
    """Small files before large ones, and small folders before large ones."""
    made(folder, {f"mine/pictures/{n}.png": "p" * 100 for n in range(30)})
    if many == "files":
        monkeypatch.setattr(program_copy, "MOST_ENTRIES", 30)
    else:
        monkeypatch.setattr(program_copy, "MOST_BYTES", 1_000)
    copy, start = copied(folder)
    inside = [path for path in (start / "pictures").glob("*.png") if not path.is_symlink()]
    assert (start / "model.pt").is_file() and not (start / "model.pt").is_symlink()
    assert (start / "pictures/7.png").read_text() == "p" * 100
    if many == "files":
        assert (start / "pictures").is_symlink()
        assert any(line.startswith(f"{folder}/mine/pictures ") for line in copy.list_shared())
    else:
        assert 0 < len(inside) < 10 and len(copy.large) == 30 - len(inside)


@pytest.mark.parametrize("start", ["mine", "mine/scripts"])
def test_a_whole_tree_of_git_is_copied(folder, start):
    made(folder, {"mine/scripts/run.py": "", "mine/weights/best.pt": "a week"})
    copy = Copy(program(folder / start), folder / "copy", folder / "run")
    copy.make()
    above = started(copy, folder / start).directory / ("." if start == "mine" else "..")
    (above / "weights/best.pt").write_text("lost")
    assert (folder / "mine/weights/best.pt").read_text() == "a week"


def test_a_script_elsewhere_and_paths_as_wholes_are_those_of_the_copy(folder):
    mine = folder / "mine"
    words = ["python", f"{folder}/elsewhere/tool.py", f"--out={mine}/out", f"{mine}/.venv/a"]
    words += [f"{folder}/shared/table.csv", "{output}/mine", "../shared", f"file://{mine}/x"]
    copy, _ = copied(folder, *words)
    into = copy._into
    assert copy.roots == [mine, folder / "elsewhere"]
    assert started(copy, mine, *words).command == (
        "python", f"{into}{folder}/elsewhere/tool.py", f"--out={into}{mine}/out",
        f"{mine}/.venv/a", f"{folder}/shared/table.csv", "{output}/mine", "../shared",
        f"file://{into}{mine}/x",
    )  # fmt: skip
    given = {"PYTHONPATH": f"{mine}/src:/usr/x", "OUT": f"{mine}", "PATH": f"{mine}/bin"}
    moved = {"PYTHONPATH": f"{into}{mine}/src:/usr/x", "OUT": f"{into}{mine}"}
    assert copy.moved.variables(given) == given | moved


@pytest.mark.parametrize("place", ["home", "."])
def test_the_home_and_what_is_above_it_are_not_copied_whole(folder, place):
    made(folder, {"home/.ssh/id": "secret", "home/train.py": "", "above.py": ""})
    words = ["python", str(folder / "above.py")]
    copy = Copy(program(folder / place, *words), folder / "copy", folder / "run")
    copy.make()
    start = started(copy, folder / place).directory
    assert copy.roots == ([folder / "home"] if place == "home" else [])
    (start / "new.txt").write_text("x")
    assert not (folder / place / "new.txt").exists()
    assert not any(path.name == "id" and not path.parent.is_symlink() for path in start.rglob("id"))


WRITES = "import sys, time; time.sleep(0.2); open(sys.argv[1], sys.argv[2]); print('wrote')"


@pytest.mark.parametrize("mode", ["w", "r+b", "a", "rb"])
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
    theirs, ours, new = (tmp_path / "results" / name for name in ("theirs", "ours", "new"))
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
    made(ours, {"runs/a/run.json": "{}"})
    for folder in (ours, new):
        environment.claim_results(folder)
        assert environment.is_results(folder)
        environment.claim_results(folder)
