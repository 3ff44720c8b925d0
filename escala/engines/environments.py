"""The environment of Python of each engine: its place, its packages, and its creation.

The first of these interpreters serves: an interpreter that the user names; Escala's own, if an
extra or conda installed all packages that the engine needs; the interpreter of an environment that
is made for the engine when it is first needed. A failed creation leaves no environment.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from escala.cache import store
from escala.core import children, packages
from escala.core.console import say
from escala.core.engines import ENGINES
from escala.core.environment import call
from escala.core.errors import InputError, Unavailable
from escala.core.files import take_turns
from escala.core.variables import for_ranks
from escala.runtime.mpi import project_mpi

#: The folder of the project: of a clone, or of an installation.
ROOT = Path(__file__).resolve().parents[2]
#: A program that prints `describe` of an engine's package, and versions that every rank needs.
_DESCRIBE = """
import platform, numpy, psutil
from escala.engines.ENGINE import describe
print(f"{describe()}, numpy {numpy.__version__}, Python {platform.python_version()}")
"""
#: Seconds after which an interpreter counts as silent. The first import of PyTorch reads 500 MB.
_SECONDS = 120


def folder(engine: str) -> Path:
    """Return the folder of an engine's environment: inside a clone, otherwise alongside the store.

    An installation of Escala holds no environment, because the next version replaces the
    installation.
    """
    name = ENGINES[engine].environment.folder
    if (ROOT / "uv.lock").is_file():
        return ROOT / name
    return (store.location() or Path(store.DEFAULT).absolute()).parent / name


def python(engine: str) -> str:
    """Return the path of the Python that runs an engine.

    Raises
    ------
    Unavailable : the environment of the engine is not installed.
    """
    variable = ENGINES[engine].environment.variable
    if named := os.environ.get(variable):
        program = shutil.which(Path(named).expanduser())
        if program is None:
            raise Unavailable(f"{variable}: {named} is not a program. Remedy: {remedy(engine)}")
        # A link is not followed, because the link's place decides which packages Python finds.
        return str(Path(program).absolute())
    if _is_here(engine):
        return sys.executable
    made = folder(engine) / "bin" / "python"
    if os.access(made, os.X_OK):
        return str(made)
    raise Unavailable(
        f"{ENGINES[engine].title} is not installed: {made} does not exist. Remedy: {remedy(engine)}"
    )


def versions(engine: str, further: Collection[str] = ()) -> dict[str, str]:
    """Return the versions of Python and of the distributions that decide a result, by name.

    Parameters
    ----------
    further : distributions besides the engine's. A missing distribution gets `not installed`.

    Raises
    ------
    Unavailable : the environment is not installed; or its interpreter does not answer, lacks a
        distribution of the engine, or has a release that is too old.
    """
    interpreter = python(engine)
    try:
        names = (*ENGINES[engine].distributions, *further)
        is_here = interpreter == sys.executable
        present = _list_present(names) if is_here else _list_packages(interpreter)
        if lacking := _find_missing(engine, present):
            raise Unavailable(f"{interpreter} has no {', '.join(lacking)}")
        framework = next(name for name in ENGINES[engine].required[0] if name in present)
        _require_recent(engine, present[framework], interpreter)
    except Unavailable as error:
        raise Unavailable(f"{error}. Remedy: {remedy(engine)}") from None
    known = {name: present.get(name, packages.ABSENT) for name in ("python", *names)}
    launchers = ENGINES[engine].launchers
    return known | {name: packages.versions(launchers)[name] for name in launchers}


def _find_missing(engine: str, held: Collection[str]) -> list[str]:
    """Return the packages that an engine needs and that are not in `held`."""
    required = ENGINES[engine].required
    return [" or ".join(names) for names in required if not any(name in held for name in names)]


@cache
def _is_here(engine: str) -> bool:
    """Return whether Escala's own environment has all needed packages in fitting versions.

    `uv run` leaves the packages of an extra, but may change the versions of their dependencies.
    """
    held = _list_present(ENGINES[engine].distributions)
    if _find_missing(engine, held):
        return False
    # Imported here, because the environments of ranks lack this package.
    from packaging.requirements import Requirement

    for name in held.keys() - {"python"}:
        for needed in map(Requirement, metadata.requires(name) or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                installed = packages.versions([needed.name])[needed.name]
                if installed == packages.ABSENT or not needed.specifier.contains(installed, True):
                    return False
    return True


def _list_present(names: Collection[str]) -> dict[str, str]:
    """Return the versions of Python and of the named distributions in Escala's environment."""
    installed = packages.versions(names)
    return {name: version for name, version in installed.items() if version != packages.ABSENT}


