"""Text, YAML, arguments and files as they are read, and the entry points of scripts."""

from __future__ import annotations

import argparse
import bz2
import errno
import gzip
import io
import lzma
import math
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from test_experiment import SMALL

from escala import cli
from escala.cache.code import Code
from escala.core import arguments
from escala.core.errors import InputError
from escala.core.files import atomic, read_yaml, temporary_folder, write_json
from escala.core.text import open_text, read_text
from escala.core.yaml12 import Dumper, read
from escala.experiment import load
from escala.workflow.experiments import Experiments
from tests.conftest import ROOT

TEXT = "one\ntwo – three\n"
PACKED = gzip.compress(TEXT.encode() * 99, mtime=0)


@pytest.mark.parametrize("packed", [bytes, gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize(("encoding", "name"), [("utf-8", "t.txt.gz"), ("utf-8-sig", "t.txt")])
def test_a_file_is_what_its_first_bytes_say(tmp_path, encoding, packed, name):
    (tmp_path / name).write_bytes(packed(TEXT.encode(encoding)))
    assert read_text(tmp_path / name) == TEXT


def tarred(content: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("t.txt"), io.BytesIO(content))
    return file.getvalue()


def test_lines_end_as_the_file_has_them_or_in_a_line_feed(tmp_path):
    path = tmp_path / "t"
    path.write_bytes(b"a\r\nb\rc\n")
    assert read_text(path) == "a\nb\nc\n"
    with open_text(path, newline="") as text:
        assert text.read() == "a\r\nb\rc\n"
    path.write_bytes(b"")
    assert read_text(path) == ""


@pytest.mark.parametrize(
    ("content", "value", "reason", "remedy"),
    [
        (TEXT.encode("utf-16"), "line 1", "but in UTF-16", "iconv -f UTF-16 -t UTF-8 t.txt"),
        ("one\ntwo\nfür\n".encode("latin1"), "line 3, column 2", "LATIN1, it seems: the byte FC is",
         "iconv -f LATIN1"),
        (TEXT.encode("cp1252"), "line 2, column 5", "WINDOWS-1252, it seems: the byte 96 is –",
         "iconv -f WINDOWS-1252"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0", "line 1, column 1", "the byte 89", "a text file"),
        (b"PK\x03\x04" + bytes(26), "t.txt", "is a zip archive or a spreadsheet", "unpack"),
        (tarred(b""), "t.txt", "is a tar archive", "unpack"),
        (b"\x28\xb5\x2f\xfd\x04\0", "t.txt", "is packed by Zstandard", "unpack"),
        (PACKED[:-9], "t.txt", "damaged or truncated", "copy"),
        (bz2.compress(TEXT.encode() * 99)[:-9], "t.txt", "damaged or truncated", "copy"),
        (lzma.compress(TEXT.encode())[:20] + bytes(99), "t.txt", "damaged or truncated", "copy"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)  # fmt: skip
def test_what_is_no_text_in_utf_8_is_refused_with_its_line_and_a_remedy(
    tmp_path, content, value, reason, remedy
):
    path = tmp_path / "t.txt"
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_text(path)
    assert (refused.value.where, refused.value.value) == (path, value)
    assert reason in refused.value.reason and remedy in refused.value.remedy
    for name, reason in (("none", "no such file"), (".", "is a directory")):
        with pytest.raises(InputError, match=reason):
            read_text(tmp_path / name)


def test_errors_of_other_files_in_the_block_pass_unchanged(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("a\n")
    other = OSError(errno.ENOSPC, "full"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "wrong")
    for error in (*other, FileNotFoundError(errno.ENOENT, "gone", "other.txt")):
        with pytest.raises(type(error)) as raised, open_text(path):
            raise error
        assert raised.value is error


SCALARS = {
    "1:30": "1:30", "190:20:30": "190:20:30", "1_000": "1_000", "0b11": "0b11",
    "2026-11-28": "2026-11-28", "yes": "yes", "No": "No", "off": "off", "=": "=", "0o8": "0o8",
    "010": 10, "-08": -8, "0o17": 15, "0x1F": 31, "12": 12, "+1": 1,
    "1e-3": 0.001, "1E3": 1000.0, ".5": 0.5, "5.": 5.0, "-1.5e+3": -1500.0, "-.inf": -math.inf,
    "true": True, "False": False, "~": None, "": None, "Null": None, "'1e-3'": "1e-3",
}  # fmt: skip


def test_scalars_are_those_of_version_1_2(tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text("\n".join(f"- {text}" for text in SCALARS) + "\n- {a: 1e-3, <<: {b: 010}}\n")
    found = read_yaml(file)
    assert found == read(file) == [*SCALARS.values(), {"a": 0.001, "b": 10}]
    assert [*map(type, found)] == [*map(type, [*SCALARS.values(), {}])]


def test_merged_keys_may_be_replaced_and_a_key_that_is_there_twice_is_refused(tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text("deep: [&a {a: 1, b: 2}, &c {<<: *a, a: 3}]\ntop: {<<: *c, b: 4}\n")
    mappings = {"deep": [{"a": 1, "b": 2}, {"a": 3, "b": 2}], "top": {"a": 3, "b": 4}}
    assert read(file) == read_yaml(file) == mappings
    file.write_text("top: {<<: {b: 2}, a: 1,\n  a: 2}\n")
    with pytest.raises(InputError, match=r"line 2, column 3.*the key a is there twice"):
        read(file)


def test_a_written_text_stays_one_for_either_version(tmp_path):
    texts = [*SCALARS, "<<", "1.0", "null", "a: b"]
    file = tmp_path / "file.yaml"
    file.write_text(yaml.dump(texts, Dumper=Dumper))
    assert read_yaml(file) == read(file) == yaml.safe_load(file.read_text()) == texts
    numbers = [1, -8, 0.001, 1e-05, 1e22, math.inf, True, None]
    file.write_text(yaml.dump(numbers, Dumper=Dumper))
    assert read_yaml(file) == yaml.safe_load(file.read_text()) == numbers


def test_a_call_of_snakemake_reads_a_file_as_every_other_call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = yaml.safe_dump(SMALL | {"time_limit_minutes": "LIMIT"})
    file = tmp_path / "small.yaml"
    file.write_text(whole.replace("LIMIT", "010"))
    for e in (load(file), Experiments(ROOT, tmp_path, [file], {}).default):
        assert e.settings["time_limit_minutes"] == 10
    file.write_text(whole.replace("LIMIT", "1:30"))
    named = r"small\.yaml: time_limit_minutes: '1:30': is not a (whole )?number"
    with pytest.raises(InputError, match=named):
        load(file)
    with pytest.raises(SystemExit, match=named):
        Experiments(ROOT, tmp_path, [file], {})


BOUNDS = {
    arguments.whole_number: lambda number: number >= 1 and number == int(number),
    arguments.from_zero: lambda number: number >= 0,
    arguments.above_zero: lambda number: number > 0,
}


@pytest.mark.parametrize("kind", BOUNDS, ids=lambda kind: kind.__name__)
@given(number=st.integers(-(10**18), 10**18) | st.floats())
def test_a_number_is_returned_or_refused(kind, number):
    allowed = math.isfinite(number) and BOUNDS[kind](number)
    if kind is arguments.whole_number and isinstance(number, float):
        allowed = False  # "1.0" is not written as a whole number.
    if allowed:
        assert kind(str(number)) == (number if kind is arguments.whole_number else float(number))
    else:
        with pytest.raises(argparse.ArgumentTypeError):
            kind(str(number))
    for text in ("", "two", "1e999", "0x10"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a"):
            kind(text)


def test_a_step_that_is_served_says_so_and_one_that_is_made_does_not(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ESCALA_STORE", str(tmp_path / "store"))
    made = []

    @cli.step(lambda given: Code({}))
    def own(output: cli.Files, given: SimpleNamespace) -> None:
        made.append(1)
        output["out"].write_text("made")

    own({"out": tmp_path / "out"}, SimpleNamespace())
    assert "own: served" not in capsys.readouterr().out
    own({"out": tmp_path / "out"}, SimpleNamespace())
    assert f"own: served from the store {tmp_path / 'store'}" in capsys.readouterr().out
    assert made == [1]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("file", "value", "reason", "remedy"), 2, "Remedy: remedy."),
        (OSError(28, "No space left on device", "x.npy"), 1, "x.npy: No space left on device"),
    ],
)
def test_every_end_has_its_code_and_its_line(error, code, message, capsys):
    assert cli.main(Mock(side_effect=error)) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("where", "value", "is_shown"),
    [
        (Path("results/demo"), "results/demo", False),
        (Path("results/demo/calibration.json"), "calibration.json", False),
        ("a.yaml: workloads.mine", "mine", False),
        ("a.yaml: workloads.mine", "min", True),
        ("a.yaml: epochs", "", True),
        ("a.yaml: batches.0", 0, True),
    ],
)
def test_a_message_says_a_path_or_a_key_once(where, value, is_shown):
    error = InputError(where, value, "is wrong", "mend it")
    assert (f" {value!r}:" in str(error)) == is_shown
    assert error.value == value and str(error).startswith(f"{where}: ")


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


def test_a_folder_stays_if_the_disk_has_no_room_for_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "sequences"
    path.mkdir()
    (path / "old").touch()
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"), atomic(path) as temporary:
        temporary.mkdir()
    assert names(path) == ["old"] and names(tmp_path) == ["sequences"]


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


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_process_waits_for_the_lock_of_another_and_says_so_until_that_is_killed(tmp_path, kind):
    code = """if True:
        import pathlib, sys, time
        from escala.core.files import take_turns
        with take_turns(pathlib.Path(sys.argv[1]), "it waits"):
            print("inside", flush=True)
            time.sleep(float(sys.argv[2]))
    """
    path = tmp_path / "lock" if kind == "file" else tmp_path

    def start(seconds: int) -> subprocess.Popen:
        words = [sys.executable, "-c", code, str(path), str(seconds)]
        return subprocess.Popen(words, cwd=ROOT, stdout=-1, stderr=-1, text=True)

    with start(600) as holder:
        assert holder.stdout.readline() == "inside\n"
        with start(0) as waiter:
            assert waiter.stderr.readline() == "escala: it waits\n"
            assert waiter.poll() is None
            holder.kill()
            assert waiter.communicate(timeout=60) == ("inside\n", "")
    with start(0) as alone:
        assert alone.communicate(timeout=60) == ("inside\n", ""), "nobody is waited for"


@pytest.mark.parametrize("left", [[], [os.uname().nodename], [os.uname().nodename, "replaced"]])
def test_what_a_writer_left_is_removed_whenever_it_was_killed(tmp_path, left):
    """What is of another machine stays: its lock may not be seen here."""
    (tmp_path / ".table.csv.efgh_456" / "another-machine").mkdir(parents=True)
    for folder in ("", *left):
        (tmp_path / ".table.csv.abcd_123" / folder).mkdir()
    with atomic(tmp_path / "table.csv") as temporary:
        temporary.write_text("whole")
    assert sorted(names(tmp_path)) == [".table.csv.efgh_456", "table.csv"]
