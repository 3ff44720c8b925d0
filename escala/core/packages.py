"""Packages that the project's own workloads and data need, and programs of users do not.

`uv sync` installs them in a clone, and `uv tool install` does not.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Collection
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from escala.core.children import completed

#: Top-level module -> the distributions that may hold it. Messages name the first one.
OPTIONAL = {
    "Bio": ("biopython",),
    "dendropy": ("dendropy",),
    "horovod": ("horovod",),
    "imblearn": ("imbalanced-learn",),
    "keras": ("keras",),
    "tensorflow": ("tensorflow-cpu", "tensorflow"),
}
#: Compiles operations for TensorFlow, and kernels for PyTorch, when they are first needed.
COMPILER = "g++"
#: Prints the versions of an interpreter and of each package that it finds; `read` reads them.
#: Only the first lines of what is known of a package are looked at: to read the rest takes long.
ASK = r"""
import importlib.metadata as m, json, platform, re
texts = (d.read_text("METADATA") or d.read_text("PKG-INFO") or "" for d in m.distributions())
heads = (re.split(r"\n\s*\n", text, maxsplit=1)[0] for text in texts)
fields = (dict(re.findall(r"^(Name|Version): *(.*\S)", head, re.M)) for head in heads)
found = {each["Name"]: each.get("Version") for each in fields if "Name" in each}
print("\nescala " + json.dumps({"python": platform.python_version(), "packages": found}))
"""
#: The version of a distribution that is not installed.
ABSENT = "not installed"
#: With it `uv sync` and `uv run` leave out what `OPTIONAL` names.
_WITHOUT = "UV_NO_DEFAULT_GROUPS"


def lacking(error: BaseException) -> str | None:
    """Return a message for a failed import of one of these packages; None for other errors."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    if name is None or (top := name.partition(".")[0]) not in OPTIONAL or installed(top):
        return None
    return f"{OPTIONAL[top][0]} is not installed; your own programs do not need it. " + (
        f"Remedy: {remedy()}"
    )


def remedy() -> str:
    """Return how these packages are installed."""
    if os.environ.get(_WITHOUT):
        return f"call `uv sync` without the variable {_WITHOUT}: unset {_WITHOUT}"
    return "run it in a clone of the project, where `uv sync` installs what its own workloads need"


def installed(top: str) -> str | None:
    """Return the distribution that holds a module of `OPTIONAL`, with its version, or None."""
    for name in OPTIONAL[top]:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return None


def versions(names: Collection[str]) -> dict[str, str]:
    """Return the version of Python and of distributions, `ABSENT` of those that are not there."""
    return {"python": platform.python_version()} | {name: _version(name) for name in names}


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ABSENT


def compiler(name: str = COMPILER) -> str | None:
    """Return what a compiler says of its version, None if it is not there."""
    try:
        return completed([name, "--version"]).stdout.partition("\n")[0]
    except OSError:
        return None


def read(printed: str) -> dict | None:
    """Return the `python` and the `packages` that `ASK` printed, None if it did not."""
    lines = [line for line in printed.splitlines() if line.startswith("escala ")]
    return json.loads(lines[-1].partition(" ")[2]) if lines else None
