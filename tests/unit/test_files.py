"""Files are written whole or not at all."""

from __future__ import annotations

import ast
import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from escala.core import files
from escala.core.files import atomic, temporary_folder, write_json
from escala.record.collect import _keep_model
from escala.workloads.models import WEIGHTS
from tests.conftest import ROOT


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "new" / "table.csv"
    with atomic(path) as temporary:
        assert temporary.suffix == ".csv"
        temporary.write_text("old")
        assert not path.exists()
    with pytest.raises(error), atomic(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert names(path.parent) == ["table.csv"]


def test_a_folder_that_may_not_be_written_to_is_named(tmp_path, monkeypatch):
    def refuse(**keywords):
        raise PermissionError(errno.EACCES, "Permission denied", f"{tmp_path}/.x.yaml.abcd1234")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(PermissionError) as raised, atomic(tmp_path / "x.yaml"):
        raise AssertionError("nothing can be written")
    assert raised.value.filename == str(tmp_path)


def test_a_folder_replaces_the_old_one_whole_or_not_at_all(tmp_path):
    path = tmp_path / "sequences"
    for name in ("old", "new"):
        with atomic(path) as temporary:
            temporary.mkdir()
            (temporary / name).touch()
        assert names(path) == [name]
    with pytest.raises(OSError), atomic(path) as temporary:
        temporary.mkdir()
        raise OSError
    assert names(path) == ["new"]
    assert names(tmp_path) == ["sequences"]


def test_a_temporary_folder_of_a_killed_process_is_removed_by_the_next(tmp_path, monkeypatch):
    program = (
        "import os, tempfile\nfrom escala.core.files import temporary_folder\n"
        "with temporary_folder('try') as folder:\n"
        "    (folder / 'train.py').touch()\n"
        "    os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", program], env=os.environ | {"TMPDIR": tmp_path})
    [left] = tmp_path.iterdir()
    assert killed.returncode == -9 and list(left.rglob("train.py"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with temporary_folder("try") as mine:
        assert not left.exists() and names(mine) == []
        with temporary_folder("try") as other:
            assert mine.is_dir() and other != mine
    assert names(tmp_path) == []


@pytest.fixture
def disk(monkeypatch):
    """What is asked of the file system, in order: names that are synced, and renames."""
    asked = []
    fsync, replace = os.fsync, Path.replace

    def synced(handle):
        asked.append(("sync", Path(f"/proc/self/fd/{handle}").readlink().name))
        fsync(handle)

    def replaced(path, target):
        asked.append(("rename", Path(target).name))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    return asked


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_all_is_done(tmp_path, disk):
    write_json(tmp_path / "run.json", {})
    assert disk == [("sync", "run.json"), ("rename", "run.json"), ("sync", tmp_path.name)]
    disk.clear()
    with atomic(tmp_path / "folder") as temporary:
        (temporary / "inner").mkdir(parents=True)
        for name in ("a", "inner/b"):
            (temporary / name).touch()
        (temporary / "nowhere").symlink_to("missing")
    assert sorted(disk[:4]) == [("sync", name) for name in ("a", "b", "folder", "inner")]
    assert disk[4:] == [("rename", "folder"), ("sync", tmp_path.name)]
    disk.clear()
    write_json(tmp_path / "rank0.pid", {}, durable=False)
    assert disk == [("rename", "rank0.pid")]


def test_a_model_is_on_the_disk_before_it_is_described(tmp_path, disk):
    """A run.json that says so would outlast it otherwise."""
    ranks = tmp_path / "rep1" / "ranks"
    ranks.mkdir(parents=True)
    (ranks / WEIGHTS).write_bytes(b"weights")
    disk.clear()
    plan = {"workload": "virus-cnn", "engine": "tensorflow", "knobs": {}, "training": {}}
    _keep_model(plan, {"classes": ["X", "Y"]}, ranks, "")
    [first, *_, last] = disk
    assert first == ("sync", WEIGHTS)
    assert disk.index(("rename", WEIGHTS)) < disk.index(("sync", "rep1"))
    assert disk.index(("sync", "rep1")) < disk.index(("rename", "model.json"))
    assert last == ("sync", "rep1")


WRITER = """
import sys
from escala.core.files import atomic
with atomic(sys.argv[1]) as temporary:
    temporary.write_text("half")
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_writer_left_is_removed_by_the_next_and_a_living_one_is_let_be(tmp_path):
    path = tmp_path / "table.csv"
    mine = [
        tmp_path / name for name in (".table.csv.mine", ".table.csv.8letters", ".table.csv.x.y")
    ]
    for each in mine:
        each.mkdir()
        (each / "file").touch()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", WRITER, str(path)]
    killed, living = (subprocess.Popen(command, **pipes) for _ in range(2))
    assert all(process.stdout.readline() == "writing\n" for process in (killed, living))
    assert len(names(tmp_path)) == len(mine) + 2
    killed.kill()
    killed.communicate()
    with atomic(path) as temporary:
        temporary.write_text("whole")
    assert path.read_text() == "whole"
    assert len(names(tmp_path)) == len(mine) + 2, "the living one's folder, and the file"
    living.communicate()
    assert path.read_text() == "half" and living.returncode == 0
    assert sorted(names(tmp_path)) == sorted(["table.csv", *(each.name for each in mine)])


@pytest.mark.parametrize(("module", "step"), [(os, "open"), (fcntl, "flock")])
def test_a_folder_that_is_not_locked_yet_may_be_removed_by_another_writer(
    tmp_path, monkeypatch, module, step
):
    path, removed = tmp_path / "table.csv", []
    function = getattr(module, step)

    def another_writer_is_first(*arguments):
        monkeypatch.setattr(module, step, function)
        removed.extend(names(tmp_path))
        files._remove_abandoned(path)
        return function(*arguments)

    monkeypatch.setattr(module, step, another_writer_is_first)
    with atomic(path) as temporary:
        temporary.write_text("whole")
    assert len(removed) == 1
    assert path.read_text() == "whole"
    assert names(tmp_path) == ["table.csv"]


@pytest.mark.parametrize("left", [[], [os.uname().nodename], [os.uname().nodename, "replaced"]])
def test_what_a_writer_left_is_removed_whenever_it_was_killed(tmp_path, left):
    """What is of another machine stays: its lock may not be seen here."""
    (tmp_path / ".table.csv.efgh_456" / "another-machine").mkdir(parents=True)
    for folder in ("", *left):
        (tmp_path / ".table.csv.abcd_123" / folder).mkdir()
    with atomic(tmp_path / "table.csv") as temporary:
        temporary.write_text("whole")
    assert sorted(names(tmp_path)) == [".table.csv.efgh_456", "table.csv"]


def test_every_text_is_utf_8_whatever_the_locale():
    def is_text(call: ast.Call) -> bool:
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name in ("read_text", "write_text"):
            return len(call.args) == (name == "write_text")  # Others are not of `Path`.
        mode = [arg.value for arg in call.args[1:2] if isinstance(arg, ast.Constant)]
        return isinstance(call.func, ast.Name) and name == "open" and "b" not in "".join(mode)

    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("escala", "scripts")
        for path in (ROOT / folder).rglob("*.py")
        if path.parent.name != "hook"  # It writes ASCII, by any Python.
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and is_text(node)
        if "encoding" not in {keyword.arg for keyword in node.keywords}
    ]
    assert not found
