"""The environment of PyTorch holds all that its ranks import, and they draw the same rows there."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from escala.core.engines import ENGINES
from escala.core.variables import passed
from escala.engines import entries, interpreters
from escala.strategies import STRATEGIES
from escala.workloads import WORKLOADS

pytestmark = pytest.mark.torch

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
    done = subprocess.run(
        [interpreter, "-P", "-c", code, *arguments],
        env=interpreters.variables(interpreter, passed()) | {"PYTHONPATH": str(interpreters.ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def canonical(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def modules_of_ranks() -> list[str]:
    """Return the modules that a rank of PyTorch may begin with or pick by a name."""
    ours = [name for name, each in STRATEGIES.items() if (each.engine or "").startswith("torch.")]
    recorders = (interpreters.ROOT / "escala" / "engines" / "torch" / "recorders").glob("[!_]*.py")
    return [
        *(f"escala.training.{name}" for name in ("rank", "by_steps", "train")),
        *(f"escala.engines.torch.recorders.{path.stem}" for path in recorders),
        *(module for name in ours for module in entries(name)),
        "escala.data.base",
        *(
            f"{each.package}.model_torch"
            for each in WORKLOADS.values()
            if (each.folder / "model_torch.py").is_file()
        ),
    ]


def test_ranks_import_what_the_environment_holds_and_nothing_else():
    pinned = (interpreters.ROOT / "envs" / ENGINES["torch"].environment.requirements).read_text()
    held = {canonical(name) for name in re.findall(r"^([\w.-]+)==", pinned, re.MULTILINE)}
    python = interpreters.python("torch")
    loaded = set(
        map(canonical, json.loads(printed(python, LOADED, json.dumps(modules_of_ranks()))))
    )
    # PyTorch does without tqdm, and imports it where it is.
    brought = {
        name for name in loaded if name.startswith(("nvidia-", "cuda-", "triton")) or name == "tqdm"
    }
    assert loaded - brought <= held
    assert {"numpy", "psutil", "pyyaml"} <= loaded


def test_its_numpy_draws_the_same_rows():
    rows = printed(interpreters.python("torch"), ROWS)
    assert rows == printed(sys.executable, ROWS) and len(rows) > 300
