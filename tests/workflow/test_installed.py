"""The installation by a wheel, in another folder, without any framework, and other ways to it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from email import message_from_string
from importlib import metadata
from pathlib import Path

import jinja2
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from escala.check.machine import CHECKS
from escala.command import parse
from escala.core import console
from escala.core.engines import ENGINES
from escala.core.errors import WIDTH
from escala.core.hardware import available_cores
from escala.engines import environments
from tests.conftest import ROOT

PROGRAM = """
from escala_steps import epoch, steps
import alongside
for _ in range(3):
    for _ in steps([range(8)] * 4):
        sum(range(100_000))
    epoch(loss=0.5)
"""
#: Modules that would replace some of the project's, if they were looked for in the folder.
IN_THE_WAY = ("escala.py", "scripts/__init__.py", "scripts/measure.py", "statistics.py", "yaml.py")
EXPERIMENT = """
experiment: mine
title: A program and a network
repeats: 1
oversubscribe: true
datasets:
  none: {kind: files}
  rows: {kind: tabular, source: {type: csv, path: rows.csv}, split: {seeds: [1]}}
workloads:
  program:
    command: python train.py
    directory: code
    epochs: 3
    batch: {rows: 8, per: global}
  mlp:
    layers: [4]
    epochs: 1
    learning_rate: {value: 0.1, reference_batch: 8, rule: constant}
variants: {plain: {cores_per_process: 1}}
configurations:
  - {strategy: processes, layouts: [1x1]}
  - {strategy: single, layouts: [1x1]}
  - {strategy: torch-single, layouts: [1x1]}
"""
RUN = "results/mine/runs/{}/1x1/plain/native/rep1/run.json"
#: The runs of networks, by their engines.
NETWORKS = {"tensorflow": "rows/mlp/single", "torch": "rows/mlp/torch-single"}


@pytest.fixture(scope="module")
def uv() -> str:
    found = shutil.which("uv", path=f"{os.environ['PATH']}:{ROOT / '.uv' / 'bin'}")
    if found is None:
        pytest.skip("uv is not on the PATH")
    return found


@pytest.fixture(scope="module")
def wheel(uv, tmp_path_factory) -> Path:
    """Return the wheel of the project."""
    folder = tmp_path_factory.mktemp("wheel")
    for options in (["--offline"], []):
        call = [uv, "build", "--wheel", *options, "--out-dir", folder, ROOT]
        done = subprocess.run(call, capture_output=True, text=True, timeout=120)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    [file] = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(uv, wheel, tmp_path_factory) -> Path:
    """Return an environment that holds the wheel and the packages that it requires, and no other.

    The packages are links to those of this environment, so that nothing is installed.
    """
    folder = tmp_path_factory.mktemp("tool")
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name in _distributions(uv, "--no-dev"):
        for file in metadata.distribution(name).files or ():
            top, linked = file.parts[0], site / file.parts[0]
            if top not in ("..", "__pycache__") and not linked.is_symlink():
                linked.symlink_to(metadata.distribution(name).locate_file(top))
    for name, module in (("escala", "escala.command"), ("snakemake", "snakemake.cli")):
        program = folder / "bin" / name
        program.write_text(
            f"#!{folder}/bin/python\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
        )
        program.chmod(0o755)
    return folder


def _distributions(uv: str, *options: str) -> set[str]:
    """Return the names of the distributions that uv installs for the project."""
    call = [uv, "export", "--frozen", "--offline", "--no-hashes", "--no-header", *options]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("UV_")}
    done = subprocess.run(call, cwd=ROOT, env=kept, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^([\w-]+)==", done.stdout, re.MULTILINE))


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a folder of a user with a script, and with files in the way of others of the name."""
    mine = tmp_path / "mine"
    (mine / "code").mkdir(parents=True)
    (mine / "code" / "train.py").write_text(PROGRAM)
    (mine / "code" / "alongside.py").touch()
    for name in IN_THE_WAY:
        (mine / name).parent.mkdir(exist_ok=True)
        (mine / name).write_text("raise SystemExit('this is the module of the user')")
    (mine / "config.yaml").write_text("learning_rate: 0.1\n")
    rows = "".join(f"{number * 7 % 41},{number % 2}\n" for number in range(40))
    (mine / "rows.csv").write_text(f"value,label\n{rows}")
    (mine / "mine.yaml").write_text(EXPERIMENT)
    return mine


