"""The versions of packages and of compilers."""

from __future__ import annotations

import json
import platform
from collections.abc import Collection
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from escala.core.children import capture

#: The compiler of operations for TensorFlow and of kernels for PyTorch.
COMPILER = "g++"
#: Code that prints the versions of an interpreter and of the packages that it finds; `read` reads
#: the output. The code parses only the head of a package's metadata, because parsing all takes
#: long.
ASK = r"""
import importlib.metadata as m, json, platform, re
texts = (d.read_text("METADATA") or d.read_text("PKG-INFO") or "" for d in m.distributions())
heads = (re.split(r"\n\s*\n", text, maxsplit=1)[0] for text in texts)
fields = (dict(re.findall(r"^(Name|Version): *(.*\S)", head, re.M)) for head in heads)
packages = {head["Name"]: head.get("Version") for head in fields if "Name" in head}
print("\nescala " + json.dumps({"python": platform.python_version(), "packages": packages}))
"""
#: The version of a distribution that is not installed.
ABSENT = "not installed"


def versions(names: Collection[str]) -> dict[str, str]:
    """Return the versions of Python and of distributions; `ABSENT` if one is not installed."""
    return {"python": platform.python_version()} | {name: _version(name) for name in names}


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ABSENT


def compiler(name: str = COMPILER) -> str | None:
    """Return the line in which a compiler tells its version; None without a compiler."""
    try:
        return capture([name, "--version"]).stdout.partition("\n")[0]
    except OSError:
        return None


def read(printed: str) -> dict | None:
    """Return the versions `python` and `packages` that `ASK` printed; None without versions."""
    lines = [line for line in printed.splitlines() if line.startswith("escala ")]
    return json.loads(lines[-1].partition(" ")[2]) if lines else None
