"""Read the measurements of runs, of the present session, of older sessions and of a history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from escala.analysis.comparable import CONFIGURATION, refusal
from escala.record.schema import FORMAT, read_result, read_session
from escala.runtime.layout import with_layout


def read_run(path: str | Path) -> dict:
    """Return the content of a run.json, with its path as `file`.

    Raises
    ------
    InputError : the file is incomplete, or of another format.
    """
    return read_result(Path(path)) | {"file": str(path)}


def measurements(run_files: Iterable[str | Path]) -> list[dict]:
    """Read the current measurement of every run, and its older measurements from `sessions/`.

    An older measurement that cannot be read is left out. A line on standard error names its file.

    Returns
    -------
    The content of each file with the keys `file`, `current` (whether it is the `run.json`),
    `comparable` (with the current measurement) and `incomparable_because` (the reason, or None).
    """
    runs = []
    for path in map(Path, run_files):
        current = read_run(path)
        runs.append(_label(current, path, current))
        runs += [
            _label(run, older, current)
            for older in sorted(path.parent.glob("sessions/*.json"))
            if older.stem != current["session"] and (run := read_session(older))
        ]
    return runs


def read_earlier(history_files: Sequence[Path], measured: Sequence[dict]) -> list[dict]:
    """Read from a history the timing runs of the same configurations in other sessions.

    Parameters
    ----------
    history_files : the files of one history; empty if there is no history.
    measured : the result of `measurements`.

    Returns
    -------
    The content of these runs with the keys of `measurements`; `file` is the first file of the
    history. A run is left out if it is among `measured`. It must also be comparable with the
    current run of its configuration and repeat, and this current run must have ended ok.
    """
    current = {_run_key(run): run for run in measured if run["current"] and run["status"] == "ok"}
    if not history_files or not current:
        return []
    # DuckDB is imported only where there is a history.
    from escala.analysis import history

    measured_keys = {(*_run_key(run), run["session"]) for run in measured}
    with history.read(history_files[0].parent) as database:
        texts = database.execute(
            "SELECT run FROM documents SEMI JOIN (FROM measurements WHERE list_contains(?, dataset)"
            " AND list_contains(?, workload) AND series IS NULL) USING (run_sha256)",
            [sorted({str(run[key]) for run in measured}) for key in ("dataset", "workload")],
        ).fetchall()
    earlier = []
    for (text,) in texts:
        run = json.loads(text)
        if run["format"] != FORMAT:
            continue
        run = with_layout(run)
        run = _label(run, history_files[0], current.get(_run_key(run)))
        if run["comparable"] and (*_run_key(run), run["session"]) not in measured_keys:
            earlier.append(run)
    return earlier


def _run_key(run: dict) -> tuple:
    """Return the values that identify a run in every session."""
    return (*(run[key] for key in CONFIGURATION), run["repeat"])


def _label(run: dict, path: Path, current: dict | None) -> dict:
    reason = None
    if run is not current:
        reason = refusal(run, current) if current else "not of this experiment"
    return run | {
        "file": str(path),
        "current": run is current,
        "comparable": reason is None,
        "incomparable_because": reason,
    }