def _called(
    installed: Path, folder: Path, *arguments: str, first: str = "", **variables: str
) -> subprocess.CompletedProcess:
    """Call the installed command as a user whose `python` is not that of the installation.

    Parameters
    ----------
    first : what stands first on PATH, with a colon.
    """
    own = folder.parent / "bin"
    own.mkdir(exist_ok=True)
    (own / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (own / "python").chmod(0o755)
    left_out = ("PYTHON", "VIRTUAL", "ESCALA_", "UV")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    # Other tests are no disturbance to wait for.
    kept |= {name: os.environ[name] for name in ("ESCALA_LOCKS", "ESCALA_MEASURE_DISTURBED")}
    return subprocess.run(
        [installed / "bin" / "escala", *arguments],
        cwd=folder,
        env=kept | {"PATH": f"{first}{own}:/usr/bin:/bin", "HOME": str(folder.parent)} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_wheel_holds_each_file_that_git_tracks_in_the_folders_of_the_workflow(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    call = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]
    folders = ("envs", "escala", "experiments", "profiles", "report", "rules", "schemas", "scripts")
    listed = subprocess.run(
        [*call, "Snakefile", "config.yaml", *folders], cwd=ROOT, capture_output=True, check=True
    )
    expected = {name for name in os.fsdecode(listed.stdout).split("\0") if (ROOT / name).is_file()}
    assert {f"escala_project/{name}" for name in expected} <= names
    assert not [name for name in names if "__pycache__" in name]
    assert not [name for name in names if not name.startswith("escala")]


def test_it_runs_in_a_folder_of_the_user_without_any_framework(installed, folder):
    """A program is measured."""
    said = _called(installed, folder, "--help")
    assert said.returncode == 0 and said.stdout.startswith("usage: escala"), said.stderr

    file = RUN.format("none/program/processes")
    done = _called(installed, folder, "run", file, "-e", "mine.yaml", "-c", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    run = json.loads((folder / file).read_text())
    assert run["status"] == "ok" and len(run["epochs"]) == 2
    assert list(run["program"]["files"]) == ["alongside.py", "train.py"]
    assert (folder / ".escala" / "store").is_dir() and (folder / ".snakemake").is_dir()

    answers = {}
    for line in _called(installed, folder, "check").stdout.splitlines():
        if (name := line[:WIDTH].strip()) in {each.name for each in CHECKS}:
            answers[name] = line[WIDTH:].split()[0]
            assert answers[name] == "yes" or "Remedy: " in line
        if line.startswith("TensorFlow"):
            assert "not installed yet. Remedy: the first experiment that needs it" in line
    assert answers.keys() == {each.name for each in CHECKS}
    assert set(answers.values()) == {"yes", "no"}
    assert answers["TensorFlow"] == "no"


@pytest.mark.parametrize("caller", ["uvx", "uv run", "an activated environment"])
def test_uvx_leaves_the_python_of_the_caller_first(installed, folder, caller):
    """It puts the environment of the command first on PATH. The two others name it as active."""
    variables = {"uvx": {"UV": "uv"}, "uv run": {"UV": "uv", "VIRTUAL_ENV": str(installed)}}
    variables = variables.get(caller, {"VIRTUAL_ENV": str(installed)})
    words = ["compare", "--dry", "--", "python", "train.py", "---", "python", "train.py", "2"]
    first = f"{installed}/bin:"
    done = _called(installed, folder / "code", *words, first=first, **variables)
    assert done.returncode == 0, done.stderr
    is_own = "python is Escala's own here" in done.stderr
    assert is_own == (f"{installed}/bin/python train.py" in done.stdout) == (caller != "uvx")


@pytest.mark.sweep
def test_a_network_is_unavailable_without_uv(installed, folder):
    """Its environment cannot be made. `tests/unit/test_environments.py` has other reasons."""
    files = {engine: RUN.format(path) for engine, path in NETWORKS.items()}
    done = _called(installed, folder, "run", *files.values(), "-e", "mine.yaml", "-c", "1")
    assert "uv is not found. Remedy: " in done.stderr
    for engine, file in files.items():
        run = json.loads((folder / file).read_text())
        assert run["status"] == "unavailable", run["reason"]
        assert f"{ENGINES[engine].title} is not installed" in run["reason"]
        assert f"Remedy: escala install {engine}" in run["reason"]
    assert done.returncode != 0 and ": escala retry results/mine;" in done.stderr


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("tensorflow", marks=[pytest.mark.tensorflow, pytest.mark.sweep]),
        pytest.param("torch", marks=[pytest.mark.torch, pytest.mark.sweep]),
    ],
)
def test_a_network_trains_in_its_environment(installed, folder, engine):
    """It is alongside the store, where it is made."""
    made = environments.folder(engine)
    own = made if made.exists() else Path(environments.python(engine)).parents[1]
    (folder / ".escala").mkdir()
    (folder / ".escala" / ENGINES[engine].environment.folder).symlink_to(own)
    file = RUN.format(NETWORKS[engine])
    _called(installed, folder, "run", file, "-e", "mine.yaml", "-c", "1")
    result = json.loads((folder / file).read_text())
    assert result["status"] == "ok", result["reason"]
    assert ENGINES[engine].distributions[0] in result["versions"]
    assert ("horovod" in result["versions"]) == (engine == "tensorflow")


DDP = """
import sys, time
import torch
import torch.distributed as dist
from escala_steps import epoch, steps
dist.init_process_group("gloo")
ranks, batch = dist.get_world_size(), int(sys.argv[1])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
rows = torch.ones(64 // ranks, 8)
for _ in range(3):
    for each in steps([rows[i : i + batch] for i in range(0, len(rows), batch)], rows=len):
        model(each).sum().backward()
        time.sleep(0.01 * len(each))
    epoch()
"""


@pytest.mark.torch
@pytest.mark.sweep
@pytest.mark.all_cores
def test_a_script_of_pytorch_is_tried_without_tensorflow(installed, folder):
    """Its PyTorch is in an environment of the user's, which holds nothing of Escala."""
    mine = folder / "code"  # Without the modules in the way.
    (mine / "ddp.py").write_text(DDP)
    own = environments.python("torch")
    options = ["--torch", "--python", own, "--processes", "2", "--repeats", "1"]
    done = _called(installed, mine, "try", *options, "--", "python", "ddp.py", "{rows_of_rank}")
    if len(available_cores()) < 2:
        assert done.returncode == 2 and "can be compared with nothing" in done.stderr
        return
    assert done.returncode == 0, done.stdout + done.stderr
    files = list((mine / "results" / "ddp" / "runs").rglob("rep*/run.json"))
    assert len(files) == 3
    assert {json.loads(path.read_text())["status"] for path in files} == {"ok"}
    assert (mine / "results" / "ddp" / "index.html").is_file()


def test_uv_installs_a_framework_only_by_its_extra(uv):
    base, frameworks = _distributions(uv), {"tensorflow-cpu", "keras", "horovod", "torch", "jax"}
    assert {"snakemake", "numpy", "openmpi", "biopython", "pytest"} <= base
    assert not frameworks & base
    both = _distributions(uv, "--extra", "tensorflow", "--extra", "horovod")
    assert both & frameworks == frameworks - {"torch", "jax"}


@pytest.mark.sweep
@pytest.mark.all_cores
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_a_script_without_a_framework_is_tried_under_each_python(
    uv, wheel, folder, tmp_path, version
):
    """The base installs from wheels in seconds. It prints how many."""
    found = subprocess.run([uv, "python", "find", version], capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"no Python {version}; uv python install {version}")
    own = tmp_path / "own"
    for call in (["venv", "--python", found.stdout.strip(), own], ["pip", "install", wheel]):
        begun = time.monotonic()
        environment = os.environ | {"VIRTUAL_ENV": str(own)}
        subprocess.run([uv, "--no-config", *call], check=True, env=environment, cwd=tmp_path)
    print(f"Python {version}: {time.monotonic() - begun:.0f} s")
    options = ["--processes", "2", "--repeats", "1"]
    done = _called(own, folder / "code", "try", *options, "--", "python", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    files = list((folder / "code" / "results" / "train" / "runs").rglob("rep*/run.json"))
    assert files and {json.loads(path.read_text())["status"] for path in files} == {"ok"}


def test_the_recipe_for_conda_asks_for_what_the_wheel_asks_for(wheel):
    text = (ROOT / "envs" / "bioconda" / "meta.yaml").read_text()
    recipe = yaml.safe_load(jinja2.Template(text).render(PYTHON="python", environ={}))
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        described = message_from_string(archive.read(name).decode())
    assert recipe["package"] == {"name": described["Name"], "version": described["Version"]}
    conda_names = {"duckdb": "python-duckdb", "snakemake": "snakemake-minimal"}
    required = {"python": SpecifierSet(described["Requires-Python"])}
    for each in map(Requirement, described.get_all("Requires-Dist")):
        if not each.marker:
            required[conda_names.get(each.name, each.name)] = each.specifier
    asked = dict(each.split() for each in recipe["requirements"]["run"])
    assert {
        name: SpecifierSet(each if each[0] in "<>=" else f"=={each}")
        for name, each in asked.items()
    } == required
    [command] = recipe["build"]["entry_points"]
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/entry_points.txt")]
        assert command in archive.read(name).decode()


def test_calls_and_exit_codes_for_assistants_are_those_of_the_command():
    _, front, text = (ROOT / "docs" / "SKILL.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front).keys() == {"name", "description"}
    calls = re.findall(r"`(escala [^`]+)`", text)
    for call in calls:
        parse(shlex.split(call)[1:])
    assert len(calls) > 8
    codes = re.findall(r"^\| (\d+) \|", text, re.MULTILINE)
    assert codes == sorted((code for code in console.MEANINGS if code.isdigit()), key=int)


@pytest.mark.sweep
def test_a_container_runs_what_a_clone_runs(tmp_path):
    """It is built from the commit that is checked out. Podman and Docker have the same options."""
    builder = shutil.which("podman") or shutil.which("docker")
    base = re.search("^FROM (.+)$", (ROOT / "envs" / "Containerfile").read_text(), re.MULTILINE)
    if not builder or subprocess.run([builder, "pull", base[1]], capture_output=True).returncode:
        pytest.skip(f"needs podman or docker, and {base[1]}")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    build = ["build", "--tag", "escala-test", "--file", "envs/Containerfile", "."]
    subprocess.run([builder, *build], cwd=clone, check=True, timeout=1500)
    call = ["run", "--rm", "escala-test", "run", "-e", "experiments/scaling/study-cores.yaml", "-n"]
    done = subprocess.run([builder, *call], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
