"""What is mended, said or refused before Snakemake starts."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from escala.core import environment
from escala.core.errors import InputError
from escala.data.paths import expanded_path
from tests.conftest import ROOT


@pytest.fixture
def prepared(tmp_path, monkeypatch, capsys):
    """Return a function that prepares an environment, and returns it with what was said."""

    def prepare(root: Path = tmp_path, **variables: str | None) -> tuple[dict[str, str], str]:
        for name in ("HOME", "USER", "LOGNAME", "PYTHONPATH"):
            monkeypatch.delenv(name, raising=False)
        for name, value in ({"HOME": str(tmp_path)} | variables).items():
            monkeypatch.setenv(name, value) if value is not None else None
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(os, "environ", dict(os.environ))
        monkeypatch.chdir(tmp_path)
        environment.prepare(root)
        return os.environ, capsys.readouterr().err

    return prepare


def test_modules_that_would_replace_those_of_the_environment_are_left_out(prepared, tmp_path):
    for name in ("foreign/numpy/__init__.py", "stdlib/random.py", "fast/yaml.cpython-311.so"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my_model.py").touch()
    folders = [tmp_path / name for name in ("foreign", "mine", "stdlib", "fast", "missing")]
    found, said = prepared(PYTHONPATH=":".join(["", *map(str, folders)]))
    kept = found["PYTHONPATH"].split(":")
    assert kept == [str(tmp_path), str(tmp_path / "mine"), str(tmp_path / "missing")]
    assert f"PYTHONPATH: {tmp_path / 'foreign'} is left out, because its numpy would" in said
    assert said.count("left out") == 3


@pytest.mark.parametrize("home", [None, "", "/nonexistent/home", "/proc/sys"])
def test_a_home_that_cannot_be_written_to_is_replaced(prepared, tmp_path, home):
    found, said = prepared(HOME=home)
    assert Path(found["HOME"]) == tmp_path / ".escala" / "home"
    assert Path(found["HOME"]).is_dir() and "is used instead" in said
    assert prepared()[0]["HOME"] == str(tmp_path)


def test_a_user_without_an_entry_has_a_name(prepared, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    assert prepared()[0]["USER"] == "user4000000"
    assert prepared(USER="somebody")[0]["USER"] == "somebody"


@pytest.mark.parametrize("name", ["{x}", "x{", "a:b", "a\nb"])
def test_a_project_whose_path_snakemake_misreads_is_refused(prepared, tmp_path, name):
    with pytest.raises(InputError, match=r"project folder: .*Remedy: rename"):
        prepared(tmp_path / name)


def test_a_folder_of_data_with_braces_is_refused_and_so_is_one_of_an_unknown_home(monkeypatch):
    with pytest.raises(InputError, match=r"source\.folder: .*holds '\{' and '\}'"):
        expanded_path("/data/{x}", "source.folder")
    with pytest.raises(InputError, match="home of the user is not known"):
        expanded_path("~nobody-of-that-name/data", "source.folder")
    assert expanded_path("/a b/c%d'e", "source.folder") == "/a b/c%d'e"


def test_what_somebody_else_left_is_named(tmp_path, monkeypatch):
    environment.require_work_folder(tmp_path)
    (tmp_path / ".snakemake" / "locks").mkdir(parents=True)
    environment.require_work_folder(tmp_path)
    root = os.geteuid() == 0
    owner = "the user 4242" if root else pwd.getpwuid(os.getuid()).pw_name
    os.chown(tmp_path / ".snakemake" / "locks", *([4242] * 2 if root else [-1, -1]))
    # Root may write everywhere, so that a mode would not do.
    monkeypatch.setattr(os, "access", lambda path, _: path.name != "locks")
    with pytest.raises(InputError, match=rf"locks': belongs to {owner}, and cannot be written to"):
        environment.require_work_folder(tmp_path)


def test_the_command_works_where_the_module_system_and_the_account_do_not(tmp_path):
    """As a user without an entry, a name or a home, with another NumPy on PYTHONPATH."""
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("raise ImportError('a foreign NumPy')")
    kept = {k: v for k, v in os.environ.items() if k not in ("USER", "LOGNAME", "HOME")}
    experiment = ["--experiment", "config.yaml"]
    call = [sys.executable, "-m", "escala.command", "run", "prepare", *experiment, "-n", "--", "-q"]
    as_nobody = ["unshare", "--user", "--map-user=54321"]
    if subprocess.run([*as_nobody, "true"], capture_output=True).returncode:
        pytest.skip("no user namespace can be made")
    done = subprocess.run(
        [*as_nobody, *call],
        cwd=ROOT,
        env=kept | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "its numpy would replace" in done.stderr and "is used instead" in done.stderr
