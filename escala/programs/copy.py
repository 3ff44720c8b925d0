"""The copy of a program's folder in which a run works.

The copy is in the folder `COPY` at its absolute path, `COPY/home/me/mine`. Each folder above the
copy holds links to the content of the real folder, so `..` leads to the real files. A path without
`COPY` is the path of the original. Files are copied, the smallest first, until their sum is too
large. Larger files are links. While the program runs, the kernel holds a lease on each linked file
(man 2 fcntl, `F_SETLEASE`): a process that opens the file for writing waits, and is ended before it
can write.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from escala.core import environment
from escala.core.readable import size
from escala.programs.program import Program

#: The folder of the copy, beside the plan of a run.
COPY = "copy"
#: The most files and folders, and the most bytes, that are copied for each run.
MOST_ENTRIES, MOST_BYTES = 5_000, 2**30
#: The most entries of a folder above the copy. A folder with more gets no links, because each run
#: would have to make them.
MOST_LINKS = 1_000
#: The most files under a lease, because each lease takes a file descriptor.
_MOST_LEASES = 500
#: The endings of scripts. A script may look for files in its own folder.
_SCRIPT = re.compile(r".+\.(py|sh|bash|R|r|jl|lua|pl)")
#: Folders of this project and of Snakemake, which are not copied.
_LEFT_OUT = {".escala", ".snakemake"}
#: Files by which a folder of installed packages is recognised. Such folders are linked.
_INSTALLED = ("pyvenv.cfg", "conda-meta")
#: The folders of `.git` that are copied. Objects are linked: they may be many, and new objects do
#: no harm.
_COPIED_OF_GIT = {"refs", "logs"}
#: Folders that Python and git write by themselves.
_BY_THE_WAY = {"__pycache__", ".git"}
#: An absolute path within a text.
_PATH = re.compile(r"(?<![.~}])/(?!/)[^\s'\":;,=]+")
#: Variables that keep their values: places of programs, of the user and of temporary files.
_KEPT_VARIABLES = re.compile(r"PATH|HOME|TMP|TMPDIR|TEMP|VIRTUAL_ENV|(LD|CONDA|XDG|ESCALA)_\w+")


@dataclass(frozen=True)
class CopyPaths:
    """A translation of absolute paths of the original to paths of its copy.

    Attributes
    ----------
    into : the folder of the copy.
    roots : the folders that are copied.
    without : folders inside the roots that are not copied.
    """

    into: str = ""
    roots: Sequence[str] = ()
    without: Sequence[str] = ()

    def text(self, text: str) -> str:
        """Return a text in which paths of the copy replace paths of the original."""
        return _PATH.sub(lambda match: self.path(match[0]), text)

    def path(self, path: str) -> str:
        """Return the path of a file in the copy, or the same path if the file is not copied."""
        folder, name = os.path.split(path)
        real = os.path.join(os.path.realpath(folder), name)  # noqa: PTH118 - keeps a last slash
        is_inside = Path(real).is_relative_to
        is_copied = any(map(is_inside, self.roots)) and not any(map(is_inside, self.without))
        return f"{self.into}{real}" if is_copied else path

    def program(self, program: Program) -> Program:
        """Return a program with the paths of the copy."""
        return replace(
            program,
            directory=Path(f"{self.into}{program.directory}"),
            command=tuple(map(self.text, program.command)),
            lines=tuple(map(self.text, program.lines)),
        )

    def variables(self, originals: Mapping[str, str]) -> dict[str, str]:
        """Return variables with paths of the copy. Some keep their values (`_KEPT_VARIABLES`)."""
        return {
            name: value if _KEPT_VARIABLES.fullmatch(name) else self.text(value)
            for name, value in originals.items()
        }


class Copy:
    """A copy of the folders of a program, which `make` makes.

    The folder in which the program is started is copied, or the whole git repository around it. The
    folder of a script elsewhere is copied, too.

    Parameters
    ----------
    program : the program as it was declared.
    into : the absolute path of the folder of the copy.
    without : the folder of the run, which is not copied.

    Attributes
    ----------
    roots : the folders that are copied.
    copied : the files to copy.
    large : files that are linked, because the sum of all files is too large; the smallest first.
    whole : folders that are linked, because they hold too many files.
    crowded : folders above the copy with more than `MOST_LINKS` entries. Relative paths into them
        do not work.
    paths : the translation of paths.
    """

    def __init__(self, program: Program, into: Path, without: Path):
        self._program, self._into = program, into
        self.copied, self.large, self.whole = [], [], []
        self._folders, self._links, self._without = [], [], [without]
        self._files: list[tuple[int, Path]] = []
        self._states: dict[Path, tuple[int, int]] = {}
        self._entries_left = MOST_ENTRIES
        self.roots = _roots(program)
        for root in self.roots:
            self._take(root)
        starts = (program.directory / "-", *self.roots)
        above = {path for start in starts for path in start.parents}
        self._above = {p for p in above if not any(map(p.is_relative_to, self.roots))}
        self.crowded = set()
        for folder in self._above:
            with suppress(OSError):
                if next(islice(os.scandir(folder), MOST_LINKS, None), None):
                    self.crowded.add(folder)
        taken = 0
        for length, path in sorted(self._files):
            taken += length
            (self.copied if taken <= MOST_BYTES else self.large).append(path)
        self.paths = CopyPaths(
            str(into), [*map(str, self.roots)], [*map(str, self._without), *map(str, self.whole)]
        )

    def _take(self, folder: Path) -> None:
        """Add a folder with its content, or a link to the folder if its content is too large."""
        is_root = folder in self.roots
        try:
            most = None if is_root else max(self._entries_left, 0) + 1
            entries = [*islice(os.scandir(folder), most)]
        except OSError:  # The program may not read this file either.
            self._links.append(folder)
            return
        if len(entries) > self._entries_left and not is_root:
            self.whole.append(folder)
            return
        self._entries_left -= len(entries)
        self._folders.append(folder)
        inner = []
        for entry in entries:
            path = folder / entry.name
            if entry.is_dir(follow_symlinks=False):
                if _is_left_out(path) or path in self._without:
                    self._without.append(path)
                elif _is_linked(path):
                    self._without.append(path)
                    self._links.append(path)
                else:
                    inner.append(path)
            elif entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    self._files.append((entry.stat(follow_symlinks=False).st_size, path))
            else:
                self._links.append(path)
        counts = {path: _count_entries(path, self._entries_left) for path in inner}
        for path in sorted(inner, key=counts.get):
            self._take(path)

    def make(self) -> None:
        """Make the copy. Files that vanish meanwhile are left out.

        Raises
        ------
        OSError : the disk is full, or the folder of the copy cannot be written to.
        """
        for folder in (*sorted(self._above), *self._folders):
            self._at(folder).mkdir(parents=True, exist_ok=True)
        for folder in self._above - self.crowded:
            with suppress(PermissionError):
                for entry in os.scandir(folder):
                    path = folder / entry.name
                    if path not in self._above and path not in self.roots:
                        self._link(path)
        for path in self.copied:
            try:
                shutil.copy2(path, self._at(path))
                self._states[self._at(path)] = _state(self._at(path))
            except FileNotFoundError:
                continue
            except PermissionError:  # The program may not read this file either.
                self._link(path)
        for path in (*self.large, *self.whole, *self._links):
            self._link(path)

    def _at(self, path: Path) -> Path:
        return Path(f"{self._into}{path}")

    def _link(self, path: Path) -> None:
        """Link to a path. A link is copied; an absolute target becomes its path in the copy."""
        try:
            target = str(path.readlink())
        except OSError:
            target = str(path)
        else:
            target = self.paths.path(target) if Path(target).is_absolute() else target
        self._at(path).symlink_to(target)

    def list_written(self) -> list[str]:
        """Return the topmost files and folders of the copy in which a program wrote."""
        names_written = set()
        for root in self.roots:
            for place, _, names in os.walk(self._at(root)):
                for path in (Path(place, name) for name in names):
                    before = Path(str(path).removeprefix(str(self._into)))
                    if path.is_symlink() or _BY_THE_WAY.intersection(before.parts):
                        continue
                    with suppress(OSError):
                        if self._states.get(path) != _state(path):
                            top, *below = before.relative_to(root).parts
                            names_written.add(f"{top}/" if below else top)
        return sorted(names_written)

    @contextmanager
    def guard(self) -> Iterator[Callable[[], str | None]]:
        """Yield a function that returns why the program must end: it wants to write a linked file.

        The function returns None while there is no reason. It always returns None if the file
        system has no leases, such as a network file system.
        """
        with ExitStack() as stack:
            leases = self._leases(stack)

            def why_end() -> str | None:
                for path, lease in leases.items():
                    if fcntl.fcntl(lease, fcntl.F_GETLEASE) != fcntl.F_RDLCK:
                        return (
                            f"the program opened {path} ({size(os.fstat(lease).st_size)}) for "
                            "writing, and was ended before it wrote. A run works in a copy of its "
                            f"folder, and more than {size(MOST_BYTES)} are not copied. Remedy: let "
                            "it write to {output}, move the file out of the folder, or write "
                            "in_place: true to let it change its files"
                        )
                return None

            yield why_end

    def _leases(self, stack: ExitStack) -> dict[Path, int]:
        """Return the descriptors of leases by linked file, if the file system has leases."""
        leases = {}
        for path in self.large[-_MOST_LEASES:]:
            with suppress(OSError):
                lease = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, lease)
                # By default a lease sends a signal that ends this process. The signal set here is
                # ignored.
                fcntl.fcntl(lease, fcntl.F_SETSIG, signal.SIGURG)
                fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_RDLCK)
                leases[path] = lease
        return leases

    def list_shared(self) -> Iterator[str]:
        """Describe files and folders that are not copied, and that a program could change."""
        with ExitStack() as stack:
            leases = self._leases(stack)
            for path in self.large:
                if path not in leases:
                    yield f"{path} ({size(path.stat().st_size)})"
        yield from (f"{path} (it holds many files)" for path in self.whole)
        for path in self._links:
            target = Path(os.path.realpath(path))  # Links may form a circle.
            if path.is_symlink() and not any(map(target.is_relative_to, self.roots)):
                yield f"{path} (it leads to {target})"


def remove(folder: Path) -> None:
    """Remove a copy, also folders that its program made read-only."""
    for place, folders, _ in os.walk(folder):
        for path in (Path(place, name) for name in folders):
            if not path.is_symlink():
                with suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _state(file: Path) -> tuple[int, int]:
    return file.stat().st_size, file.stat().st_mtime_ns


def _roots(program: Program) -> list[Path]:
    """Return the folders to copy: where the program is started, and where its script is."""

    def may_be_copied(folder: Path) -> bool:
        # A folder around the homes of users is not copied.
        return folder == _home() or not _home().is_relative_to(folder)

    root = program.directory
    for place in (root, *root.parents):
        if _home().is_relative_to(place):
            break
        if (place / ".git").exists():  # The whole git repository, if it is small enough.
            root = place if _count_entries(place, MOST_ENTRIES) <= MOST_ENTRIES else root
            break
    roots = [root] if may_be_copied(root) else []
    for word in program.command:
        path = Path(os.path.normpath(program.directory / word))
        if _SCRIPT.fullmatch(word) and path.is_file() and os.access(path.parent, os.W_OK):
            folder = path.parent.resolve()
            if may_be_copied(folder) and not any(map(folder.is_relative_to, roots)):
                roots = [root for root in roots if not root.is_relative_to(folder)] + [folder]
    return roots


def _count_entries(folder: Path, most: int) -> int:
    """Return how many files and folders of a folder would be copied, or a number above `most`."""
    number = 0
    for place, folders, files in os.walk(folder):
        number += len(folders) + len(files)
        if number > most:
            break
        paths = (Path(place, name) for name in folders)
        folders[:] = [p.name for p in paths if not (_is_left_out(p) or _is_linked(p))]
    return number


def _is_left_out(folder: Path) -> bool:
    return folder.name in _LEFT_OUT or environment.is_results(folder)


def _is_linked(folder: Path) -> bool:
    """Return whether a folder is always linked: installed packages, and hidden folders at home."""
    return (
        folder.name == "node_modules"
        or any((folder / name).exists() for name in _INSTALLED)
        or (folder.parent.name == ".git" and folder.name not in _COPIED_OF_GIT)
        or (folder.name.startswith(".") and _home().is_relative_to(folder.parent))
    )


def _home() -> Path:
    return Path.home().resolve()
