"""Read the measurements of runs from their files, of every format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from escala.record.comparable import CONFIGURATION, Verdict, comparable
from escala.record.schema import read_result, read_session
from escala.strategies.knobs import renamed


def read_run(path: str | Path) -> dict:
    """Return the content of a run.json, converted from older formats to the present one.

    Format 1 had only workloads trained by steps, which were called `gradient` before format 7.
    Before format 6 only the machine of the launching host was recorded: the other nodes count as
    machines of its kind. Before format 8 the `validation_accuracy` of an epoch was called
    `test_accuracy`, and its side was not recorded. Knobs get their present names.

    Raises
    ------
    InputError : the file is incomplete.
    """
    return converted(read_result(Path(path)))


def converted(run: dict) -> dict:
    """Return the content of a run.json of any format as `read_run` does."""
    run = {"link": None} | run
    if run["format"] == 1 or run["training"]["kind"] == "gradient":
        run["training"]["kind"] = "steps"
    run["knobs"] = renamed(run["knobs"])
    if run["format"] < 8:
        run["training"]["validated_on"] = None
        for epoch in run["epochs"]:
            epoch["validation_accuracy"] = epoch.pop("test_accuracy")
    if run["format"] < 6:
        nodes = run["ranks"].get("hosts") or [run["machine"]["hostname"]]
        run["ranks"] |= {"hosts": nodes, "machines": [run["machine"]] * len(nodes)}
    return run


def measurements(run_files: Iterable[str | Path]) -> list[dict]:
    """Read the current measurement of every run, and its older ones from `sessions/` beside it.

    An older one that cannot be read is named, and left out.

    Returns
    -------
    The content of each `run.json` with the keys `file`, `current` (it is the one in run.json),
    `comparable` (with the current one) and `incomparable_because` (the reason, or None).
    """
    found = []
    for path in map(Path, run_files):
        current = read_run(path)
        found.append(_marked(current, path, current))
        found += [
            _marked(converted(run), older, current)
            for older in sorted(path.parent.glob("sessions/*.json"))
            if older.stem != current["session"] and (run := read_session(older))
        ]
    return found


def earlier(history_files: Sequence[Path], found: Sequence[dict]) -> list[dict]:
    """Read from a history the timing runs of further sessions of some runs.

    Parameters
    ----------
    history_files : the files of one history; none is an empty one.
    found : the result of `measurements`.

    Returns
    -------
    Their content with the keys of `measurements`; `file` is the first file of the history. Only
    runs that ended ok, are comparable with the current one of their configuration and repeat, and
    are not among `found`.
    """
    current = {_name(run): run for run in found if run["current"] and run["status"] == "ok"}
    if not history_files or not current:
        return []
    # DuckDB is imported only where there is a history.
    from escala.record import history

    known = {(*_name(run), run["session"]) for run in found}
    with history.read(history_files[0].parent) as database:
        texts = database.execute(
            "SELECT run FROM documents SEMI JOIN (FROM measurements WHERE list_contains(?, dataset)"
            " AND list_contains(?, workload) AND pair IS NULL) USING (run_sha256)",
            [sorted({str(run[key]) for run in found}) for key in ("dataset", "workload")],
        ).fetchall()
    runs = (
        _marked_earlier(converted(json.loads(text)), current, history_files[0]) for (text,) in texts
    )
    return [run for run in runs if run["comparable"] and (*_name(run), run["session"]) not in known]


def _name(run: dict) -> tuple:
    return (*(run[key] for key in CONFIGURATION), run["repeat"])


def _marked_earlier(run: dict, current: dict, path: Path) -> dict:
    of_today = current.get(_name(run))
    verdict = comparable(run, of_today) if of_today else Verdict(False, "not of this experiment")
    return run | {
        "file": str(path),
        "current": False,
        "comparable": verdict.ok,
        "incomparable_because": verdict.reason,
    }


def _marked(run: dict, path: Path, current: dict) -> dict:
    verdict = Verdict(True) if run is current else comparable(run, current)
    return run | {
        "file": str(path),
        "current": run is current,
        "comparable": verdict.ok,
        "incomparable_because": verdict.reason,
    }
