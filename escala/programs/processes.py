"""The processes of a program: how many worked, which ranks they were, and which files they read.

Processes of Python report by themselves (`escala/hook/escala_processes.py`). The kernel tells about
all other processes, and about the core time of each process while it runs
(`escala.programs.child`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from escala.core.errors import InputError
from escala.core.proc import Usage
from escala.programs.copy import COPY
from escala.programs.environment import files
from escala.programs.program import Program

if TYPE_CHECKING:
    from escala.programs.child import Execution

#: A time without an import is work if it lasts at least this many seconds.
WORK_SECONDS = 0.5
#: A script that runs for this many seconds without an import has begun to train.
_ASKING_SECONDS = 20.0
#: A process or a thread works if it used this fraction of the core time of the busiest one, and
#: this many seconds.
_PART, _LEAST_SECONDS = 0.2, 0.2
#: Used cores are averaged over this many seconds, because the kernel counts whole ticks.
_WINDOW_SECONDS = 1.0
#: A process that only waits for its children uses less than this fraction of a core, and this core
#: time to start each child. It waits as long as its children run. On a busy machine it waits
#: longer: by this fraction, and by this many seconds.
_WAITING, _STARTS_SECONDS, _WAITS_PART, _WAITS_SECONDS = 0.1, 0.05, 0.5, 2.0


class ProcessReport(NamedTuple):
    """The report of a process of Python: `_facts` of `escala/hook/escala_processes.py`."""

    parent: int
    began: float
    ended: float
    imported: float
    imported_cores: float
    longest: float
    longest_after: float
    longest_cores: float
    asked: int
    rank: int
    world: int
    words: int
    importing: float
    worked: float


def places(
    variables: Mapping[str, str],
    environment: Mapping[str, str],
    rank_variables: Iterable[tuple[str, str]],
) -> Iterator[tuple[int, int]]:
    """Yield the rank and the number of ranks that a program set for one of its processes.

    Parameters
    ----------
    variables : the variables of the process.
    environment : the environment of the program. A rank in it is the rank of the whole program.
    rank_variables : pairs of variables that may hold the rank and the number of ranks.
    """
    for names in rank_variables:
        rank, world = (variables.get(name, "") for name in names)
        if rank.isdigit() and world.isdigit() and rank != environment.get(names[0]):
            yield int(rank), int(world)


def describe(folder: Path, execution: Execution) -> dict:
    """Return what the processes of a program did, as far as it is known.

    Parameters
    ----------
    folder : the folder of the reports of processes of Python.
    execution : the observations of the program, which may still run.

    Returns
    -------
    processes : the number of processes that worked; None if unknown.
    threads : whether a process had several threads at work.
    places : pairs of a rank and the number of ranks.
    cores : the most cores that were used at a time.
    core_seconds : the core seconds of all processes after their imports.
    python : whether a process of Python reported.
    ended : whether all processes of Python reported their ends.
    begun : whether the program ended, or all processes of Python began to train.
    idle : whether all processes of Python ended right after their imports.
    start_seconds : the seconds until the first process of Python had ended its imports.
    alike : a number for the words of the command, if the program certainly never asked which of
        several processes it is; else None.
    """
    reports, cores = _read(folder, execution.at), execution.by_process
    # Core time for the start of each process and its imports.
    starts = {
        number: report.longest_after if report.longest >= WORK_SECONDS else report.imported_cores
        for number, report in reports.items()
    }
    acting = {number: report for number, report in reports.items() if not _waits(number, reports)}
    # Core time of work. The kernel would add late imports, and the end of a process.
    work = {number: report.worked for number, report in acting.items() if report.ended}
    for number, (seconds, _) in cores.items():
        if number in acting.keys() - work.keys() or number not in reports:
            work[number] = max(0.0, seconds - starts.get(number, 0.0))
    most = max(work.values(), default=0.0)
    if most >= _LEAST_SECONDS:
        worked = {number for number, seconds in work.items() if seconds >= _PART * most}
        all_reported = worked <= reports.keys()
    else:
        # These processes sleep, wait for a device, or are quick.
        worked = {number for number, report in acting.items() if report.longest >= WORK_SECONDS}
        all_reported = cores.keys() <= reports.keys()
    further_threads = [cores[number][0] - cores[number][1] for number in worked & cores.keys()]
    first = min(acting.values(), key=lambda report: report.began, default=None)
    trained = all(report.ended or report.longest > _ASKING_SECONDS for report in reports.values())
    asked = any(report.asked for report in reports.values())
    used = [report.user_seconds + report.system_seconds for _, report in execution.used]
    joined = {(report.rank, report.world) for report in reports.values() if report.world}
    return {
        "processes": len(worked) or None,
        "threads": most >= _LEAST_SECONDS and max(further_threads, default=0.0) >= _PART * most,
        "places": sorted(joined or execution.places),
        "cores": _most_cores(execution.used),
        "core_seconds": max(0.0, max(used) - sum(starts.values())) if used else None,
        "python": bool(reports),
        "ended": all(report.ended for report in reports.values()),
        "start_seconds": first and first.began - execution.started + first.importing,
        "begun": trained or execution.code is not None,
        "idle": bool(acting)
        and all(
            report.longest < WORK_SECONDS and 0 <= report.ended - report.imported < WORK_SECONDS / 2
            for report in acting.values()
        ),
        "alike": min(report.words for report in reports.values())
        if reports and all_reported and trained and not asked
        else None,
    }


def _read(folder: Path, at: float) -> dict[int, ProcessReport]:
    """Return the report of each process. If the end is missing, it is the end of the program."""
    reports = {}
    for file in folder.glob("*.process"):
        try:
            report = ProcessReport(*json.loads(file.read_text(encoding="utf-8")))
            if not report.ended and at - report.imported > report.longest:
                # Its core time is unknown. It is taken as one full core.
                report = report._replace(
                    longest=at - report.imported,
                    longest_after=report.imported_cores,
                    longest_cores=at - report.imported,
                )
            reports[int(file.stem)] = report
        except (OSError, ValueError, TypeError):
            continue
    return reports


def _waits(number: int, reports: Mapping[int, ProcessReport]) -> bool:
    """Return whether a process only waits for processes that it started, as launchers do.

    One of several ranks always works: its children may load its rows while it waits for a device.
    """
    report = reports[number]
    started = [other for other in reports.values() if other.parent == number]
    lasted = [max(other.ended - other.began, other.longest) for other in started]
    return (
        bool(lasted and report.world < 2)
        and report.longest_cores < _WAITING * report.longest + _STARTS_SECONDS * len(lasted)
        and report.longest < (1 + _WAITS_PART) * max(lasted) + _WAITS_SECONDS
    )


def _most_cores(used: Sequence[tuple[float, Usage]]) -> float | None:
    """Return the most cores that were used at a time; None if that was never seen."""
    rates = []
    for place, (began, before) in enumerate(used):
        for ended, after in used[place + 1 :]:
            if ended - began >= _WINDOW_SECONDS:
                grown = after.since(before)
                rates.append((grown.user_seconds + grown.system_seconds) / (ended - began))
                break
    return max(0.0, *rates) if rates else None


class FileUse(NamedTuple):
    """The files that the processes of a program read, and their numbers of threads.

    Its processes of Python report them (`escala/hook/escala_processes.py`).

    Attributes
    ----------
    read : paths of the files that the processes read and did not change.
    threads : `OMP_NUM_THREADS` at the end of each process, without repeats.
    """

    read: list[str]
    threads: set[str]


def file_use(marks: Path, since: float) -> FileUse | None:
    """Return the file use of the processes of a program; None without a report.

    Parameters
    ----------
    marks : the folder of their marks. The copy of the program's folder beside it may be deleted.
    since : when the program began, in seconds since the epoch.
    """
    lines = [
        (line[:1], line[2:])
        for file in marks.glob("*.files")
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    if not lines:
        return None
    copy = str(marks.parent.resolve() / COPY)
    read, written = (
        {
            os.path.realpath(os.path.realpath(path).removeprefix(copy))
            for kind, path in lines
            if kind == wanted
        }
        for wanted in "rw"
    )
    unchanged = []
    for path in sorted(read - written):
        with suppress(OSError):
            if Path(path).is_file() and Path(path).stat().st_mtime < since:
                unchanged.append(path)
    return FileUse(unchanged, {value for kind, value in lines if kind == "t"})


def list_unlisted(
    read: Iterable[str], program: Program, paths: Iterable[str], folder: Path
) -> list[str]:
    """Return the files that a program read, and whose changes Escala would not notice.

    These files are neither declared files of the program nor data, and are in no cache and in no
    `.git`.

    Parameters
    ----------
    read : absolute paths, without links.
    paths : the paths of the dataset.
    folder : the folder of the run.

    Returns
    -------
    The paths of the files. Paths in the folder of the program are relative to it.
    """
    try:
        declared = {os.path.realpath(path) for path in files(program)}
    except InputError:  # A declared file is gone.
        declared = set()
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    passed_over = [os.path.realpath(path) for path in (folder, caches, *paths)]
    paths_unlisted = []
    for path in map(Path, read):
        is_passed_over = ".git" in path.parts or any(map(path.is_relative_to, passed_over))
        if str(path) in declared or is_passed_over:
            continue
        inside = path.is_relative_to(program.directory)
        paths_unlisted.append(
            path.relative_to(program.directory).as_posix() if inside else str(path)
        )
    return paths_unlisted
