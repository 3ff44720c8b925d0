"""The environment of Python of each engine whose framework is not in Escala's own.

An interpreter of the user's comes first, then the environment that `escala install` makes, then
Escala's own if it holds the framework, as a conda environment of a rule may.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from escala.cache import store
from escala.core import packages
from escala.core.children import completed
from escala.core.engines import ENGINES, FOLDER
from escala.core.environment import call
from escala.core.errors import Unavailable
from escala.core.variables import passed

#: The folder of the project: a clone, or that of an installation.
ROOT = Path(__file__).resolve().parents[2]
#: Seconds that an interpreter may take to answer. The first import of PyTorch reads 500 MB.
_SECONDS = 120


#: The environments of the engines that have one of their own, by the name of the engine, which is
#: also the module of its framework.
SEPARATE = {name: own for name, each in ENGINES.items() if (own := each.environment)}


def folder(engine: str) -> Path:
    """Return the folder of an engine's environment: in a clone, or alongside the store.

    An installation of Escala is replaced as a whole by the next version.
    """
    name = SEPARATE[engine].folder
    if (ROOT / "uv.lock").is_file():
        return ROOT / name
    return (store.location() or Path(store.DEFAULT).absolute()).parent / name


def python(engine: str) -> str:
    """Return the path of the Python that runs an engine.

    Raises
    ------
    Unavailable : the environment of its framework is not installed.
    """
    if engine not in SEPARATE:
        return sys.executable
    separate = SEPARATE[engine]
    if named := os.environ.get(separate.variable):
        found = shutil.which(Path(named).expanduser())
        if found is None:
            raise Unavailable(
                f"{separate.variable}: {named} is not a program. Remedy: {remedy(engine)}"
            )
        # A link decides which packages it finds, and is not followed.
        return str(Path(found).absolute())
    own = folder(engine) / "bin" / "python"
    if os.access(own, os.X_OK):
        return str(own)
    try:
        metadata.version(engine)
    except metadata.PackageNotFoundError:
        raise Unavailable(
            f"{ENGINES[engine].title} is not installed: there is no {own}. Remedy: {remedy(engine)}"
        ) from None
    return sys.executable


def versions(engine: str, further: Collection[str] = ()) -> dict[str, str]:
    """Return the versions of Python and of the distributions that decide a result, by name.

    Parameters
    ----------
    further : distributions besides those of the engine; `not installed` where one is not.

    Raises
    ------
    Unavailable : of an engine with an environment of its own, as `python`; or the interpreter does
        not answer, or lacks a distribution of the engine, or has a release that is too old.
    """
    names = ENGINES[engine].distributions
    if engine not in SEPARATE:
        return packages.versions((*names, *further))
    interpreter = python(engine)
    try:
        found = _installed(interpreter)
        if lacking := [name for name in names if name not in found["packages"]]:
            raise Unavailable(f"{interpreter} has no {', '.join(lacking)}")
        _require_recent(engine, found["packages"][engine], interpreter)
        known = {name: found["packages"].get(name, packages.ABSENT) for name in (*names, *further)}
        return {"python": found["python"]} | known
    except Unavailable as error:
        raise Unavailable(f"{error}. Remedy: {remedy(engine)}") from None


@cache
def _installed(interpreter: str) -> dict:
    """Return the version of Python and of all packages of an interpreter."""
    found = packages.read(_printed(interpreter, packages.ASK))
    if found is None:
        raise Unavailable(f"{interpreter} does not list its packages")
    return found


def described(engine: str, interpreter: str) -> str:
    """Return the versions of what ranks of an engine import, and the devices that it computes on.

    Its `describe.py` prints them, the framework with its version first.

    Raises
    ------
    Unavailable : a package is missing or broken, or the framework too old.
    """
    code = (FOLDER / engine / "describe.py").read_text(encoding="utf-8")
    said = _printed(interpreter, code).splitlines()[-1]
    _require_recent(engine, said.split()[1], interpreter)
    return said


def _require_recent(engine: str, version: str, interpreter: str) -> None:
    """Refuse a release of a framework that lacks what its engine calls.

    Parameters
    ----------
    version : such as `2.13.0+cpu`, or `2.14.0a0+git0142d5f` of a build of the user's own.
    """
    needed, title = SEPARATE[engine].oldest, ENGINES[engine].title
    found = tuple(map(int, re.findall(r"\d+", version)))[: len(needed)]
    if found < needed:
        oldest = ".".join(map(str, needed))
        raise Unavailable(
            f"{interpreter} has {title} {version}, and {oldest} or a later one is needed"
        )


def _printed(interpreter: str, code: str) -> str:
    """Return what a program prints under an interpreter, as ranks are started."""
    try:
        words = [interpreter, "-P", "-c", code]
        done = completed(words, env=variables(interpreter, passed()), timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{interpreter} cannot be used: {error}") from None
    if done.returncode:
        said = "".join(done.stderr.strip().splitlines()[-1:]) or f"it ended with {done.returncode}"
        raise Unavailable(f"{interpreter} cannot be used: {said}")
    if not done.stdout.strip():
        raise Unavailable(f"{interpreter} cannot be used: it is not Python, and prints nothing")
    return done.stdout


def remedy(engine: str) -> str:
    """Return what to do where an engine's environment is missing or broken."""
    separate = SEPARATE[engine]
    if os.environ.get(separate.variable):
        title = ENGINES[engine].title
        return (
            f"let {separate.variable} name an interpreter with {title}, DIR/bin/python, or unset it"
        )
    return f"{call(f'install {engine}')}, or let {separate.variable} name an interpreter"


def variables(interpreter: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process that another interpreter than this one runs.

    Of Python's path it has the project's folder alone, and of programs those of its environment
    first: nothing of Escala's own environment reaches it.
    """
    if interpreter == sys.executable:
        return dict(given)
    own = Path(sys.executable).parent
    path = given.get("PATH", os.defpath).split(os.pathsep)
    path = [str(Path(interpreter).parent), *(each for each in path if Path(each) != own)]
    return {name: value for name, value in given.items() if name != "PYTHONHOME"} | {
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": str(ROOT),
    }
