"""Environments for clusters hold what the lock holds, and rules name environments that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from functools import cache
from importlib import metadata
from pathlib import Path

import grimp
import pytest
import yaml

from escala.core.engines import ENGINES
from escala.report.figures import DECLARED
from escala.workflow import steps
from scripts import lock_environments

ROOT = Path(__file__).resolve().parent.parent.parent
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


def test_there_are_environments():
    assert {path.stem for path in ENVIRONMENTS} >= {"prepare", "train", "report"}


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda path: path.stem)
def test_every_package_has_the_version_of_the_lock(environment):
    pins = pip_packages(environment)
    assert pins
    for pin in pins:
        name, equal, version = pin.partition("==")
        assert equal, f"{pin} is not pinned"
        assert version in LOCK[name], pin


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda path: path.stem)
def test_python_is_the_projects(environment):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [python] = re.findall(r">=(3\.\d+)", project["requires-python"])
    assert f"python={python}" in yaml.safe_load(environment.read_text())["dependencies"]


@pytest.mark.parametrize("script", sorted((ROOT / "envs").glob("*.sh")), ids=lambda p: p.name)
def test_what_is_built_afterwards_has_the_version_of_the_lock(script):
    pins = re.findall(r"([a-z0-9-]+)==([0-9.]+)", script.read_text())
    assert pins
    for name, version in pins:
        assert version in LOCK[name]
    # Snakemake runs the script of the environment with the same name.
    assert script.with_name(script.name.replace(".post-deploy.sh", ".yaml")) in ENVIRONMENTS


@pytest.mark.skipif(not shutil.which("uv"), reason="uv is not on the PATH")
@pytest.mark.parametrize("engine", ENGINES)
def test_the_environment_of_an_engine_is_locked_from_its_extras(engine):
    own = ENGINES[engine].environment
    locked = lock_environments.locked(engine)
    assert (ROOT / "envs" / own.requirements).read_text() == locked
    held = set(re.findall(r"^([\w.-]+)==", locked, re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    asked = {re.match(r"[\w-]+", each)[0] for name in own.extras for each in extras[name]}
    assert asked | {*own.packages} <= held
    assert not held & {"snakemake", "seaborn", "duckdb"}, "Escala's own are not in it"


def test_rules_name_environments_that_exist_and_all_are_named():
    named = set()
    for rules in (ROOT / "rules").glob("*.smk"):
        for path in re.findall(r'"(\.\./envs/[^"]+)"', rules.read_text()):
            named.add((rules.parent / path).resolve())
            assert (rules.parent / path).is_file(), f"{rules.name}: {path}"
    assert named | OF_ENGINES == set(ENVIRONMENTS)


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


@cache
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("escala", include_external_packages=True)


@pytest.mark.sweep
@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda path: path.stem)
def test_an_environment_holds_every_package_its_rules_import(environment):
    graph = imports()
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


def test_figures_load_nothing_of_ranks():
    program = "import sys, escala.report.figures.common; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0