@cache
def _list_packages(interpreter: str) -> dict[str, str]:
    """Return the version of Python and of all packages of an interpreter."""
    listing = packages.read(_run(interpreter, packages.ASK))
    if listing is None:
        raise Unavailable(f"{interpreter} does not list its packages")
    return listing["packages"] | {"python": listing["python"]}


def describe(engine: str, interpreter: str) -> str:
    """Return, as text, the versions that ranks of an engine import, and the engine's devices.

    The framework and its version come first (`describe` in the package of the engine).

    Raises
    ------
    Unavailable : a package is missing or broken, or the framework too old.
    """
    description = _run(interpreter, _DESCRIBE.replace("ENGINE", engine)).splitlines()[-1]
    _require_recent(engine, description.split()[1], interpreter)
    return description


def _require_recent(engine: str, version: str, interpreter: str) -> None:
    """Refuse a release of a framework that is too old for its engine.

    Parameters
    ----------
    version : such as `2.13.0+cpu`, or `2.14.0a0+git0142d5f` for a user's own build.
    """
    needed, title = ENGINES[engine].environment.oldest, ENGINES[engine].title
    release = tuple(map(int, re.findall(r"\d+", version)))[: len(needed)]
    if release < needed:
        oldest = ".".join(map(str, needed))
        raise Unavailable(
            f"{interpreter} has {title} {version}, and {oldest} or a later one is needed"
        )


