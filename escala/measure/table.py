"""The table of measurements of an experiment: a row for each run that has a `run.json`.

It says of each its file, its status and the reason, its session and repeat, when it started, its
seconds in all, whether other work disturbed it, and of which probe or series it is. The rows are in
the order in which the experiment lists the runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from escala.core.errors import InputError
from escala.core.files import read_format
from escala.measure.plan import Plan, PlannedRun
from escala.probes import PROBES
from escala.record.disturbance import is_disturbed
from escala.record.schema import read_result

#: Of a table. Others are refused.
FORMAT = 1
#: What a row takes from `run.json`.
_TAKEN = (
    "status", "reason", "session", "repeat", "instrument", "series", "started", "wall_seconds",
)  # fmt: skip

Row = dict[str, Any]


def text(plan: Plan, rows: Mapping[str, Row] | None = None) -> str:
    """Return what the file of a table holds.

    Parameters
    ----------
    rows : by the files of runs; those that are not of the plan are left out. None: they are read.
    """
    rows = rows_of(plan.runs) if rows is None else rows
    listed = sorted(plan.runs, key=lambda planned: planned.place)
    listed_rows = [rows[planned.file] for planned in listed if planned.file in rows]
    return json.dumps({"format": FORMAT, "runs": listed_rows}, indent=1) + "\n"


def rows_of(runs: Iterable[PlannedRun]) -> dict[str, Row]:
    """Return the rows of runs by their files, of those that have a `run.json` that can be read."""
    rows = {}
    for planned in runs:
        with suppress(InputError, FileNotFoundError):
            run = read_result(Path(planned.file))
            row = {"file": planned.file} | {name: run[name] for name in _TAKEN}
            rows[planned.file] = row | {"disturbed": is_disturbed(run)}
    return rows


def read(path: Path) -> list[Row]:
    """Return the rows of a table.

    Raises
    ------
    InputError : it is none of this format.
    FileNotFoundError : there is none.
    """
    remedy = "remove it, and make the call again that wrote it"
    return read_format(path, FORMAT, "table", remedy, lambda runs: runs)


def timing_runs(rows: Iterable[Row]) -> list[Path]:
    """Return the files of the timing runs, without duplicates and ladders."""
    return [Path(row["file"]) for row in rows if row["instrument"] is row["series"] is None]


def series_runs(rows: Iterable[Row]) -> list[Path]:
    """Return the files of the duplicates of references, and of the rungs of ladders."""
    return [Path(row["file"]) for row in rows if row["series"] is not None]


def probe_runs(rows: Iterable[Row]) -> list[Path]:
    """Return the files of the runs of probes that enter tables."""
    probed = (row for row in rows if row["instrument"] is not None)
    return [Path(row["file"]) for row in probed if PROBES[row["instrument"]].tabulated]
