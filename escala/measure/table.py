"""The table of measurements of an experiment: a row for each run that has a `run.json`.

A row has the `file`, the values of the keys `_TAKEN` in that file, and `disturbed`: whether other
work disturbed the run. The rows are in the order in which the experiment lists the runs.
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

#: The format of a table. Tables of other formats are refused.
FORMAT = 1
#: The keys that a row takes from `run.json`.
_TAKEN = (
    "status", "reason", "session", "repeat", "instrument", "series", "started", "wall_seconds",
)  # fmt: skip

Row = dict[str, Any]


def text(plan: Plan, rows: Mapping[str, Row] | None = None) -> str:
    """Return the content of the file of a table.

    Parameters
    ----------
    rows : rows by the files of runs. Rows of runs outside the plan are left out. None: the rows are
        read from the files.
    """
    rows = rows_of(plan.runs) if rows is None else rows
    files = [planned.file for planned in sorted(plan.runs, key=lambda planned: planned.place)]
    content = {"format": FORMAT, "runs": [rows[file] for file in files if file in rows]}
    return json.dumps(content, indent=1) + "\n"


def rows_of(runs: Iterable[PlannedRun]) -> dict[str, Row]:
    """Return the rows of the runs whose `run.json` can be read, by their files."""
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
    InputError : the file holds no table of this format.
    FileNotFoundError : the file does not exist.
    """
    remedy = "remove it, and make the call again that wrote it"
    return read_format(path, FORMAT, "table", remedy, lambda runs: runs)


def timing_runs(rows: Iterable[Row]) -> list[Path]:
    """Return the files of the timing runs, without duplicates and without runs of ladders."""
    return [Path(row["file"]) for row in rows if row["instrument"] is row["series"] is None]


def series_runs(rows: Iterable[Row]) -> list[Path]:
    """Return the files of the duplicates of references, and of the rungs of ladders."""
    return [Path(row["file"]) for row in rows if row["series"] is not None]


def probe_runs(rows: Iterable[Row]) -> list[Path]:
    """Return the files of the runs of probes that enter tables."""
    probed = (row for row in rows if row["instrument"] is not None)
    return [Path(row["file"]) for row in probed if PROBES[row["instrument"]].tabulated]