def _run(interpreter: str, code: str) -> str:
    """Return the output of a program under an interpreter, started with the variables of ranks."""
    try:
        words = [interpreter, "-P", "-c", code]
        environment = variables(interpreter, for_ranks()) | project_mpi()
        done = children.capture(words, env=environment, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{interpreter} cannot be used: {error}") from None
    if done.returncode:
        message = (
            "".join(done.stderr.strip().splitlines()[-1:]) or f"it ended with {done.returncode}"
        )
        raise Unavailable(f"{interpreter} cannot be used: {message}")
    if not done.stdout.strip():
        raise Unavailable(f"{interpreter} cannot be used: it is not Python, and prints nothing")
    return done.stdout


def remedy(engine: str) -> str:
    """Return the remedy for a missing or broken environment of an engine."""
    variable = ENGINES[engine].environment.variable
    if os.environ.get(variable):
        title = ENGINES[engine].title
        return f"let {variable} name an interpreter with {title}, DIR/bin/python, or unset it"
    return f"{call(f'install {engine}')}, or let {variable} name an interpreter"


def variables(interpreter: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an interpreter's process, from the variables of Escala's processes.

    Nothing of Escala's own environment reaches another interpreter. The other interpreter's Python
    path is only the project's folder, and its PATH begins with its own programs.
    """
    if interpreter == sys.executable:
        return dict(environment)
    here = Path(sys.executable).parent
    path = environment.get("PATH", os.defpath).split(os.pathsep)
    path = [str(Path(interpreter).parent), *(folder for folder in path if Path(folder) != here)]
    return {name: value for name, value in environment.items() if name != "PYTHONHOME"} | {
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": str(ROOT),
    }


#: Variables that pip reads and uv does not, and uv's option in place of each.
_PIP = {
    "PIP_FIND_LINKS": "--find-links",
    "PIP_INDEX_URL": "--default-index",
    "PIP_EXTRA_INDEX_URL": "--index",
}
#: Variables of uv by which a user names sources of packages.
_UV = ("UV_FIND_LINKS", "UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL")
#: Whether this process only shows its plan and does nothing.
dry_run = False


def provide(engine: str) -> str:
    """Return the path of the Python that runs an engine; first make a missing environment.

    A dry run makes no environment. It prints its plan, and returns the Python of this process.

    Raises
    ------
    Unavailable : the environment could not be made, or the variable of the engine names no program.
    """
    try:
        return python(engine)
    except Unavailable:
        if os.environ.get(ENGINES[engine].environment.variable):
            raise
    if dry_run:
        say(f"{ENGINES[engine].title} would be installed into {folder(engine)}")
        return sys.executable
    say(install(engine))
    return python(engine)


def provide_all(names: Iterable[str]) -> None:
    """Make the missing environments of engines, and say why an environment could not be made.

    Runs that need a missing environment end as unavailable.

    Raises
    ------
    InputError : the variable of an engine names no program.
    """
    for engine in sorted(names):
        variable = ENGINES[engine].environment.variable
        try:
            provide(engine)
        except Unavailable as error:
            if named := os.environ.get(variable):
                raise InputError(variable, named, "is not a program", remedy(engine)) from None
            say(error)


def enter(engine: str) -> None:
    """Run the script of this process again by the Python of an engine, if they differ.

    Raises
    ------
    Unavailable : `provide` says when.
    """
    if (interpreter := provide(engine)) != sys.executable:
        environment = variables(interpreter, os.environ)
        # If the variable named this interpreter by another path, the script would enter it again.
        environment.pop(ENGINES[engine].environment.variable, None)
        os.execve(interpreter, [interpreter, *sys.orig_argv[1:]], environment)


def install(engine: str, base: str | None = None) -> str:
    """Make a missing environment of an engine; return a sentence about the environment.

    Parameters
    ----------
    base : the environment's Python, for uv: a version or a path. None means the release that the
        engine needs; if it needs no special release, the Python of this process.

    Raises
    ------
    InputError : the user names an interpreter that is used in place of the environment.
    Unavailable : uv is missing, or uv could not install the packages.
    """
    declared, target = ENGINES[engine].environment, folder(engine)
    if named := os.environ.get(declared.variable):
        title = ENGINES[engine].title
        reason = f"is the interpreter that runs {title}, so an environment is not used"
        raise InputError(declared.variable, named, reason, "unset it, and call this again")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    with take_turns(target.parent, "waiting: another call makes an environment here"):
        try:
            description = describe(engine, str(target / "bin" / "python"))
            again = f"To make it again: rm -r {shlex.quote(str(target))}"
            return f"{target} exists: {description}. {again}"
        except Unavailable as error:
            if target.exists():
                say(f"{error}. It is made again")
        began, needed = time.monotonic(), declared.python
        fits = needed is None or platform.python_version().startswith(f"{needed}.")
        try:
            _make(engine, partial, base or (sys.executable if fits else needed))
            description = describe(engine, str(partial / "bin" / "python"))
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return f"{target} is made: {description}; it took {time.monotonic() - began:.0f} s"


def _make(engine: str, into: Path, base: str) -> None:
    """Make an environment, and install the framework's packages in a build for this machine.

    The framework's own index may have builds for processors and for each release of CUDA. If uv
    cannot reach this index, packages come from the user's sources.
    """
    shutil.rmtree(into, ignore_errors=True)  # Left by a call that was killed.
    title, declared = ENGINES[engine].title, ENGINES[engine].environment
    say(f"{title} is installed into {folder(engine)}, once: {declared.takes}")
    # The folder will be renamed, so no program inside may contain its path.
    if _uv("venv", "--quiet", "--relocatable", "--python", base, str(into)):
        raise Unavailable(
            f"uv could not make an environment of Python {base} for {title} (see above). Remedy: "
            f"install this Python, or let {declared.variable} name an interpreter"
        )
    requirements = ROOT / "envs" / declared.requirements
    command = ["pip", "install", "--compile-bytecode", "--python", str(into / "bin" / "python")]
    command += ["--requirements", str(requirements)]
    if declared.backend:
        backend = os.environ.get(declared.backend_variable, "auto")
        say(f"{title} comes from the index of {title}, in the build {backend}")
        if _uv(*command, declared.backend, backend) == 0:
            return
        say("that failed (see above)")
    places, options = package_sources(os.environ)
    say(f"{title} comes from {places}")
    if _uv(*command, *options):
        raise Unavailable(
            f"uv could not install {title} (see above). Remedy: where no network is, call "
            f"{call(f'install {engine}')} before, on a machine that has one; or let "
            "UV_FIND_LINKS name a folder of its wheels, or UV_INDEX an index that has them; or let "
            f"{declared.variable} name an interpreter with the packages of {requirements}"
        )


def package_sources(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the sources of packages besides a framework's own index, and uv's options for them.

    Parameters
    ----------
    environment : the user's variables; variables for pip also count.
    """
    options = [
        word
        for name, option in _PIP.items()
        for place in environment.get(name, "").split()
        for word in (option, place)
    ]
    named = [f"{name}={environment[name]}" for name in (*_UV, *_PIP) if environment.get(name)]
    return ", ".join(named) or "uv's index of packages", options


def _uv(*arguments: str) -> int:
    """Call uv and return its exit code. Progress and messages of uv go to the terminal."""
    # Escala's `pyproject.toml` says how Horovod is compiled. A project in the working directory may
    # have other settings for uv.
    places = os.environ.get("UV"), shutil.which("uv"), str(ROOT / ".uv" / "bin" / "uv")
    uv = next((place for place in places if place and os.access(place, os.X_OK)), None)
    if uv is None:
        raise Unavailable("uv is not found. Remedy: python3 -m pip install uv, or let UV name it")
    command = [uv, arguments[0], "--project", str(ROOT), *arguments[1:]]
    without = {"VIRTUAL_ENV", "PYTHONPATH"}
    without |= {engine.environment.backend_variable for engine in ENGINES.values()}
    environment = {name: value for name, value in os.environ.items() if name not in without}
    started = children.start(command, environment, None)
    try:
        return started.wait()
    finally:
        children.stop([started])
