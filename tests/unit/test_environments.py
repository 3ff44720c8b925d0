"""Environments of engines and rules: what they hold, how they are made, which Python runs ranks."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path

import grimp
import pytest
import yaml

from escala.core import engines, packages
from escala.core.engines import COLLECTIVES, DEFAULT, ENGINES, FOLDER
from escala.core.errors import InputError, Unavailable
from escala.core.variables import for_ranks
from escala.data import KINDS
from escala.engines import engine_name, environments, interpreter, versions
from escala.report import figures
from escala.report.figures import DECLARED
from escala.runtime import mpi
from escala.strategies import STRATEGIES
from escala.workflow import steps
from escala.workloads import WORKLOADS
from scripts import lock_environments
from tests.calls import python
from tests.conftest import ROOT

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

#: To import TensorFlow takes three times as long as the others.
IN_ITS_PYTHON = pytest.mark.parametrize(
    "engine",
    [
        pytest.param(
            name, marks=[getattr(pytest.mark, name), *[pytest.mark.sweep] * (name == DEFAULT)]
        )
        for name in ENGINES
    ],
)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone, a stand-in for uv, and nothing in the environment that says where packages are."""
    for name, content in (("uv", UV), ("python", "#!/bin/bash\necho torch 9\n")):
        (tmp_path / name).write_text(content.replace("{folder}", shlex.quote(str(tmp_path))))
        (tmp_path / name).chmod(0o755)
    for name in ("uv.lock", "calls"):
        (tmp_path / name).touch()
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_")) or name in ("ESCALA_TENSORFLOW", "ESCALA_TORCH"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("UV", str(tmp_path / "uv"))
    (tmp_path / "does").write_text("exit 0")
    return tmp_path


def calls(clone: Path) -> list[str]:
    return (clone / "calls").read_text().splitlines()


def left(clone: Path) -> list[str]:
    return [path.name for path in clone.glob(".venv*")]


@pytest.mark.parametrize("before", [None, ".venv-torch", ".venv-torch.partial"])
def test_it_is_made_once_by_what_first_needs_it_in_the_build_that_fits(
    clone, monkeypatch, capsys, before
):
    """Make a broken environment, or one of a killed call, again."""
    if before:
        (clone / before / "bin").mkdir(parents=True)
        (clone / before / "half").touch()
    with monkeypatch.context() as patch:
        patch.setattr(environments, "dry_run", True)
        assert environments.provide("torch") == sys.executable
        assert f"would be installed into {environments.folder('torch')}" in capsys.readouterr().err
    assert calls(clone) == []
    made = clone / ".venv-torch" / "bin" / "python"
    assert environments.provide("torch") == environments.python("torch") == str(made)
    said = capsys.readouterr().err
    assert f"into {clone}/.venv-torch" in said and ENGINES["torch"].environment.takes in said
    [venv, pip] = calls(clone)
    assert "--relocatable" in venv and f"--python {sys.executable} " in venv
    assert pip.endswith("--torch-backend auto")
    assert str(environments.ROOT / "envs" / ENGINES["torch"].environment.requirements) in pip
    assert environments.provide("torch") == str(made)
    assert "exists: torch 9" in environments.install("torch")
    assert len(calls(clone)) == 2 and left(clone) == [".venv-torch"]
    assert not (clone / ".venv-torch" / "half").exists()


