"""Paths in an experiment, and the variables in them.

The workflow calls these functions at every start, so this module imports no heavy library.
"""

import os
import shlex
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from string import Template

from escala.core.environment import require_plain
from escala.core.errors import InputError

#: Files and folders that operating systems add to a user's folder, in small letters.
_LEFT_BY_SYSTEMS = ("thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx")

#: A command names at most this number of files.
_MOST_NAMED = 3


def is_hidden(path: Path) -> bool:
    """Return whether a file or folder was made by the system: `._A.fasta`, `Thumbs.db`, …."""
    return path.name.startswith(".") or path.name.lower() in _LEFT_BY_SYSTEMS


def expand_path(text: str, where: str) -> str:
    """Return a path with environment variables and `~` expanded; see `expand`.

    A relative path that begins with `-` is made absolute, so that no program takes it for an
    option. A path with braces, and `~` of an unknown user, are refused.
    """
    full = expand(text, where)
    require_plain(full, where, "rename the folder, or name a link to it")
    try:
        path = Path(full).expanduser()
    except RuntimeError:
        raise InputError(where, text, "the home of the user is not known", "set HOME") from None
    return str(path.absolute() if path.parts[:1] and path.parts[0].startswith("-") else path)


def require_past(where: str, paths: Iterable[str | Path]) -> None:
    """Refuse files with a date in the future: results would look older than these inputs."""
    # Times by path.
    future: dict[Path, float] = {}
    for path in map(Path, paths):
        if os.path.lexists(path):
            times = [path.lstat().st_mtime, *([path.stat().st_mtime] if path.exists() else [])]
            if max(times) > time.time():
                future[path] = max(times)
    if future:
        first, *others = future
        more = f", as {len(others)} more are," if others else ""
        shown = datetime.fromtimestamp(future[first]).isoformat(" ", "seconds")
        reason = f"is dated {shown}{more} in the future, so all that is made from it looks older"
        touch = shlex.join(["touch", *map(str, future)])
        if len(future) > _MOST_NAMED:
            folder = os.path.commonpath([path.parent.absolute() for path in future])
            touch = f"find {shlex.quote(folder)} -newermt now -exec touch {{}} +"
        raise InputError(where, str(first), reason, f"date it now: {touch}; or use a copy")


def expand(text: str, where: str) -> str:
    """Return `text` with `$NAME` and `${NAME}` taken from the environment (`$$` is a `$`).

    A variable that is not set or is empty is refused.
    """
    try:
        return Template(text).substitute({k: v for k, v in os.environ.items() if v})
    except KeyError as error:
        reason = f"the environment variable {error.args[0]} is not set"
        raise InputError(where, text, reason, f"export {error.args[0]}") from None
    except ValueError:
        raise InputError(where, text, "a $ without a name", "write $NAME, or $$ for $") from None
