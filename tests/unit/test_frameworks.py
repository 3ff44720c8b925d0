"""Nothing but engines and models of workloads needs a framework: all else is imported without."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

#: Import modules where no framework is installed, and print which ones failed.
IMPORT = """
import importlib, sys

class Refused:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("tensorflow", "keras", "horovod", "torch", "jax"):
            raise ModuleNotFoundError(f"no {name}", name=name)

sys.meta_path.insert(0, Refused())
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(name, error)
"""


def imports_framework(file: Path) -> bool:
    engines = [folder for folder in (ROOT / "escala" / "engines").iterdir() if folder.is_dir()]
    model = file.parent.parent == ROOT / "escala" / "workloads" and file.stem.startswith("model")
    return model or any(file.is_relative_to(folder) for folder in engines)


def test_all_but_engines_and_models_is_imported_without_a_framework():
    files = [file for part in ("escala", "scripts") for file in (ROOT / part).rglob("*.py")]
    # Programs of users import the hook.
    files = [file for file in files if not imports_framework(file) and file.parent.name != "hook"]
    parts = [file.relative_to(ROOT).with_suffix("").parts for file in files]
    names = [".".join(part for part in each if part != "__init__") for each in parts]
    assert len(names) > 250
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, *names], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


#: Files outside of an engine's folder, and of the models of workloads, that rightly name one.
RIGHTLY = {
    "escala/analysis/diagnosis/__init__.py": "a timeline is of Horovod, from any training",
    "escala/analysis/diagnosis/recording.py": "a timeline is of Horovod, from any training",
    "escala/draft/command.py": "users write these launchers in their commands",
    "escala/hook/escala_collectives.py": "sums in the library of a user's program",
    "escala/hook/escala_processes.py": "sees which library's group a user's process joins",
    "escala/hook/escala_steps.py": "has callbacks for trainers of users",
    "escala/hook/escala_trace.py": "starts the profiler of a user's PyTorch",
    "escala/probes/torch_trace.py": "its key and the trace are of PyTorch",
    "escala/report/findings/why.py": "names the key of this probe",
    "scripts/diagnose.py": "says which file of Horovod it takes",
    "scripts/try.py": "shows launchers of users",
}
NAMES = re.compile(r"tensorflow|torch|horovod|keras|\bjax\b", re.IGNORECASE)


def code_of(file: Path) -> str:
    """Return the code of a file without comments and docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            node.body[0] = ast.Pass()
    return ast.unparse(tree)


def test_a_framework_is_named_by_its_engine_and_in_few_other_files():
    files = [file for part in ("escala", "scripts") for file in (ROOT / part).rglob("*.py")]
    others = [file for file in files if not imports_framework(file)]
    named = {str(each.relative_to(ROOT)) for each in others if NAMES.search(code_of(each))}
    assert named == RIGHTLY.keys() and len(named) <= 12
