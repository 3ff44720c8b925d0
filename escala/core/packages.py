"""The versions of packages and of compilers."""

from __future__ import annotations

import json
import platform
from collections.abc import Collection
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from escala.core.children import capture

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
        return capture([name, "--version"]).stdout.partition("\n")[0]
    except OSError:
        return None


def read(printed: str) -> dict | None:
    """Return the `python` and the `packages` that `ASK` printed, None if it did not."""
    lines = [line for line in printed.splitlines() if line.startswith("escala ")]
    return json.loads(lines[-1].partition(" ")[2]) if lines else None
