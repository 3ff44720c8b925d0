"""The environment of a call: variables that its jobs inherit, and folders that it writes to.

Folders of results are marked: the project writes results into marked folders only.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shlex
import sys
import sysconfig
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from escala.core.console import escape_unprintable, say
from escala.core.errors import InputError
from escala.core.variables import CALLERS_MODULES, CALLERS_PATH, CALLERS_VARIABLES

RESULTS_MARKER = ".escala"
_MARKER_TEXT = "Escala made this folder, and replaces and removes files in it.\n"


def is_results(folder: Path) -> bool:
    """Return whether this project made a folder."""
    return (folder / RESULTS_MARKER).is_file()


def require_folder(path: Path) -> None:
    """Refuse a path that is neither a folder nor free for one.

    Raises
    ------
    InputError : the path is a file, or a link to nothing.
    """
    if not os.path.lexists(path) or path.is_dir():
        return
    reason, remedy = "is a file", f"rename {path.name}"
    if path.is_symlink() and not path.exists():
        reason = f"is a link to {path.readlink()}, which is not there"
        remedy = f"make that folder, or remove {path.name}"
    reason += ", where a folder of this name is written"
    raise InputError("working directory", str(path), reason, remedy)


def require_results(folder: Path, remedy: str = "give the experiment another name") -> None:
    """Refuse a folder that somebody else made.

    Raises
    ------
    InputError : the folder exists, is not empty and has no marker; or the path is no folder.
    """
    require_folder(folder)
    if not folder.is_dir() or is_results(folder) or not any(folder.iterdir()):
        return
    reason = "is not a folder of Escala's, and it would replace files in it"
    remedy = f"{remedy}; or, if they may be replaced: touch {folder / RESULTS_MARKER}"
    raise InputError("results", str(folder), reason, remedy)


def claim_results(folder: Path) -> None:
    """Make a folder of results, and mark it.

    Raises
    ------
    InputError : as `require_results`.
    """
    require_results(folder)
    if not is_results(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULTS_MARKER).write_text(_MARKER_TEXT, encoding="utf-8")


def hold_results(folder: Path) -> int:
    """Keep a claimed folder for this process until it ends; return the descriptor of its marker.

    Snakemake locks a working folder, but several working folders may link to one folder of results.
    Where the file system has no locks, no process is refused.

    Raises
    ------
    InputError : another process holds the folder.
    """
    try:
        marker = os.open(folder / RESULTS_MARKER, os.O_RDWR)
    except PermissionError:  # The folder is another user's, or read-only.
        marker = os.open(folder / RESULTS_MARKER, os.O_RDONLY)
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(marker)
        reason = "another call writes results there, maybe in another working folder"
        raise InputError("results", str(folder), reason, "wait for its end") from None
    except OSError:  # The file system has no locks.
        pass
    return marker


#: Environment variable that holds the name of the session.
SESSION_VARIABLE = "ESCALA_SESSION"
#: A folder in the working directory. It replaces a home that the user cannot write to.
HOME = Path(".escala", "home")
_CACHE = "XDG_CACHE_HOME"
#: Variables that would let processes of the project fail or never end, each with the reason.
_NOT_PASSED = {
    "PYTHONOPTIMIZE": "libraries here read docstrings. For a program of your own, write python -O",
    "PYTHONINSPECT": "processes would wait for input at their end",
}
#: Folders in which Snakemake and the project write, in the working directory.
_WRITTEN = (".snakemake", ".escala", "results")
_ROOT = Path(__file__).resolve().parents[2]


def prepare(root: Path) -> None:
    """Change the environment of this process so that Snakemake and its jobs work.

    This interpreter is put first on PATH, and the project folder on PYTHONPATH, which
    `drop_shadowing_paths` cleans. Python does not look for modules in the working directory,
    because the user may keep any modules there. A home or a cache that cannot be written to is
    replaced. A user without a name gets a name from the user number. A line on standard error names
    each replacement.

    Parameters
    ----------
    root : the project folder, which holds `escala/` and `scripts/`.

    Raises
    ------
    InputError : Snakemake would read some characters in the path of the project folder as something
        else.
    """
    escape_unprintable()
    remedy = "rename the folder, or move the project to another one"
    require_plain(root, "project folder", remedy, "{}\n" + os.pathsep)
    os.environ.setdefault(CALLERS_VARIABLES, ",".join(sorted(os.environ)))
    path = os.environ.get("PATH", os.defpath)
    if "UV" in os.environ and os.environ.get("VIRTUAL_ENV") != sys.prefix:
        # `uvx` puts this environment first on PATH, which the shell of the caller does not.
        path = path.removeprefix(f"{Path(sys.executable).parent}{os.pathsep}")
    os.environ.setdefault(CALLERS_PATH, path)
    prepend("PATH", Path(sys.executable).parent)
    os.environ["PYTHONSAFEPATH"] = "1"
    drop_shadowing_paths(root)
    prepend("PYTHONPATH", root)
    home = Path(os.environ.get("HOME") or os.devnull)
    if not (home.is_dir() and _is_writable(home)):
        home = Path.cwd() / HOME
        home.mkdir(parents=True, exist_ok=True)
        say(f"HOME: {os.environ.get('HOME', '')!r} cannot be written to; {home} is used instead")
        os.environ["HOME"] = str(home)
    cache = Path(os.environ.get(_CACHE) or home / ".cache")
    # Snakemake makes this folder.
    inner = cache / "snakemake" / "snakemake"
    nearest = next(path for path in (inner, *inner.parents) if os.path.lexists(path))
    if not (cache.is_absolute() and nearest.is_dir() and _is_writable(nearest)):
        instead = Path.cwd() / HOME.with_name("cache")
        say(f"{_CACHE}: '{cache}' cannot be written to; {instead} is used instead")
        os.environ[_CACHE] = str(instead)
    elif not os.environ.get(_CACHE):
        os.environ.pop(_CACHE, None)  # An empty value would stand for the working directory.
    for name, why in _NOT_PASSED.items():
        if os.environ.pop(name, None):
            say(f"{name}: is not passed on: {why}")
    has_name = {"LOGNAME", "USER", "LNAME", "USERNAME"} & os.environ.keys()
    if not has_name and _user_name(os.getuid()) is None:
        os.environ["USER"] = os.environ["LOGNAME"] = f"user{os.getuid()}"


def call(arguments: str, *words: object) -> str:
    """Return a call of `escala` for messages. In a clone, the call begins with `uv run`.

    Parameters
    ----------
    words : more arguments, such as paths. They are quoted for a shell.
    """
    line = " ".join([arguments, *(shlex.quote(str(word)) for word in words)])
    return f"{'uv run ' if (_ROOT / 'uv.lock').exists() else ''}escala {line}"


def require_plain(path: Path | str, where: str, remedy: str, refused: str = "{}\n") -> None:
    """Refuse a path that Snakemake would not read as it stands: braces mark its wildcards.

    Parameters
    ----------
    refused : the characters that the path must not hold.

    Raises
    ------
    InputError : the path holds one of these characters.
    """
    wrong = [character for character in refused if character in str(path)]
    if wrong:
        names = " and ".join(map(repr, wrong))
        reason = f"holds {names}, which Snakemake or a search path reads as something else"
        raise InputError(where, str(path), reason, remedy)


def require_work_folder(folder: Path) -> None:
    """Refuse a folder in which Snakemake and the project cannot keep their own files.

    Raises
    ------
    InputError : the folder, or a file that they left in it, belongs to somebody else; or
        `require_folder` raises it.
    """
    written = [folder / name for name in _WRITTEN]
    for path in written:
        require_folder(path)
    present = [path for path in written if path.exists()]
    inside = [path for path in written[0].glob("*") if path.is_dir()]
    for path in [*present, *inside, *([folder] if len(present) < len(written) else [])]:
        if not _is_writable(path):
            number = path.stat().st_uid
            owner = _user_name(number) or f"the user {number}"
            raise InputError(
                "working directory",
                str(path),
                f"belongs to {owner}, and cannot be written to",
                "let its owner remove it, or work in a copy of the project of your own",
            )


def start_session() -> None:
    """Give this call of the workflow a session name. Every measurement records the name.

    The jobs inherit the name through the environment.
    """
    os.environ[SESSION_VARIABLE] = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}"


def session() -> str:
    """Return the name of the session; start a session if there is none."""
    if not os.environ.get(SESSION_VARIABLE):
        start_session()
    return os.environ[SESSION_VARIABLE]


def prepend(variable: str, folder: Path) -> None:
    """Put a folder first in a variable of this process that lists folders."""
    current = os.environ.get(variable)
    os.environ[variable] = os.pathsep.join(filter(None, [str(folder), current]))


def drop_shadowing_paths(root: Path) -> None:
    """Take folders off PYTHONPATH that would replace modules of this environment; print each.

    A module system on a cluster sets such folders. They are also removed from `sys.path`.

    Parameters
    ----------
    root : the project folder. It is taken off PYTHONPATH, but stays in `sys.path`.
    """
    os.environ.setdefault(CALLERS_MODULES, os.environ.get("PYTHONPATH", ""))
    installed = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    modules = {*sys.stdlib_module_names, *chain(*(_modules(Path(folder)) for folder in installed))}
    kept = []
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for folder in dict.fromkeys(Path(path).absolute() for path in paths):
        if folder.resolve() == root.resolve():
            continue
        replaced = sorted(_modules(folder) & modules)
        if not replaced:
            kept.append(str(folder))
            continue
        sys.path[:] = [entry for entry in sys.path if Path(entry).absolute() != folder]
        more = f" and {len(replaced) - 1} more" if len(replaced) > 1 else ""
        say(
            f"PYTHONPATH: {folder} is left out, because its {replaced[0]}{more} would replace that "
            "of this environment"
        )
    os.environ["PYTHONPATH"] = os.pathsep.join(kept)


def _modules(folder: Path) -> set[str]:
    """Return the names of the modules and packages that Python would import from a folder."""
    if not folder.is_dir():
        return set()
    names = set()
    for path in folder.iterdir():
        name, _, suffix = path.name.partition(".")
        is_package = not suffix and path.is_dir() and any(path.glob("*.py"))
        if is_package or suffix == "py" or suffix.endswith("so"):
            names.add(name)
    return names


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _user_name(number: int) -> str | None:
    """Return the name of a user by its number, None without an entry in the password database."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return None
