"""An engine's environment holds all that its ranks import, and they draw the same rows there."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from escala.core.engines import ENGINES, FOLDER
from escala.core.variables import passed
from escala.engines import engine_name, environments
from escala.runtime import mpi
from escala.strategies import STRATEGIES
from escala.workloads import WORKLOADS

pytestmark = pytest.mark.parametrize(
    "engine",
    [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ENGINES],
)

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
    own = mpi.own_mpi() | {"PYTHONPATH": str(environments.ROOT)}
    done = subprocess.run(
        [interpreter, "-P", "-c", code, *arguments],
        env=environments.variables(interpreter, passed()) | own,
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


def test_ranks_import_what_the_environment_holds_and_nothing_else(engine):
    pinned = (environments.ROOT / "envs" / ENGINES[engine].environment.requirements).read_text()
    held = {canonical(name) for name in re.findall(r"^([\w.-]+)==", pinned, re.MULTILINE)}
    modules = json.dumps(modules_of_ranks(engine))
    loaded = set(map(canonical, json.loads(printed(made(engine), LOADED, modules))))
    # PyTorch does without tqdm, requests without PySocks, and Keras without pandas, SciPy and
    # Pillow: they are imported where they are. setuptools holds some of its own.
    others = (
        "nvidia-",
        "cuda-",
        "triton",
        "tqdm",
        *("pandas", "python-dateutil", "pytz", "scipy", "pillow"),
        "pysocks",
        "jaraco-",
        "backports-tarfile",
        "more-itertools",
    )
    brought = {name for name in loaded if name.startswith(others)}
    assert loaded - brought <= held
    assert {"numpy", "psutil", "pyyaml"} <= loaded


def test_its_numpy_draws_the_same_rows(engine):
    rows = printed(made(engine), ROWS)
    assert rows == printed(sys.executable, ROWS) and len(rows) > 300