def test_what_the_user_chooses_is_used_and_never_replaced(clone, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("ESCALA_TORCH", "/nowhere/python")
        with pytest.raises(Unavailable, match="ESCALA_TORCH: /nowhere/python is not a program"):
            environments.provide("torch")
        patch.setenv("ESCALA_TORCH", sys.executable)
        with pytest.raises(InputError, match=r"ESCALA_TORCH.*unset it"):
            environments.install("torch")
        patch.delenv("ESCALA_TORCH")
        patch.delenv("UV")
        patch.setenv("PATH", "/nowhere")
        with pytest.raises(Unavailable, match="uv is not found"):
            environments.install("torch")
    assert calls(clone) == []
    monkeypatch.setenv("UV_TORCH_BACKEND", "cu128")
    environments.install("torch", "3.13")
    assert "--python 3.13 " in calls(clone)[0] and calls(clone)[1].endswith("--torch-backend cu128")


def test_one_that_cannot_be_made_lets_the_others_be(clone, monkeypatch, capsys):
    monkeypatch.setattr(environments, "_is_here", lambda engine: False)
    (clone / "python").write_text("#!/bin/bash\necho tensorflow 9\n")
    (clone / "does").write_text('case "$*" in *torch*) exit 1;; esac')
    monkeypatch.setattr(environments.platform, "python_version", lambda: "3.13.1")
    environments.provide_all({"torch", "tensorflow"})
    assert left(clone) == [".venv-tensorflow"]
    assert "--python 3.11 " in calls(clone)[0], "TensorFlow has no other"
    assert "uv could not install PyTorch" in capsys.readouterr().err
    with pytest.raises(Unavailable, match=r"escala install torch.*ESCALA_TORCH"):
        environments.provide("torch")


@pytest.mark.parametrize("breaks", ["exit 1", "rm $7"])
def test_what_fails_leaves_nothing(clone, monkeypatch, capsys, breaks):
    """uv fails, or what it installed cannot be used."""
    (clone / "does").write_text(breaks)
    with pytest.raises(Unavailable):
        environments.install("torch")
    assert left(clone) == []
    # Without the index of PyTorch, the user says where it is.
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    (clone / "does").write_text('case "$*" in *--torch-backend*) exit 1;; esac')
    environments.install("torch")
    assert calls(clone)[-1].endswith("torch-requirements.txt --find-links /a --find-links /b")
    assert "comes from PIP_FIND_LINKS=/a /b" in capsys.readouterr().err


def executable(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(sys.executable)
    return str(path)


def test_each_engine_has_its_interpreter(clone, monkeypatch):
    with pytest.raises(Unavailable, match=r"not installed.*escala install torch"):
        environments.python("torch")
    with monkeypatch.context() as patch:  # By an extra, or in a conda environment of a rule.
        held = {"torch": "2.13", "numpy": "2"}
        patch.setattr(packages, "_version", lambda name: held.get(name, packages.ABSENT))
        patch.setattr(environments.metadata, "requires", lambda name: [])
        environments._is_here.cache_clear()
        assert environments.python("torch") == sys.executable
    environments._is_here.cache_clear()
    made = executable(clone / ".venv-torch" / "bin" / "python")
    assert environments.python("torch") == made
    named = executable(clone / "mine" / "python")
    monkeypatch.setenv("ESCALA_TORCH", named)
    assert environments.python("torch") == named
    monkeypatch.setenv("ESCALA_TORCH", str(clone / "nowhere" / "python"))
    with pytest.raises(Unavailable, match=r"ESCALA_TORCH: .* is not a program"):
        environments.python("torch")
    with pytest.raises(InputError, match=r"ESCALA_TORCH.*is not a program.*unset it"):
        environments.provide_all({"tensorflow", "torch"})


@pytest.mark.parametrize(
    ("prints", "reason"),
    [
        ("", "it is not Python"),
        ('escala {"python": "3", "packages": {}}', "no to"),
        ('escala {"python": "3", "packages": {"torch": "2.8.1+cpu", "numpy": "2"}}',
         r"has PyTorch 2\.8\.1\+cpu, and 2\.9 or a later one is needed"),
    ],
)  # fmt: skip
def test_a_program_that_is_no_python_or_lacks_pytorch_has_a_remedy(
    clone, monkeypatch, prints, reason
):
    (clone / "python").write_text(f"#!/bin/sh\necho '{prints}'\n")
    environments._list_packages.cache_clear()
    monkeypatch.setenv("ESCALA_TORCH", str(clone / "python"))
    with pytest.raises(Unavailable, match=f"{reason}.*Remedy: let ESCALA_TORCH name.*unset"):
        interpreter("torch")
    assert set(versions("torch").values()) == {"not installed"}
    assert interpreter(None) == sys.executable
    for version, allowed in {"2.8.1": False, "2.9.0": True, "2.14.0a0+git01": True}.items():
        (clone / "python").write_text(f"#!/bin/sh\necho torch {version} for processors\n")
        with (
            nullcontext() if allowed else pytest.raises(Unavailable, match=r"2\.8\.1, and 2\.9 or")
        ):
            assert environments.describe("torch", str(clone / "python")).startswith("torch 2")


@IN_ITS_PYTHON
def test_an_engine_describes_the_release_that_its_environment_holds(engine):
    held = versions(engine)
    framework = next(name for name in ENGINES[engine].required[0] if name in held)
    words = environments.describe(engine, environments.python(engine)).split()
    assert words[:2] == [framework.removesuffix("-cpu"), held[framework]]


def test_nothing_of_this_environment_reaches_another_interpreter():
    own = str(Path(sys.executable).parent)
    given = {"PATH": f"{own}:/usr/bin", "PYTHONPATH": "/elsewhere", "PYTHONHOME": "/h", "A": "b"}
    assert environments.variables(sys.executable, given) == given
    found = environments.variables("/torch/bin/python", given)
    assert found == {
        "PATH": os.pathsep.join(["/torch/bin", "/usr/bin"]),
        "PYTHONPATH": str(environments.ROOT),
        "A": "b",
    }


ENVIRONMENTS = sorted((ROOT / "envs").glob("*.yaml"))
#: The versions of each package: TensorFlow needs older ones, and so does an older Python.
LOCK: dict[str, set[str]] = defaultdict(set)
for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
    LOCK[package["name"]].add(package.get("version"))
# Built in the environment after it is there: see envs/train.post-deploy.sh.
COMPILED = {"horovod"}
# Reports list strategies and probes as their registries do, and one script makes the steps of rules
# that train nothing and of those that do; only the latter load what these work with.
LOADED_BY_RANKS = {
    "report": {"nvidia-ml-py"},
    "prepare": {"nvidia-ml-py", "packaging"},
}
OF_ENGINES = {ROOT / "envs" / each.environment.conda for each in ENGINES.values()}
# Modules that a step chooses by name.
CHOSEN = {"escala.report.steps": [f"escala.report.figures.{name}" for name in DECLARED]}


def pip_packages(environment: Path) -> list[str]:
    dependencies = yaml.safe_load(environment.read_text())["dependencies"]
    return [pin for entry in dependencies if isinstance(entry, dict) for pin in entry["pip"]]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda path: path.stem)
def test_python_is_the_projects_and_every_package_has_the_version_of_the_lock(environment):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [python] = re.findall(r">=(3\.\d+)", project["requires-python"])
    assert f"python={python}" in yaml.safe_load(environment.read_text())["dependencies"]
    pins = [pin.partition("==") for pin in pip_packages(environment)]
    assert pins and [pin for pin in pins if pin[2] not in LOCK[pin[0]]] == []


@pytest.mark.skipif(not shutil.which("uv"), reason="uv is not on the PATH")
@pytest.mark.parametrize("engine", ENGINES)
def test_the_environment_of_an_engine_is_locked_from_its_extras(engine):
    own = ENGINES[engine].environment
    locked = lock_environments.lock(engine)
    assert (ROOT / "envs" / own.requirements).read_text() == locked
    held = set(re.findall(r"^([\w.-]+)==", locked, re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    asked = {re.match(r"[\w-]+", each)[0] for name in own.extras for each in extras[name]}
    assert asked | {*own.packages} <= held
    assert not held & {"snakemake", "seaborn", "duckdb"}, "Escala's own are not in it"


def environments_of_rules() -> dict[str, str]:
    """Return the environment that each rule names, or the rule whose other lines it has."""
    named: dict[str, str] = {}
    files = [ROOT / "Snakefile", *sorted((ROOT / "rules").glob("*.smk"))]
    rules = "\n".join(path.read_text() for path in files)
    for rule in re.split(r"^(?:use )?rule (?=\w)", rules, flags=re.MULTILINE)[1:]:
        inherits, name = re.match(r"(?:(\w+) as )?(\w+)", rule).groups()
        own = re.search(r'"(?:\.\./)?envs/([^"]+)"', rule)
        named[name] = own[1] if own else named.get(inherits, "")
    return named


@pytest.mark.sweep
@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda path: path.stem)
def test_an_environment_holds_every_package_its_rules_import(environment):
    graph = grimp.build_graph("escala", include_external_packages=True)
    named = environments_of_rules()
    scripts = {
        module for rule, module in steps.MODULES.items() if named.get(rule) == environment.name
    }
    scripts |= {"escala.workflow.steps"} if scripts else set()
    scripts |= {"escala.commands.measure"} if environment in OF_ENGINES else set()
    assert scripts
    elsewhere = COMPILED | LOADED_BY_RANKS.get(environment.stem, set())
    pinned = {pin.partition("==")[0] for pin in pip_packages(environment)}
    distributions = metadata.packages_distributions()
    for script in scripts:
        modules = (script, *CHOSEN.get(script, ()))
        reached = set().union(*map(graph.find_upstream_modules, modules))
        packages = {name.partition(".")[0] for name in reached} & distributions.keys()
        needed = {name.lower() for package in packages for name in distributions[package]}
        needed -= {"escala"}
        lacking = {name for name in needed if name.replace("_", "-") not in pinned} - elsewhere
        assert not lacking, f"{script} imports {lacking}"


#: Import modules, and print the distributions of all that this loads from outside the project.
LOADED = """
import importlib, json, sys
from importlib.metadata import packages_distributions

for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
held = packages_distributions()
tops = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(json.dumps(sorted({each for top in tops for each in held.get(top, [])})))
"""
#: Print the rows of each rank and step.
ROWS = """
from escala.training.shards import Shards

shards = Shards(7, 161, 32, [0.7, 0.3], True)
for epoch in (0, 5):
    for step in shards.epoch_batches(epoch):
        print([list(map(int, rows)) for rows in step])
"""


def printed(interpreter: str, code: str, *arguments: str) -> str:
    own = mpi.project_mpi() | {"PYTHONPATH": str(environments.ROOT)}
    done = subprocess.run(
        [interpreter, "-P", "-c", code, *arguments],
        env=environments.variables(interpreter, for_ranks()) | own,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def made(engine: str) -> str:
    """Return the Python of an engine's own environment, also where that of the tests holds it."""
    python = environments.folder(engine) / "bin" / "python"
    return str(python) if python.exists() else environments.python(engine)


def canonical(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def modules_of_ranks(engine: str) -> list[str]:
    """Return the modules that a rank of an engine may begin with or pick by a name."""
    ours = [name for name in STRATEGIES if engine_name(name) == engine]
    recorders = (FOLDER / engine).glob("record_*.py")
    model = ENGINES[engine].module
    return [
        *(f"escala.training.{name}" for name in ("rank", "train")),
        "escala.check.network",
        f"escala.engines.{engine}.functions",
        *(f"escala.engines.{engine}.{path.stem}" for path in recorders),
        f"escala.engines.{engine}.engine",
        *(f"escala.engines.{STRATEGIES[name].engine.rpartition('.')[0]}" for name in ours),
        "escala.data.base",
        *(
            f"{each.package}.{model}"
            for each in WORKLOADS.values()
            if each.takes_steps and (each.folder / f"{model}.py").is_file()
        ),
    ]


@IN_ITS_PYTHON
def test_ranks_import_what_the_environment_holds_and_nothing_else(engine):
    pinned = (environments.ROOT / "envs" / ENGINES[engine].environment.requirements).read_text()
    held = {canonical(name) for name in re.findall(r"^([\w.-]+)==", pinned, re.MULTILINE)}
    modules = json.dumps(modules_of_ranks(engine))
    loaded = set(map(canonical, json.loads(printed(made(engine), LOADED, modules))))
    # PyTorch does without tqdm, requests without PySocks, and Keras without pandas, SciPy and
    # Pillow: they are imported where they are. setuptools holds some of its own.
    others = ("nvidia-", "cuda-", "triton", "tqdm", "pandas", "python-dateutil", "pytz", "scipy")
    others += ("pillow", "pysocks", "jaraco-", "backports-tarfile", "more-itertools")
    brought = {name for name in loaded if name.startswith(others)}
    assert loaded - brought <= held
    assert {"numpy", "psutil", "pyyaml"} <= loaded


@IN_ITS_PYTHON
def test_its_numpy_draws_the_same_rows(engine):
    rows = printed(made(engine), ROWS)
    assert rows == printed(sys.executable, ROWS) and len(rows) > 300


def test_engines_name_strategies_environments_and_libraries_that_are_there():
    assert list(ENGINES) == sorted(ENGINES, key=lambda name: ENGINES[name].position)
    for name, engine in ENGINES.items():
        alone = STRATEGIES[engine.one_process]
        assert alone.engine.partition(".")[0] == name and alone.layouts.one_rank
        assert engine.distributions
        for file in (engine.environment.requirements, engine.environment.conda):
            assert (ROOT / "envs" / file).is_file()
    used = {each.library for each in STRATEGIES.values()} - {None}
    assert used == set(COLLECTIVES)
    for strategy in STRATEGIES.values():
        if strategy.library:
            assert strategy.library in ENGINES[strategy.engine.partition(".")[0]].collectives


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text + "colour: red\n", "colour"),
        (lambda text: text.replace("title: PyTorch\n", ""), "title"),
        (lambda text: text.replace("  oldest: [2, 9]\n", ""), "oldest"),
        (lambda text: text, "there is no engine.py alongside it"),
    ],
)
def test_a_declaration_with_a_wrong_key_names_its_file_and_the_key(tmp_path, change, said):
    file = tmp_path / "engine.yaml"
    file.write_text(change(Path(engines.FOLDER, "torch", "engine.yaml").read_text()))
    with pytest.raises(InputError, match=rf"engine\.yaml.*{said}"):
        engines._read(file)


def test_every_figure_declares_what_there_is_and_is_found_without_libraries():
    for figure in figures.DECLARED.values():
        assert figure.category in figures.CATEGORIES
        assert figure.needs is None or figure.needs in figures.OCCASIONS
        assert figure.kind is None or (figure.kind in KINDS and figure.file)
        assert figure.caption.endswith(".")
    names = {path.stem for path in (ROOT / "escala" / "report" / "figures").glob("[!_]*.py")}
    drawing = {name for name in names if hasattr(figures.figure(name), "draw")}
    assert set(figures.DECLARED) == drawing
    done = python("-c", "import sys, escala.report.figures; print('matplotlib' in sys.modules)")
    assert done.stdout == "False\n", done.stderr
