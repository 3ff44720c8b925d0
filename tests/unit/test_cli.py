"""What scripts say of what they did, and how they end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from escala import cli
from escala.cache.code import Code
from escala.core.errors import InputError
from tests.conftest import ROOT


def test_a_stage_says_rows_bytes_and_seconds(tmp_path, capsys):
    (tmp_path / "made").write_bytes(b"x" * 2_500_000)
    with cli.stage("encode") as stage:
        stage.rows_in, stage.rows_out, stage.files = 12, 10, [tmp_path / "made"]
    said = capsys.readouterr().out
    assert re.fullmatch(r"encode: 12 rows in, 10 rows out, 2\.5 MB written, 0\.\d s\n", said)


def test_a_step_that_is_served_says_so_and_one_that_is_made_does_not(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ESCALA_STORE", str(tmp_path / "store"))
    made = []

    def make() -> None:
        made.append(1)
        (tmp_path / "out").write_text("made")

    step = {"code": Code({}), "inputs": {}, "parameters": {}, "make": make}
    assert cli.serve_or_make("own", outputs={"out": tmp_path / "out"}, **step) == "made"
    assert "own: served" not in capsys.readouterr().out
    assert cli.serve_or_make("own", outputs={"out": tmp_path / "out"}, **step) == "served"
    assert f"own: served from the store {tmp_path / 'store'}" in capsys.readouterr().out
    assert made == [1]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("file", "value", "reason", "remedy"), 2, "Remedy: remedy."),
        (OSError(28, "No space left on device", "x.npy"), 1, "x.npy: No space left on device"),
    ],
)
def test_every_end_has_its_code_and_its_line(error, code, said, capsys):
    def fail() -> None:
        raise error

    assert cli.main(fail) == code
    assert said in capsys.readouterr().err


def test_output_that_nobody_reads_any_more_ends_without_a_message():
    program = (
        "from escala.cli import main\n"
        "def command():\n"
        "    for number in range(100_000):\n"
        "        print(number)\n"
        "raise SystemExit(main(command))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 128 + signal.SIGPIPE
