"""What is mended, said or refused before Snakemake starts."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

import pytest

from escala.core import environment, variables
from escala.core.errors import InputError
from escala.data.paths import expand_path, require_past


@pytest.fixture
def prepared(tmp_path, monkeypatch, capsys):
    """Return a function that prepares an environment, and returns it with what was said."""

    def prepare(root: Path = tmp_path, **variables: str | None) -> tuple[dict[str, str], str]:
        for name in ("HOME", "USER", "LOGNAME", "PYTHONPATH", "XDG_CACHE_HOME", "PYTHONOPTIMIZE"):
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


def test_a_user_has_a_name_and_a_project_a_path_that_snakemake_reads(
    prepared, monkeypatch, tmp_path
):
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    found, said = prepared(PYTHONOPTIMIZE="2", PYTHONINSPECT="1")
    assert found["USER"] == "user4000000" and prepared(USER="somebody")[0]["USER"] == "somebody"
    for name in ("PYTHONOPTIMIZE", "PYTHONINSPECT"):
        assert name not in found and f"{name}: is not passed on" in said
    for name in ("{x}", "x{", "a:b", "a\nb"):
        with pytest.raises(InputError, match=r"project folder: .*Remedy: rename"):
            prepared(tmp_path / name)


def test_a_cache_that_cannot_be_made_is_replaced(prepared, tmp_path):
    (tmp_path / "file").touch()
    for cache in (str(tmp_path / "file"), "relative"):
        found, said = prepared(XDG_CACHE_HOME=cache)
        assert found["XDG_CACHE_HOME"] == str(tmp_path / ".escala" / "cache")
        assert "XDG_CACHE_HOME: " in said and "is used instead" in said
    for cache in (str(tmp_path), str(tmp_path / "new" / "cache")):
        found, said = prepared(XDG_CACHE_HOME=cache)
        assert (found["XDG_CACHE_HOME"], said) == (cache, "")
    # What an earlier call by root left in the user's home.
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "snakemake").touch()
    assert prepared()[0]["XDG_CACHE_HOME"] == str(tmp_path / ".escala" / "cache")


@pytest.mark.parametrize("name", ["results", ".snakemake", ".escala"])
def test_a_file_or_a_dead_link_in_the_place_of_a_folder_is_named(tmp_path, name):
    path = tmp_path / name
    path.touch()
    with pytest.raises(InputError, match=rf"{name}': is a file, .*Remedy: rename {name}\."):
        environment.require_work_folder(tmp_path)
    path.unlink()
    path.symlink_to(tmp_path / "purged")
    with pytest.raises(InputError, match=r"is a link to .*purged, which is not there"):
        environment.require_work_folder(tmp_path)
    (tmp_path / "purged").mkdir()
    environment.require_work_folder(tmp_path)


@pytest.mark.parametrize("theirs", [".snakemake/locks", "results", ".escala"])
def test_what_somebody_else_left_is_named(theirs, tmp_path, monkeypatch):
    environment.require_work_folder(tmp_path)
    (tmp_path / theirs).mkdir(parents=True)
    environment.require_work_folder(tmp_path)
    root = os.geteuid() == 0
    owner = "the user 4242" if root else pwd.getpwuid(os.getuid()).pw_name
    os.chown(tmp_path / theirs, *([4242] * 2 if root else [-1, -1]))
    # Root may write everywhere, so that a mode would not do.
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path / theirs)
    with pytest.raises(InputError, match=rf"{theirs}': belongs to {owner}, and cannot be written"):
        environment.require_work_folder(tmp_path)


def test_a_folder_of_data_with_braces_is_refused_and_so_is_one_of_an_unknown_home(monkeypatch):
    with pytest.raises(InputError, match=r"source\.folder: .*holds '\{' and '\}'"):
        expand_path("/data/{x}", "source.folder")
    with pytest.raises(InputError, match="home of the user is not known"):
        expand_path("~nobody-of-that-name/data", "source.folder")
    assert expand_path("/a b/c%d'e", "source.folder") == "/a b/c%d'e"


@pytest.mark.parametrize("count", [1, 2, 7])
def test_one_command_dates_all_files_of_the_future(count, tmp_path):
    """The date of the target of a link counts, too."""
    files = [tmp_path / f"a {number}" for number in range(count)]
    for file in files:
        file.touch()
        os.utime(file, (time.time() + 172800,) * 2)
    (tmp_path / "link").symlink_to(files[0])
    for given in (files, [tmp_path / "link", *files[1:]]):
        with pytest.raises(InputError, match=r"datasets.d: .*in the future") as caught:
            require_past("datasets.d", given)
    assert count == 1 or f"as {count - 1} more are" in caught.value.reason
    command = caught.value.remedy.removeprefix("date it now: ").partition(";")[0]
    subprocess.run(command, shell=True, check=True)
    require_past("datasets.d", [*files, str(tmp_path / "link"), tmp_path / "missing"])


def test_a_program_gets_the_environment_of_the_shell_of_the_call():
    shell = {"PATH": "/bin", "PYTHONPATH": "/mine", "HOME": "/h", "VIRTUAL_ENV": "/mine/env"}
    prepared = shell | {
        "PATH": "/escala/bin", "ESCALA_PATH": "/bin",
        "PYTHONPATH": "/escala", "ESCALA_PYTHONPATH": "/mine", "PYTHONSAFEPATH": "1",
    }  # fmt: skip
    assert variables.restore_shell(prepared) == variables.restore_shell(shell) == shell
    assert variables.restore_shell({"VIRTUAL_ENV": sys.prefix, "PYTHONPATH": ""}) == {}


def test_a_program_gets_no_settings_of_the_mpi_that_escala_runs_under():
    mine = {"OMPI_MCA_btl": "tcp", "PRTE_MCA_x": "1"}
    assert variables.for_programs(mine) == mine
    assert variables.for_programs(mine | {"OMPI_COMM_WORLD_SIZE": "2", "A": "1"}) == {"A": "1"}
    withheld = {"PYTHONHOME": "/p", "MY_TOKEN": "t", "OMP_NUM_THREADS": "2"}
    assert variables.for_programs(withheld | {"A": "1"}) == {"A": "1"}
