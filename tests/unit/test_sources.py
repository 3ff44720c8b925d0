"""A step's digest changes with the code it reaches, and with nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from escala.cache import sources as module
from escala.cache.sources import code_digest, package_versions, sources
from escala.engines.interpreters import SEPARATE
from tests.calls import python

PROJECT = {
    "scripts/encode.py": "from escala.core import files\nfrom escala.prepare import fasta\n",
    "scripts/train.py": "import escala.record.run\n",
    "scripts/figure.py": "from escala.report.figures import figure\n",
    "escala/__init__.py": "",
    "escala/core/files.py": "def read(path):\n    '''Read it.'''\n    return open(path).read()\n",
    "escala/prepare/__init__.py": "CODES = 'ACGT'\n",
    "escala/prepare/fasta.py": "from . import letters\nimport numpy as np\n",
    "escala/prepare/letters.py": "def first():\n    from ..files import read\n    return read\n",
    "escala/record/__init__.py": "",
    "escala/record/run.py": (
        "from pathlib import Path\n"
        "COMMAND = ['python', '-m', 'escala.record.rank']\n"
        "SCHEMA = Path(__file__).parents[2] / 'schemas' / 'run.schema.yaml'\n"
    ),
    "escala/record/rank.py": "from escala.workloads import workload\nimport yaml.nodes\n",
    "escala/workloads/__init__.py": (
        "WORKLOADS = {'cnn': 'escala.workloads.cnn', 'svm': 'escala.workloads.svm'}\n"
        "def workload(name):\n    return __import__(WORKLOADS[name])\n"
    ),
    "escala/workloads/cnn.py": "import escala.record.run\n",
    "escala/workloads/svm.py": "import sklearn\n",
    "escala/report/figures/__init__.py": (
        "def figure(name):\n    return __import__(f'escala.report.figures.{name}')\n"
    ),
    "escala/report/figures/speedup.py": "SCALE = 1\n",
    "escala/report/figures/splits.py": "SCALE = 2\n",
    "schemas/run.schema.yaml": (
        "properties:\n"
        "  description: {type: string}\n"
        "  rows: {type: integer, description: how many}\n"
    ),
    "schemas/tables/runs.schema.yaml": "properties: {}\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in PROJECT.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


RUN_SCHEMA = PROJECT["schemas/run.schema.yaml"]
STEPS = {
    "encode": ("scripts.encode", ()),
    "train cnn": ("scripts.train", ("escala.workloads.cnn",)),
    "train svm": ("scripts.train", ("escala.workloads.svm",)),
    "train any": ("scripts.train", ()),
    "figure speedup": ("scripts.figure", ("escala.report.figures.speedup",)),
    "figure any": ("scripts.figure", ()),
}
TRAIN = {"train cnn", "train svm", "train any"}


def digests(root: Path) -> dict[str, str]:
    return {
        step: code_digest(name, selected=selected, root=root)
        for step, (name, selected) in STEPS.items()
    }


def changed_steps(project: Path, file: str, text: str) -> set[str]:
    """Return the steps whose digest changes with the text of a file."""
    before = digests(project)
    (project / file).write_text(text)
    after = digests(project)
    return {step for step in STEPS if before[step] != after[step]}


@pytest.mark.parametrize(
    ("changed", "steps"),
    [
        ("escala/core/files.py", {"encode"}),
        ("escala/prepare/letters.py", {"encode"}),
        ("escala/__init__.py", set(STEPS)),
        ("escala/record/rank.py", TRAIN),
        # It names what can be selected, and counts where nothing is.
        ("escala/workloads/__init__.py", {"train any"}),
        ("escala/workloads/cnn.py", {"train cnn", "train any"}),
        ("escala/report/figures/speedup.py", {"figure speedup", "figure any"}),
        # A new module of a package that is named as a whole.
        ("escala/report/figures/timeline.py", {"figure any"}),
    ],
)
def test_changed_code_changes_the_steps_that_reach_it_and_no_others(project, changed, steps):
    text = PROJECT.get(changed, "") + "\ndef added():\n    return 1\n"
    assert changed_steps(project, changed, text) == steps


@pytest.mark.parametrize(
    ("file", "text", "steps"),
    [
        ("schemas/run.schema.yaml", RUN_SCHEMA.replace("how many", "number"), set()),
        ("schemas/run.schema.yaml", RUN_SCHEMA.replace("integer", "number"), TRAIN),
        ("schemas/run.schema.yaml", RUN_SCHEMA.replace("string", "number"), TRAIN),
        ("escala/core/files.py",
         "'''About files.'''\n# a comment\n\ndef read(\n    path,\n):\n    'Other words.'\n"
         "    return open(path).read()", set()),
    ],
)  # fmt: skip
def test_a_schema_counts_where_it_is_read_but_what_only_readers_see_does_not(
    project, file, text, steps
):
    assert changed_steps(project, file, text) == steps


def test_packages_are_those_the_reached_code_imports(project):
    assert sources("scripts.encode", root=project).packages == {"numpy"}
    selected = ["escala.workloads.svm"]
    assert sources("scripts.train", selected=selected, root=project).packages == {"yaml", "sklearn"}


@pytest.fixture
def started(project, monkeypatch) -> Callable[[], tuple[dict[str, str], int]]:
    """Return what a new process finds: the digests, and how many modules it parses for them."""
    # As in the images of many containers.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    parse, sources_parsed = module._parsed, []

    def counted(source: bytes, package: str) -> module._Module:
        sources_parsed.append(source)
        return parse(source, package)

    monkeypatch.setattr(module, "_parsed", counted)

    def start() -> tuple[dict[str, str], int]:
        module._parsed_or_cached.cache_clear()
        sources_parsed.clear()
        return digests(project), len(sources_parsed)

    return start


def test_modules_are_parsed_once_and_again_when_their_bytes_change(project, started):
    modules = len([name for name in PROJECT if name.endswith(".py")])
    before, parsed = started()
    assert parsed == modules
    assert started() == (before, 0)
    (project / "escala/core/files.py").write_text("# a comment\n" + PROJECT["escala/core/files.py"])
    assert started() == (before, 1)
    (project / "escala/core/files.py").write_text("ADDED = 1\n")
    after, parsed = started()
    assert parsed == 1 and after["encode"] != before["encode"]
    assert started() == (after, 0)


@pytest.mark.parametrize("damage", ["", '{"key": 1}', "cut off"])
def test_a_damaged_file_of_a_parsed_module_is_made_again(project, started, damage):
    before, _ = started()
    kept, *_ = (project / ".escala").rglob("*.json")
    kept.write_text(kept.read_text()[:-9] if damage == "cut off" else damage)
    assert started() == (before, 1)
    assert started() == (before, 0)


def test_parsed_modules_of_a_project_that_cannot_be_written_are_in_the_working_directory(
    project, started, monkeypatch, tmp_path_factory
):
    (project / ".escala").write_text("no folder")
    monkeypatch.chdir(tmp_path_factory.mktemp("work"))
    before, parsed = started()
    assert parsed and started() == (before, 0)


def test_a_module_or_a_choice_that_is_not_there_is_refused(project):
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        code_digest("scripts.nowhere", root=project)
    with pytest.raises(ModuleNotFoundError, match=r"escala\.workloads\.gone"):
        code_digest("scripts.train", selected=["escala.workloads.gone"], root=project)


@pytest.mark.parametrize("script", ["encode", "train", "figure"])
def test_what_a_script_loads_is_among_what_it_reaches(script):
    """Python itself is the reference: the modules that importing the script has loaded."""
    done = python("-c", f"import sys, scripts.{script}; print(*sys.modules)", check=True)
    loaded = {name for name in done.stdout.split() if name.startswith(("escala", "scripts."))}
    reached = sources(f"scripts.{script}")
    # The store alone loads the variables of the environment, and their values are in its keys.
    uncounted = module.UNCOUNTED | {"escala.core.variables"}
    assert loaded - uncounted <= set(reached.files)
    # The packages of this environment, and the engines that have environments of their own.
    packages = {*metadata.packages_distributions(), *SEPARATE}
    assert "numpy" in reached.packages
    assert all(name in packages for name in reached.packages), "nothing is taken for a package"


def test_versions_are_those_of_the_distributions_that_hold_the_packages():
    reached = sources("scripts.train").packages | {"Bio", "yaml", "mpl_toolkits", "no_such_package"}
    distributions = metadata.packages_distributions()
    names = {name for package in reached for name in distributions.get(package, ())}
    found = package_versions(reached, ["openmpi", "no-such-distribution"])
    assert found.pop("python") == sys.version.split()[0]
    assert found.pop("no-such-distribution") == "not installed"
    assert found == {name: metadata.version(name) for name in names | {"openmpi"}}
    assert {"tensorflow-cpu", "horovod", "biopython", "matplotlib"} <= set(found)
