"""Make the environment of an engine's framework, when it is first needed: whole, or not at all."""

from __future__ import annotations

import fcntl
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from escala.core import children
from escala.core.console import say
from escala.core.engines import ENGINES
from escala.core.errors import InputError, Unavailable
from escala.engines import interpreters

#: What pip reads and uv does not, with uv's option for it.
_PIP = {
    "PIP_FIND_LINKS": "--find-links",
    "PIP_INDEX_URL": "--default-index",
    "PIP_EXTRA_INDEX_URL": "--index",
}
#: By these a user names where packages are.
_UV = ("UV_FIND_LINKS", "UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL")
#: Whether this process only shows what it would do.
dry_run = False


def provide(engine: str) -> str:
    """Return the path of the Python that runs an engine, whose environment is made if need be.

    In a dry run it is said, and that of this process stands in its place.

    Raises
    ------
    Unavailable : it could not be made, or the variable of the engine names no program.
    """
    try:
        return interpreters.python(engine)
    except Unavailable:
        if os.environ.get(ENGINES[engine].environment.variable):
            raise
    if dry_run:
        say(f"{ENGINES[engine].title} would be installed into {interpreters.folder(engine)}")
        return sys.executable
    say(install(engine))
    return interpreters.python(engine)


def provide_all(names: Iterable[str]) -> None:
    """Make the environments of engines that are not there, and say why one could not be made.

    Runs that need it end as unavailable.
    """
    for engine in sorted(names):
        try:
            provide(engine)
        except Unavailable as error:
            say(error)


def enter(engine: str) -> None:
    """Let the Python of an engine run the script of this process, if it is another.

    Raises
    ------
    Unavailable : as `provide`.
    """
    if (python := provide(engine)) != sys.executable:
        variables = interpreters.variables(python, os.environ)
        # It is the one that runs the script, by whatever path.
        variables.pop(ENGINES[engine].environment.variable, None)
        os.execve(python, [python, *sys.orig_argv[1:]], variables)


def install(engine: str, python: str | None = None) -> str:
    """Make the environment of an engine's framework if it is not there; return what is.

    Parameters
    ----------
    python : its Python, as uv understands it: a version or a path. None: that which it needs, else
        that of this process.

    Raises
    ------
    InputError : the user names an interpreter that is used in place of the environment.
    Unavailable : uv is missing, or it could not install the packages.
    """
    separate, target = ENGINES[engine].environment, interpreters.folder(engine)
    if named := os.environ.get(separate.variable):
        title = ENGINES[engine].title
        reason = f"is the interpreter that runs {title}, so an environment is not used"
        raise InputError(separate.variable, named, reason, "unset it, and call this again")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    with _alone(target.parent):
        try:
            found = interpreters.described(engine, str(target / "bin" / "python"))
            return f"{target} is there: {found}. To make it again: rm -r {shlex.quote(str(target))}"
        except Unavailable as error:
            if target.exists():
                say(f"{error}. It is made again")
        begun = time.monotonic()
        try:
            _make(engine, partial, python or _python(separate.python))
            found = interpreters.described(engine, str(partial / "bin" / "python"))
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return f"{target} is made: {found}; it took {time.monotonic() - begun:.0f} s"


def _python(needed: str | None) -> str:
    """Return the Python of an environment for uv: that of this process if it fits."""
    fits = needed is None or platform.python_version().startswith(f"{needed}.")
    return sys.executable if fits else needed


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time make an environment in a folder."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting: another call makes an environment here")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _make(engine: str, folder: Path, python: str) -> None:
    """Make an environment and install the framework's packages, in a build that fits the machine.

    The framework's own index may have builds for processors and for each release of CUDA. Where uv
    cannot reach it, packages come from where the user says.
    """
    shutil.rmtree(folder, ignore_errors=True)  # Of a call that was killed.
    title, own = ENGINES[engine].title, ENGINES[engine].environment
    say(f"{title} is installed into {interpreters.folder(engine)}, once: {own.takes}")
    # It will be renamed, and no program in it may name its path.
    if _uv("venv", "--quiet", "--relocatable", "--python", python, str(folder)):
        raise Unavailable(
            f"uv could not make an environment of Python {python} for {title} (see above). Remedy: "
            f"install this Python, or let {own.variable} name an interpreter"
        )
    requirements = interpreters.ROOT / "envs" / own.requirements
    packages = ["pip", "install", "--compile-bytecode", "--python", str(folder / "bin" / "python")]
    packages += ["--requirements", str(requirements)]
    if own.backend:
        backend = os.environ.get(own.backend_variable, "auto")
        say(f"{title} comes from its own index, in the build {backend}")
        if _uv(*packages, own.backend, backend) == 0:
            return
        say("that failed (see above)")
    places, options = named_places(os.environ)
    say(f"{title} comes from {places}")
    if _uv(*packages, *options):
        raise Unavailable(
            f"uv could not install {title} (see above). Remedy: where no network is, call "
            f"{interpreters.install_call(engine)} before, on a machine that has one; or let "
            "UV_FIND_LINKS name a folder of its wheels, or UV_INDEX an index that has them; or let "
            f"{own.variable} name an interpreter with the packages of {requirements}"
        )


def named_places(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return where packages come from besides a framework's own index, and uv's options for it.

    Parameters
    ----------
    environment : of the user, whose variables for pip count too.
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
    """Call uv, whose progress and messages go to the terminal; return its exit code."""
    # How Horovod is compiled is said in `pyproject.toml`. What a project in the working directory
    # asks of uv is for its own environment.
    command = [_program(), arguments[0], "--project", str(interpreters.ROOT), *arguments[1:]]
    without = {"VIRTUAL_ENV", "PYTHONPATH"}
    without |= {each.environment.backend_variable for each in ENGINES.values()}
    environment = {name: value for name, value in os.environ.items() if name not in without}
    started = children.start(command, environment, None)
    try:
        return started.wait()
    finally:
        children.stop([started])


def _program() -> str:
    """Return the path of uv: the one that started this process, on PATH, or in `.uv` of a clone."""
    candidates: Sequence[str | None] = (
        os.environ.get("UV"),
        shutil.which("uv"),
        str(interpreters.ROOT / ".uv" / "bin" / "uv"),
    )
    found = next((each for each in candidates if each and os.access(each, os.X_OK)), None)
    if found is None:
        raise Unavailable("uv is not found. Remedy: python3 -m pip install uv, or let UV name it")
    return found
