"""Measure the time to fill, read and query a history of many sessions.

The sessions are copies of the measurements of one experiment, with other names, moments and times.
They stand in a temporary folder and are removed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.common import seconds, spread
from escala.core.files import sha256_file
from escala.record import history
from escala.report.history.rows import rows, run_files
from escala.report.history.series import lines, series


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", type=Path, help="a folder results/NAME")
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    found = rows(run_files(arguments.experiment)).sessions.values()
    base = list(chain.from_iterable(found))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "history")
        written = [
            seconds(history.write, folder, session, measured)
            for session, measured in tqdm(
                _sessions(base, arguments.sessions), "write", arguments.sessions, unit=" sessions"
            )
        ]
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(
            f"{arguments.sessions} sessions of {len(base)} measurements, {size / 1e6:.1f} MB",
            flush=True,
        )
        _say("write a session", written)
        _read(folder, arguments.repeats)
        _commands(folder, arguments.repeats)


def _sessions(base: list[dict], count: int) -> Iterator[tuple[str, list[dict]]]:
    """Yield sessions a day apart, whose times vary by a tenth."""
    random = np.random.default_rng(0)
    for number in range(count):
        session = f"session-{number:05}"
        busy = float(np.exp(random.normal(0, 0.1)))
        yield session, [_copy(row, session, number, busy) for row in base]


def _copy(row: dict, session: str, days: int, factor: float) -> dict:
    spent = row["train_seconds_per_epoch"]
    return row | {
        "session": session,
        "run_sha256": f"{session}-{row['run_sha256']}",
        "started": (datetime.fromisoformat(row["started"]) + timedelta(days=days)).isoformat(),
        "train_seconds_per_epoch": spent and spent * factor,
    }


def _read(folder: Path, repeats: int) -> None:
    """Time the parts in one process: digests, reading, and each query on what was read."""
    paths = list(folder.iterdir())
    _repeat("digest all files", repeats, lambda: [sha256_file(path) for path in paths])
    _repeat("read the history", repeats, lambda: history.read(folder).close())
    with history.read(folder) as database:
        for name in history.QUERIES:
            sql = history.named_query(name)
            _repeat(f"query {name}", repeats, history.query, database, sql)
        own = "SELECT median((run->>'$.seconds.startup')::DOUBLE) FROM documents"
        _repeat("query a key of run.json", repeats, history.query, database, own)
        _repeat("mark changes", repeats, lambda: list(lines(series(database))))


def _commands(folder: Path, repeats: int) -> None:
    """Time whole commands, from the start of Python."""
    for arguments in (
        *(["query", name, "--csv"] for name in history.QUERIES),
        ["changes"],
        ["changes", "--quantity", "ratio"],
    ):
        call = [sys.executable, "-m", "scripts.history", *arguments]
        run = partial(
            subprocess.run,
            call,
            env=os.environ | {history.LOCATION: str(folder)},
            capture_output=True,
            check=True,
        )
        _repeat(f"scripts/history.py {' '.join(arguments)}", repeats, run)


def _repeat(what: str, repeats: int, work: Callable[..., object], *arguments: object) -> None:
    _say(what, [seconds(work, *arguments) for _ in range(repeats)])


def _say(what: str, spent: list[float]) -> None:
    print(f"{what}: {spread([1000 * each for each in spent])} ms", flush=True)


if __name__ == "__main__":
    main()
