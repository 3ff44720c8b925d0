"""Run a program as a child of this process, read its output, and end all its processes."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from escala.core import children, proc
from escala.core.errors import Failed
from escala.core.files import read_json
from escala.core.proc import Usage
from escala.core.readable import size
from escala.hook.escala_seen import end_window
from escala.programs import printed, processes
from escala.programs.marks import OutputSearch
from escala.programs.program import Program

log = logging.getLogger("escala")

#: Bytes of the output of a program that are kept: at its beginning, and at its end.
KEPT_BYTES, LAST_BYTES = 2**22, 2**14
#: Seconds in which processes that a program started must end after the program.
GRACE_SECONDS = 2.0
#: A program that still runs this many seconds after the last steps of its window is ended.
WINDOW_GRACE_SECONDS = 15.0
#: Seconds to wait for processes after SIGKILL. SIGKILL does not end a process that waits for a file
#: server.
KILL_SECONDS = 10.0
#: Core seconds that the search for the patterns may take in one piece of output.
SEARCH_SECONDS = 1.0
#: Reading the output takes time on the program's cores. A note tells the user if reading takes more
#: than this fraction of the run, and more than this many seconds.
_MOST_READING, _LEAST_READING_SECONDS = 0.02, 0.1
_READ_BYTES = 2**16
_POLL_SECONDS = 0.5
_TELL_SECONDS = 1.5
#: Seconds that a program may need after Ctrl-C. All processes are killed 3 s after a run is ended.
_INTERRUPT_SECONDS = 1.5
_TERMINAL = (24, 120)  # lines, columns
#: Ctrl-D ends the input of a terminal. It is repeated, because some programs read on after it.
_NO_INPUT = b"\4" * 64
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
#: Errors in the last lines of a program, if the remedy is a key or a placeholder of Escala.
_HINTS = (
    (
        r"ModuleNotFoundError|ImportError|No module named",
        "Its interpreter lacks a module. Remedy: name the one that has it: "
        "environment: {python: DIR/bin/python}, or --python DIR/bin/python",
    ),
    (
        r"EOF when reading a line",
        "It asks for input, and gets none here. Remedy: give what it asks for as an argument",
    ),
    (
        r"not a tty|inappropriate ioctl|\bstty\b",
        "It asks for a terminal, as for its size. Remedy: terminal: true, or --terminal",
    ),
    (
        r"Address already in use|EADDRINUSE",
        "Remedy: take the port of MASTER_PORT or {port}, which is free",
    ),
    (
        r"Duplicate GPU detected|invalid device ordinal",
        "There are more processes than GPUs. Remedy: as many as GPUs, or fewer",
    ),
)
_HINT_LINES = 5


@dataclass
class Execution:
    """Exit code, times and processes of a program. The program may still run.

    Attributes
    ----------
    code : the exit code, or the negative number of a signal; None while the program runs.
    started, at : when the program began, and when it ended or was last seen, by the monotonic
        clock.
    left, load : the number of processes that it left running, and how many cores they used before
        Escala ended them.
    cores : the cores on which the program and its descendants were allowed to run, as far as was
        seen.
    used : the usage of the program and its descendants, measured every `_POLL_SECONDS`, with the
        time by the monotonic clock.
    by_process : by process id, the core seconds of each process and of its first thread when it was
        last seen.
    places : rank and number of ranks of each process, if the program set them.
    rank_variables : pairs of variables: one holds the rank, the other the number of ranks.
    """

    started: float
    code: int | None = None
    at: float = 0.0
    left: int = 0
    load: float = 0.0
    cores: set[int] = field(default_factory=set)
    used: list[tuple[float, Usage]] = field(default_factory=list)
    by_process: dict[int, tuple[float, float]] = field(default_factory=dict)
    places: set[tuple[int, int]] = field(default_factory=set)
    rank_variables: Collection[tuple[str, str]] = ()

    def observe(self, process: int, environment: Mapping[str, str]) -> None:
        """Record what a program, started as `process`, and its descendants do."""
        tree, self.at = proc.family_usage(process), time.monotonic()
        if tree:
            self.used.append((self.at, proc.total_usage(tree)))
        for process_usage in tree:
            seconds = process_usage.itself.user_seconds + process_usage.itself.system_seconds
            self.by_process[process_usage.pid] = seconds, process_usage.first_thread
            with suppress(OSError, psutil.Error):
                self.cores |= os.sched_getaffinity(process_usage.pid)
                variables = psutil.Process(process_usage.pid).environ()
                places = processes.places(variables, environment, self.rank_variables)
                self.places |= set(places)


@dataclass
class WindowEnd:
    """When the window of a run is over (`escala/hook/escala_seen.py`).

    Attributes
    ----------
    file : once it is there, the program ends by itself at a step, or it is ended.
    is_over : whether the lines of this program end the window.
    since : when the file was first there, by the monotonic clock: a file server has another clock.
    """

    file: Path
    is_over: Callable[[], bool]
    since: float | None = None

    def ends_program(self) -> bool:
        """Write the file if the window is over; return whether the program is to be ended."""
        if not self.file.exists():
            if not self.is_over():
                return False
            end_window(self.file, None)
        if self.since is None:
            self.since = time.monotonic()
        end, over = read_json(self.file), time.monotonic() - self.since
        # The last steps, also of a slower process.
        return end["last"] is None or over > WINDOW_GRACE_SECONDS + 2 * end["seconds"]


def run(
    program: Program,
    command: list[str],
    environment: Mapping[str, str],
    mark: str,
    output: Output,
    tell: Callable[[Execution], None] = lambda _: None,
    rank_variables: Collection[tuple[str, str]] = (),
    window: WindowEnd | None = None,
) -> Execution:
    """Run a command to its end, without input. All its processes end with this process.

    Parameters
    ----------
    mark : a variable in the environment of this program only. Its value is different in each rank.
    tell : is called with the `Execution` after some seconds, and then at doubling intervals.
    rank_variables : see `Execution`.

    Raises
    ------
    Failed : the program cannot be started, or its patterns take too long.
    """
    others = {child.pid for child in psutil.Process().children()}
    read, write = pty.openpty() if program.terminal else os.pipe()
    if program.terminal:
        fcntl.ioctl(write, termios.TIOCSWINSZ, struct.pack("4H", *_TERMINAL, 0, 0))
        os.write(read, _NO_INPUT)
    log.info("starts %s in %s", command, program.directory)
    with children.guard_processes(f"{mark}={environment[mark]}"):
        # Orphans of the program become children of this process, even after `setsid`.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        execution = Execution(time.monotonic(), rank_variables=rank_variables)
        try:
            source = write if program.terminal else subprocess.DEVNULL
            child = children.start(command, environment, write, program.directory, source)
        except OSError as error:
            os.close(read)
            path = shutil.which(command[0], path=environment.get("PATH"), mode=os.F_OK)
            why = why_not_started(program.directory / (path or command[0]), error)
            raise Failed(f"{command[0]} cannot be started: {why}") from None
        finally:
            os.close(write)
        with _end_with(child, others, output):
            try:
                execution.at = _read_all(read, child, output, execution, environment, tell, window)
                execution.code = child.wait()
                # Other ranks fail because this rank failed, and must not be seen first.
                grace = 0.0 if execution.code else GRACE_SECONDS
                execution.left, execution.load = _end_left(others, grace)
            finally:
                if child.poll() is None:
                    children.stop([child])
                    _end_left(others, 0.0)
                os.close(read)
    return execution


def why_not_started(program: Path, error: OSError) -> str:
    """Return why a program cannot be started, and the remedy. Its first line may tell the reason.

    Parameters
    ----------
    program : the path of the program, or where it is looked for.
    """
    first = ""
    with suppress(OSError), open(program, "rb") as file:
        first = file.readline(4096).decode(errors="replace")
    if error.errno == errno.ENOENT and first.startswith("#!"):
        interpreter = first[2:].strip(" \t\n").split(" ")[0]
        of_windows = interpreter.endswith("\r")
        remedy = f"sed -i 's/\\r$//' {program}" if of_windows else "correct it"
        return f"its first line asks for {interpreter!r}, which is not there. Remedy: {remedy}"
    if error.errno == errno.EACCES and program.is_file():
        return f"it may not be executed. Remedy: chmod +x {program}"
    if error.errno == errno.ENOEXEC:
        return "its first line names no interpreter. Remedy: begin it with one, as #!/bin/sh"
    return (
        f"{error.strerror}. Remedy: name a program on the PATH, or an interpreter: environment: "
        "{python: DIR/bin/python}, or --python DIR/bin/python; what only a shell knows: "
        "sh -c 'COMMAND'"
    )


def how_ended(code: int, last: str) -> str:
    """Return how a program ended, and a possible cause.

    Parameters
    ----------
    code : the exit code of the program, or the negative number of a signal.
    last : the last lines of the program.
    """
    if code < 0:
        how = f"signal {-code} ({signal.strsignal(-code) or 'unknown'})"
    else:
        # A shell ends with this code if a signal ended its last command.
        name = signal.strsignal(code - 128) if 128 < code <= 128 + 64 else None
        how = f"exit code {code}" + (f" (of signal {code - 128}, {name})" if name else "")
    lines = "\n".join(printed.lines_with_words(last)[-_HINT_LINES:])
    hints = (words for pattern, words in _HINTS if re.search(pattern, lines, re.IGNORECASE))
    return ". ".join([how, *hints][:2])


@contextmanager
def _end_with(child: subprocess.Popen, others: set[int], output: Output) -> Iterator[None]:
    """End the program and all its processes if a signal asks this process to end.

    The program gets SIGINT first, so that it can remove its locks. For example, the next call of
    the program would wait for ever for a lock in a cache of the user.
    """

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        output.end_log()
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(child.pid, signal.SIGINT)
            child.wait(_INTERRUPT_SECONDS)
        children.stop([child])
        _end_left(others, 0.0)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _read_all(
    source: int,
    child: subprocess.Popen,
    output: Output,
    execution: Execution,
    environment: Mapping[str, str],
    tell: Callable[[Execution], None],
    window: WindowEnd | None,
) -> float:
    """Read the output of a program until the program ends; return the time of its end.

    Processes that the program leaves behind may hold the output open, and write to it for ever.
    `execution` records what the program's processes do. `tell` gets it.
    """
    end, closed_at_end = os.pipe()
    times: list[float] = []

    def wait() -> None:
        child.wait()
        times.append(time.monotonic())
        os.close(closed_at_end)

    def read() -> bool:
        """Read the available output, and return whether the output goes on."""
        try:
            data = os.read(source, _READ_BYTES)
        except OSError:  # No process has the terminal open any more.
            data = b""
        if data:
            output.add(data, time.monotonic())
        return bool(data)

    threading.Thread(target=wait, daemon=True).start()
    sources, before, due = [source, end], 0.0, _TELL_SECONDS
    try:
        while True:
            ready, _, _ = select.select(sources, [], [], _POLL_SECONDS)
            now = time.monotonic()
            if now - before >= _POLL_SECONDS:
                before = now
                execution.observe(child.pid, environment)
                if now - execution.started > due:
                    due *= 2
                    tell(execution)
                if window and window.ends_program():
                    children.stop([child], GRACE_SECONDS)
            if source in ready and not read():
                sources.remove(source)
            if end in ready:
                while source in sources and select.select([source], [], [], 0)[0] and read():
                    if time.monotonic() - times[0] > GRACE_SECONDS:
                        break
                return times[0]
    finally:
        os.close(end)


def _end_left(others: set[int], grace_seconds: float) -> tuple[int, float]:
    """End the remaining processes of a program after some time.

    `others` are the children of this process that do not belong to the program.

    Returns
    -------
    The number of ended processes, and how many cores they used until then.
    """
    began = time.monotonic()
    before: dict[int, float] = {}
    used: dict[int, float] = {}
    # Orphans become children of this process: repeat until none is left.
    while left := [p for p in psutil.Process().children(recursive=True) if p.pid not in others]:
        for process in left:
            with suppress(psutil.Error, ChildProcessError):
                if process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)
                elif time.monotonic() > began + grace_seconds:
                    seconds = sum(process.cpu_times()[:4])
                    used[process.pid] = seconds - before.get(process.pid, seconds)
                    process.kill()
                else:
                    before.setdefault(process.pid, sum(process.cpu_times()[:4]))
        if time.monotonic() > began + grace_seconds + KILL_SECONDS:
            break
        time.sleep(0.01)
    return len(used), sum(used.values()) / max(grace_seconds, 0.01)


class Output:
    """The output of a program. Its beginning and its end are written to the log of the rank.

    Attributes
    ----------
    marks : the marks in lines that the patterns of the program match.
    last : the last lines.
    """

    def __init__(self, program: Program):
        self.marks = OutputSearch(program.epoch_ends, program.step_ends)
        self._bytes, self._end = 0, b""
        self._cores_at_begin, self._began = time.process_time(), time.monotonic()
        self._last, self._silence = self._began, 0.0

    def add(self, data: bytes, now: float) -> None:
        """Add output that was read at a time; raise `Failed` if the patterns take too long."""
        self._silence, self._last = max(self._silence, now - self._last), now
        sys.stdout.flush()
        os.write(1, data[: max(0, KEPT_BYTES - self._bytes)])
        self._bytes += len(data)
        self._end = (self._end + data)[-LAST_BYTES:]
        with self._limit_search():
            self.marks.feed(data, now)

    @contextmanager
    def _limit_search(self) -> Iterator[None]:
        """End a search and raise `Failed` if a pattern tries too many ways to match."""

        def stop(*_: object) -> None:
            named = (
                f"{key}_ends {pattern.pattern!r}" for key, pattern in self.marks.patterns.items()
            )
            raise Failed(
                f"{' or '.join(named)} takes more than {SEARCH_SECONDS:.0f} s for some lines: it "
                "tries too many ways to match. Remedy: do not repeat what is repeated, as (a+)+"
            )

        if not self.marks.patterns:
            yield
            return
        signal.signal(signal.SIGVTALRM, stop)
        signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def end_log(self) -> None:
        """Write the end of the output. Its beginning is already written."""
        if (more := self._bytes - KEPT_BYTES) > 0:
            remark = f"\n… {size(self._omitted)} are left out …\n" if self._omitted else ""
            os.write(1, remark.encode() + self._end[-more:])

    def close(self) -> None:
        with self._limit_search():
            self.marks.end()
        self.end_log()
        os.write(1, b"\n")
        spent = time.process_time() - self._cores_at_begin
        part = spent / (time.monotonic() - self._began)
        self._reading = part if spent > _LEAST_READING_SECONDS else 0.0

    def silence(self, at: float) -> float:
        """Return the longest time without output of a program that ended at a time."""
        return max(self._silence, at - self._last)

    @property
    def _omitted(self) -> int:
        return max(0, self._bytes - KEPT_BYTES - LAST_BYTES)

    @property
    def notes(self) -> list[str]:
        """Notes on the output, for the user."""
        notes = list(self.marks.notes)
        if self._omitted:
            notes.append(
                f"wrote {size(self._bytes)} of output, of which {size(self._omitted)} are left out"
            )
        if self._reading > _MOST_READING:
            notes.append(
                f"reading its output took {self._reading:.0%} of the time of one of its cores: let "
                "it write less, or to a file"
            )
        return notes

    @property
    def last(self) -> str:
        return printed.text(self._end)
