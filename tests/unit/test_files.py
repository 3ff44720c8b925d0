"""Files are written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escala import cli
from escala.errors import InputError
from escala.files import atomic, read_json, sha256_file, write_json


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_file_appears_when_its_block_ends(tmp_path):
    path = tmp_path / "new" / "table.csv"
    with atomic(path) as temporary:
        assert temporary.suffix == ".csv"
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert names(path.parent) == ["table.csv"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(error), atomic(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert names(tmp_path) == ["table.csv"]


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


def test_others_may_read_what_is_written(tmp_path):
    with atomic(tmp_path / "a") as temporary:
        temporary.touch()
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


@pytest.mark.parametrize("content", [b"", b"ACGT" * 300_000])
def test_the_digest_is_of_all_bytes(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    assert sha256_file(tmp_path / "a") == hashlib.sha256(content).hexdigest()


def test_json_is_read_back_and_holds_no_nan(tmp_path):
    path = tmp_path / "run.json"
    write_json(path, {"classes": ["Ébola"], "seconds": 0.1, "none": None})
    assert read_json(path) == json.loads(path.read_text())
    assert read_json(path) == {"classes": ["Ébola"], "seconds": 0.1, "none": None}
    with pytest.raises(ValueError):
        write_json(path, {"loss": float("nan")})
    assert read_json(path)["seconds"] == 0.1
    assert names(tmp_path) == ["run.json"]


@settings(deadline=None)
@given(st.text(), st.text() | st.lists(st.integers(), max_size=200), st.text(), st.text())
def test_an_input_error_says_where_what_why_and_what_to_do(where, value, reason, remedy):
    error = InputError(where, value, reason, remedy)
    assert (error.where, error.value, error.reason, error.remedy) == (where, value, reason, remedy)
    for part in (where, reason, remedy, repr(value)[:100]):
        assert part in str(error)


def run_script(body: str, **options) -> subprocess.CompletedProcess:
    script = (
        "import os, signal, sys\nfrom escala import cli\nfrom escala.errors import InputError\n"
        f"def main():\n    {body}\nraise SystemExit(cli.main(main))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, **options
    )


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("pass", 0, ""),
        ("return 7", 7, ""),
        (
            "raise InputError('a.fasta', 'x', 'is empty', 'fill it')",
            2,
            "escala: a.fasta: 'x': is empty. Remedy: fill it.\n",
        ),
        ("open('/nowhere/file')", 1, "escala: /nowhere/file: No such file or directory\n"),
        ("raise KeyboardInterrupt", 130, "escala: interrupted\n"),
    ],
)
def test_a_script_ends_with_a_message_and_a_code(body, code, said):
    done = run_script(body)
    assert (done.returncode, done.stderr) == (code, said)


def test_sigterm_lets_a_script_tidy_up():
    body = (
        "\n    try: os.kill(os.getpid(), signal.SIGTERM); signal.pause()"
        "\n    finally: print('tidied')"
    )
    done = run_script(body, timeout=60)
    assert (done.returncode, done.stdout) == (143, "tidied\n")


def test_a_defect_is_not_taken_for_wrong_input(monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def defect():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cli.main(defect)
