"""Nothing but engines and models of workloads needs a framework: all else is imported without."""

from __future__ import annotations

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
