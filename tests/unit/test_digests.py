"""A large file is read once while it stays the same, and again after any change of its bytes."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from escala.cache import entries, store, upkeep
from escala.cache.code import Code
from escala.core.errors import InputError
from escala.record.plan import split_description

ROOM = entries.LEAST_BYTES


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read to the end, in their order."""
    found: list[Path] = []
    real = entries.sha256_file
    monkeypatch.setattr(entries, "sha256_file", lambda path: found.append(path) or real(path))
    return found


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A large file that is older than a tick."""
    file = tmp_path / "large.npy"
    file.write_bytes(b"a" * ROOM)
    monkeypatch.setattr(entries, "TICK_SECONDS", 0.05)
    time.sleep(0.1)
    return file


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_it_is_read_once_by_whatever_path_and_whoever_asks(large, tmp_path, reads):
    (tmp_path / "linked").symlink_to(large)
    held = tmp_path / "store"
    for path in (large, large, tmp_path / "linked"):
        assert entries.digest_file(path, held) == sha256(large)
    assert entries.content(large, held) == {"": (sha256(large), ROOM)}
    assert reads == [large]


def set_back(file: Path) -> None:
    """Replace a byte in place, and set the times back that a program can set."""
    status = file.stat()
    with open(file, "r+b") as handle:
        handle.write(b"b")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)


def replace(file: Path) -> None:
    """Rename another file of equal size and time onto it."""
    status, other = file.stat(), file.with_name("other")
    other.write_bytes(b"c" * ROOM)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(file)


@pytest.mark.parametrize("change", [set_back, replace])
def test_other_bytes_of_equal_size_and_time_are_noticed(large, tmp_path, change):
    held = tmp_path / "store"
    before = entries.digest_file(large, held)
    change(large)
    assert entries.digest_file(large, held) == sha256(large) != before


def test_a_file_changed_within_a_tick_is_not_remembered(large, tmp_path, reads, monkeypatch):
    monkeypatch.setattr(entries, "TICK_SECONDS", 60.0)
    for _ in range(2):
        assert entries.digest_file(large, tmp_path / "store") == sha256(large)
    assert reads == [large, large]


def test_a_damaged_digest_is_computed_again_and_one_that_cannot_be_kept_each_time(large, tmp_path):
    held = tmp_path / "store"
    entries.digest_file(large, held)
    [kept] = (path for path in held.rglob("*") if path.is_file())
    kept.write_text("1f")
    assert entries.digest_file(large, held) == sha256(large)
    assert entries.digest_file(large, kept / "in a file") == sha256(large)


def test_a_run_reads_the_arrays_of_a_split_once(large, tmp_path, reads, monkeypatch):
    """The key of the store takes their content before and after, and the plan checks it."""
    monkeypatch.setenv("ESCALA_STORE", str(tmp_path / "store"))
    arrays = '{"name": "a", "shape": [1], "dtype": "uint8", "file": "large.npy"}'
    (tmp_path / "dataset.json").write_text(
        f'{{"inputs": [{arrays}], "targets": {arrays}, "rows": {{"train": 1, "test": 1}}, '
        f'"sha256": {{"large.npy": "{sha256(large)}"}}}}'
    )

    def make() -> None:
        split_description(tmp_path)
        (tmp_path / "result").write_text("done")

    for repeat in range(3):
        how = store.get_or_compute(
            "train",
            code=Code({}),
            inputs={"large": large},
            parameters={"repeat": repeat},
            outputs={"result": tmp_path / "result"},
            make=make,
        )
        assert how == "made"
    assert reads.count(large) == 1
    set_back(large)
    with pytest.raises(InputError, match="is damaged"):
        split_description(tmp_path)


def test_pruning_forgets_them_and_a_dry_run_does_not(large, tmp_path, reads):
    held = tmp_path / "store"
    entries.digest_file(large, held)
    upkeep.prune(held, dry_run=True)
    entries.digest_file(large, held)
    assert len(reads) == 1
    assert upkeep.prune(held).files == 0
    entries.digest_file(large, held)
    assert len(reads) == 2


LINKS: dict[str, Callable[[Path], None]] = {
    "itself": lambda folder: (folder / "again").symlink_to(folder),
    "a way round": lambda folder: (
        (folder / "other").mkdir(),
        (folder / "other" / "to").symlink_to(folder / "inner"),
        (folder / "inner" / "fro").symlink_to(folder / "other"),
    ),
}


@pytest.mark.parametrize("link", LINKS)
def test_a_link_to_a_folder_that_holds_it_is_named(tmp_path, link):
    (folder := tmp_path / "mine").mkdir()
    (folder / "inner").mkdir()
    (folder / "inner" / "file").write_text("a")
    LINKS[link](folder)
    with pytest.raises(InputError, match=r"is a link to .*, which holds it\. Remedy: remove"):
        entries.content(folder)
