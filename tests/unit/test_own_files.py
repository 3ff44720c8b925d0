"""Datasets of the kind `files`: a program's data are known by their content or their times."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from escala.core.errors import InputError
from escala.data.base import Arrays
from escala.data.files import arrays, settings


@pytest.fixture(autouse=True)
def _no_store(monkeypatch):
    monkeypatch.setenv("ESCALA_STORE", "off")


@pytest.fixture
def photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


def stated(path: Path, **more: object) -> dict:
    return {"paths": {"photos": str(path)}, "identify": "content"} | more


def identity(path: Path, output: Path, **more: object) -> dict:
    given = stated(path, **more)
    output.mkdir(exist_ok=True)
    read = settings.prepared_from(given, output)
    return arrays.prepare("own", settings.preparation(given), 1, read, output)["paths"]["photos"]


def state(path: Path) -> str:
    return settings.preparation(stated(path))["state"]


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as refused:
        settings.check(stated(path))
    return str(refused.value)


def _changed(photos: Path) -> None:
    """Replace bytes by as many others, and set the time of the change back."""
    file = photos / "cat" / "2.png"
    before = file.stat()
    file.write_bytes(b"CAT/2.PNG")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _added(photos: Path) -> None:
    (photos / "dog" / "2.png").touch()


def _renamed(photos: Path) -> None:
    (photos / "dog" / "1.png").rename(photos / "dog" / "3.png")


@pytest.mark.parametrize("change", [_changed, _added, _renamed])
def test_a_change_inside_a_folder_is_noticed(photos, tmp_path, change):
    before = state(photos), identity(photos, tmp_path / "a")
    change(photos)
    assert state(photos) != before[0]
    assert identity(photos, tmp_path / "b") != before[1]


def test_a_folder_is_the_same_elsewhere(photos, tmp_path):
    copied = Path(shutil.copytree(photos, tmp_path / "copy"))
    os.utime(copied / "cat" / "1.png", (1e9, 1e9))
    found = identity(photos, tmp_path / "a")
    assert found == identity(copied, tmp_path / "b")
    assert (found["files"], found["bytes"]) == (3, 27)
    by_time = identity(photos, tmp_path / "c", identify="time")
    moved = photos.rename(tmp_path / "moved")
    assert identity(moved, tmp_path / "d", identify="time") == by_time
    assert identity(copied, tmp_path / "e", identify="time") != by_time


def test_links_are_followed_and_what_is_no_data_is_passed_over(photos, tmp_path, monkeypatch):
    linked = tmp_path / "linked"
    linked.mkdir()
    for folder in photos.iterdir():
        (linked / folder.name).symlink_to(folder)
    assert identity(linked, tmp_path / "a") == identity(photos, tmp_path / "b")
    (linked / "gone").symlink_to(tmp_path / "nowhere")
    (linked / "empty").mkdir()
    os.mkfifo(linked / "pipe")
    monkeypatch.chdir(linked)  # The path of a socket is short.
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        assert identity(linked, tmp_path / "c") == identity(photos, tmp_path / "b")
        assert "is a socket, and not a file or a folder" in refusal(linked / "socket")
    assert "is a pipe" in refusal(linked / "pipe")
    assert "holds no files" in refusal(linked / "empty")
    assert "there is no such file" in refusal(linked / "gone")
    (photos / "cat" / "around").symlink_to(photos)
    with pytest.raises(InputError, match=r"paths.photos.*around.*is a link to .*remove the link"):
        state(photos)


def test_a_file_by_itself_and_its_name(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("1,2\n")
    found = identity(file, tmp_path / "a")
    assert found == identity(file.rename(tmp_path / "other.csv"), tmp_path / "b")
    assert found["files"] == 1


def test_files_have_no_arrays(photos, tmp_path):
    identity(photos, tmp_path / "a")
    with pytest.raises(InputError, match="describes files that a program reads itself"):
        Arrays(tmp_path / "a")
