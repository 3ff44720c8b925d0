"""An environment is made when it is needed, whole or not at all; uv has a stand-in here."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from escala.core.engines import ENGINES
from escala.core.errors import InputError, Unavailable
from escala.engines import environments

#: It notes its arguments; `venv` makes an interpreter that describes itself, and `pip` does what
#: the folder of the test says.
UV = """#!/bin/bash
echo "$*" >> {folder}/calls
for last; do :; done
case $1 in
    venv) mkdir -p "$last/bin" && cp {folder}/python "$last/bin/python";;
    pip) . {folder}/does;;
esac
"""
ENDS_OK, NO_INDEX = "exit 0", 'case "$*" in *--torch-backend*) exit 1;; esac'


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone, a stand-in for uv, and nothing in the environment that says where packages are."""
    for name, content in (("uv", UV), ("python", "#!/bin/bash\necho torch 9\n")):
        (tmp_path / name).write_text(content.replace("{folder}", shlex.quote(str(tmp_path))))
        (tmp_path / name).chmod(0o755)
    (tmp_path / "uv.lock").touch()
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_")) or name in ("ESCALA_TENSORFLOW", "ESCALA_TORCH"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("UV", str(tmp_path / "uv"))
    (tmp_path / "does").write_text(ENDS_OK)
    return tmp_path


def calls(clone: Path) -> list[str]:
    file = clone / "calls"
    return file.read_text().splitlines() if file.exists() else []


def left(clone: Path) -> list[str]:
    return [path.name for path in clone.glob(".venv*")]


def test_it_is_made_once_in_the_build_that_fits(clone):
    assert "is made: torch 9" in environments.install("torch")
    [venv, pip] = calls(clone)
    assert "--relocatable" in venv and f"--python {sys.executable} " in venv
    assert pip.endswith("--torch-backend auto")
    assert str(environments.ROOT / "envs" / ENGINES["torch"].environment.requirements) in pip
    assert environments.python("torch") == str(clone / ".venv-torch" / "bin" / "python")
    assert "is there: torch 9" in environments.install("torch")
    assert len(calls(clone)) == 2
    assert left(clone) == [".venv-torch"]


def test_it_is_made_by_what_first_needs_it_and_says_what_and_how_long(clone, capsys):
    made = clone / ".venv-torch" / "bin" / "python"
    assert environments.provide("torch") == str(made)
    assert environments.provide("torch") == str(made)
    said = capsys.readouterr().err.splitlines()
    assert f"PyTorch is installed into {clone}/.venv-torch, once: " in said[0]
    assert ENGINES["torch"].environment.takes in said[0]
    assert re.search(rf"{clone}/.venv-torch is made: torch 9; it took \d+ s$", said[-1])
    assert len(calls(clone)) == 2


def test_a_dry_run_says_what_would_be_made_and_makes_nothing(clone, monkeypatch, capsys):
    monkeypatch.setattr(environments, "dry_run", True)
    assert environments.provide("torch") == sys.executable
    assert not (clone / "calls").exists()
    assert f"would be installed into {environments.folder('torch')}" in capsys.readouterr().err


def test_one_that_cannot_be_made_lets_the_others_be(clone, monkeypatch, capsys):
    monkeypatch.setattr(environments, "_is_own", lambda engine: False)
    (clone / "python").write_text("#!/bin/bash\necho tensorflow 9\n")
    (clone / "does").write_text('case "$*" in *torch*) exit 1;; esac')
    monkeypatch.setattr(environments.platform, "python_version", lambda: "3.13.1")
    environments.provide_all({"torch", "tensorflow"})
    assert left(clone) == [".venv-tensorflow"]
    assert "--python 3.11 " in calls(clone)[0], "TensorFlow has no other"
    assert "uv could not install PyTorch" in capsys.readouterr().err
    with pytest.raises(Unavailable, match=r"escala install torch.*ESCALA_TORCH"):
        environments.provide("torch")


def test_an_interpreter_that_the_user_names_is_never_made(clone, monkeypatch):
    monkeypatch.setenv("ESCALA_TORCH", "/nowhere/python")
    with pytest.raises(Unavailable, match="ESCALA_TORCH: /nowhere/python is not a program"):
        environments.provide("torch")
    assert calls(clone) == []


def test_a_broken_one_is_made_anew(clone, capsys):
    (clone / ".venv-torch" / "bin").mkdir(parents=True)
    (clone / ".venv-torch" / "half").touch()
    assert "is made: torch 9" in environments.install("torch")
    assert "made again" in capsys.readouterr().err
    assert not (clone / ".venv-torch" / "half").exists()


@pytest.mark.parametrize(
    ("variables", "options", "said"),
    [
        ({"PIP_FIND_LINKS": "/a /b"}, "--find-links /a --find-links /b", "PIP_FIND_LINKS=/a /b"),
        ({"UV_FIND_LINKS": "/a"}, "", "UV_FIND_LINKS=/a"),
        ({"PIP_INDEX_URL": "https://a"}, "--default-index https://a", "PIP_INDEX_URL=https://a"),
        ({}, "", "uv's index of packages"),
    ],
)
def test_without_the_index_of_pytorch_the_user_says_where_it_is(
    clone, monkeypatch, capsys, variables, options, said
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (clone / "does").write_text(NO_INDEX)
    environments.install("torch")
    assert calls(clone)[-1].endswith(f"torch-requirements.txt {options}".strip())
    assert f"comes from {said}" in capsys.readouterr().err


def test_a_build_of_the_users_choice(clone, monkeypatch):
    monkeypatch.setenv("UV_TORCH_BACKEND", "cu128")
    environments.install("torch", "3.13")
    assert "--python 3.13 " in calls(clone)[0]
    assert calls(clone)[-1].endswith("--torch-backend cu128")


@pytest.mark.parametrize("breaks", ["exit 1", "rm $7"])
def test_what_fails_leaves_nothing(clone, breaks):
    """uv fails, or what it installed cannot be used."""
    (clone / "does").write_text(breaks)
    with pytest.raises(Unavailable):
        environments.install("torch")
    assert left(clone) == []


def test_an_interrupted_one_leaves_nothing(clone):
    (clone / "does").write_text(f"touch {shlex.quote(str(clone))}/begun; sleep 60")
    code = (
        "import sys, pathlib; from escala import cli; "
        "from escala.engines import environments; "
        "environments.ROOT = pathlib.Path(sys.argv[1]); "
        "sys.exit(cli.main(lambda: print(environments.install('torch'))))"
    )
    started = subprocess.Popen([sys.executable, "-c", code, clone], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (clone / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left(clone) == [".venv-torch.partial"]
    started.send_signal(signal.SIGINT)
    assert b"interrupted" in started.communicate(timeout=60)[1]
    assert started.returncode == 128 + signal.SIGINT
    assert left(clone) == []


def test_what_a_killed_one_left_is_removed(clone):
    (clone / ".venv-torch.partial" / "bin").mkdir(parents=True)
    (clone / ".venv-torch.partial" / "half").touch()
    environments.install("torch")
    assert left(clone) == [".venv-torch"] and not (clone / ".venv-torch" / "half").exists()


def test_the_interpreter_that_the_user_names_is_not_replaced(clone, monkeypatch):
    monkeypatch.setenv("ESCALA_TORCH", sys.executable)
    with pytest.raises(InputError, match=r"ESCALA_TORCH.*unset it"):
        environments.install("torch")
    assert calls(clone) == []


def test_without_uv(clone, monkeypatch):
    monkeypatch.delenv("UV")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match="uv is not found"):
        environments.install("torch")
