"""Read the measurements of runs from their files, of every format."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from escala.record.comparable import Verdict, comparable
from escala.record.schema import read_result
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
    run = {"link": None} | read_result(Path(path))
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
            _marked(read_run(older), older, current)
            for older in sorted(path.parent.glob("sessions/*.json"))
            if older.stem != current["session"]
        ]
    return found


def _marked(run: dict, path: Path, current: dict) -> dict:
    verdict = Verdict(True) if run is current else comparable(run, current)
    return run | {
        "file": str(path),
        "current": run is current,
        "comparable": verdict.ok,
        "incomparable_because": verdict.reason,
    }
