"""The environment of Python of each engine: where it is, and what it holds.

An interpreter of the user's comes first, then Escala's own if it holds all that the engine needs,
by an extra or by conda, then the one that is made for the engine (`escala.engines.environments`).
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
from escala.runtime.mpi import own_mpi

#: The folder of the project: a clone, or that of an installation.
ROOT = Path(__file__).resolve().parents[2]
#: Seconds that an interpreter may take to answer. The first import of PyTorch reads 500 MB.
_SECONDS = 120


def folder(engine: str) -> Path:
    """Return the folder of an engine's environment: in a clone, or alongside the store.

    An installation of Escala is replaced as a whole by the next version.
    """
    name = ENGINES[engine].environment.folder
    if (ROOT / "uv.lock").is_file():
        return ROOT / name
    return (store.location() or Path(store.DEFAULT).absolute()).parent / name


def python(engine: str) -> str:
    """Return the path of the Python that runs an engine.

    Raises
    ------
    Unavailable : the environment of its framework is not installed.
    """
    separate = ENGINES[engine].environment
    if named := os.environ.get(separate.variable):
        found = shutil.which(Path(named).expanduser())
        if found is None:
            raise Unavailable(
                f"{separate.variable}: {named} is not a program. Remedy: {remedy(engine)}"
            )
        # A link decides which packages it finds, and is not followed.
        return str(Path(found).absolute())
    if _is_own(engine):
        return sys.executable
    made = folder(engine) / "bin" / "python"
    if os.access(made, os.X_OK):
        return str(made)
    raise Unavailable(
        f"{ENGINES[engine].title} is not installed: there is no {made}. Remedy: {remedy(engine)}"
    )


def versions(engine: str, further: Collection[str] = ()) -> dict[str, str]:
    """Return the versions of Python and of the distributions that decide a result, by name.

    Parameters
    ----------
    further : distributions besides those of the engine; `not installed` where one is not.

    Raises
    ------
    Unavailable : as `python`; or the interpreter does not answer, or lacks a distribution of the
        engine, or has a release that is too old.
    """
    interpreter = python(engine)
    try:
        names = (*ENGINES[engine].distributions, *further)
        is_own = interpreter == sys.executable
        found = _own(names) if is_own else _installed(interpreter)
        if lacking := _lacking(engine, found):
            raise Unavailable(f"{interpreter} has no {', '.join(lacking)}")
        framework = next(name for name in ENGINES[engine].required[0] if name in found)
        _require_recent(engine, found[framework], interpreter)
    except Unavailable as error:
        raise Unavailable(f"{error}. Remedy: {remedy(engine)}") from None
    known = {name: found.get(name, packages.ABSENT) for name in ("python", *names)}
    launchers = ENGINES[engine].launchers
    return known | {name: packages.versions(launchers)[name] for name in launchers}


def _lacking(engine: str, held: Collection[str]) -> list[str]:
    """Return what an engine needs and an environment with some packages does not hold."""
    required = ENGINES[engine].required
    return [" or ".join(names) for names in required if not any(name in held for name in names)]


@cache
def _is_own(engine: str) -> bool:
    """Return whether Escala's own environment holds all that an engine needs, in fitting versions.

    `uv run` leaves what an extra installed, and installs other versions of what it needs.
    """
    held = _own(ENGINES[engine].distributions)
    if _lacking(engine, held):
        return False
    # Not in the environments of ranks, which import this module.
    from packaging.requirements import Requirement

    for name in held.keys() - {"python"}:
        for needed in map(Requirement, metadata.requires(name) or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                found = packages.versions([needed.name])[needed.name]
                if found == packages.ABSENT or not needed.specifier.contains(found, True):
                    return False
    return True


def _own(names: Collection[str]) -> dict[str, str]:
    """Return the versions of Python and of distributions in Escala's own environment, if there."""
    found = packages.versions(names)
    return {name: version for name, version in found.items() if version != packages.ABSENT}


@cache
def _installed(interpreter: str) -> dict[str, str]:
    """Return the version of Python and of all packages of an interpreter."""
    found = packages.read(_printed(interpreter, packages.ASK))
    if found is None:
        raise Unavailable(f"{interpreter} does not list its packages")
    return found["packages"] | {"python": found["python"]}


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
    needed, title = ENGINES[engine].environment.oldest, ENGINES[engine].title
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
        environment = variables(interpreter, passed()) | own_mpi()
        done = completed(words, env=environment, timeout=_SECONDS)
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
    variable = ENGINES[engine].environment.variable
    if os.environ.get(variable):
        title = ENGINES[engine].title
        return f"let {variable} name an interpreter with {title}, DIR/bin/python, or unset it"
    return f"{install_call(engine)}, or let {variable} name an interpreter"


def install_call(engine: str) -> str:
    """Return the call that makes an engine's environment."""
    return call(f"install {engine}")


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
