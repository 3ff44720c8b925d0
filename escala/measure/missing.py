"""Decide which runs of a group must be measured, so that each has a match.

A *match* is a run and a run of its reference in the same repeat and session. Only matches have
ratios. So when a run is measured, its references are measured, too. A run without a match is
measured again, together with its references.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from escala.cache import store
from escala.core.environment import session
from escala.core.errors import InputError
from escala.core.files import atomic, read_json
from escala.data import base
from escala.data.base import DESCRIPTION
from escala.measure.plan import Group, Plan, PlannedRun
from escala.probes import PROBES
from escala.record import key
from escala.record.plan import sha256_of
from escala.record.schema import read_result, read_session
from escala.strategies.base import TIMELINE_FILES


class Present:
    """The present code, data and environment. Only measurements with these count.

    Parameters
    ----------
    environment : a result of `escala.core.variables.describe`; None: every environment counts.
    since : the first session that counts; empty: all sessions count.
    """

    def __init__(self, environment: Mapping[str, Any] | None = None, since: str = ""):
        self._environment, self._since = environment, since
        self._source, self._data = cache(key.code_sha256), cache(self._data)

    def identity(self, planned: PlannedRun) -> dict[str, Any]:
        """Return the values that identify a run's code, data and environment in its `run.json`."""
        run, data = planned.run, self._data(planned.data)
        identity = {
            "request_sha256": key.request_sha256(planned.request),
            "source_sha256": self._source(run.workload, run.strategy, run.instrument),
        }
        identity |= {} if data is None else {"data": data}
        return identity | ({} if self._environment is None else {"environment": self._environment})

    def counts(self, record: Mapping[str, Any], identity: Mapping[str, Any]) -> bool:
        """Return whether a measurement has this identity, and is of a session that counts."""
        known = {**record, "data": (record.get("data") or {}).get("sha256")}
        same = all(known.get(name) == value for name, value in identity.items())
        return same and record["session"] >= self._since

    def _data(self, folder: str) -> dict | None:
        """Return the digests of the files of a split; None before the split is prepared."""
        path = Path(folder, DESCRIPTION)
        return sha256_of(read_json(path)) if path.is_file() else None


def runs_left(
    group: Group,
    present: Present,
    stored: Mapping[str, set[str]] | None = None,
    whole: bool = False,
) -> list[PlannedRun]:
    """Return the runs of a group that must be measured, in their order.

    A run *stands* if its `run.json` has the present code, data and environment. A run also needs a
    match with each of its references: a session, perhaps this one, that measured both. A failed run
    is a *gap* until its `run.json` is removed: a gap is not measured, and no other run needs a
    match with it.

    Parameters
    ----------
    stored : file of a run -> its sessions in the store. They count like sessions on disk.
    whole : if a run must be measured, also return all runs that this session has not measured.
    """
    states = {
        planned.file: _State(planned, present, (stored or {}).get(planned.file))
        for planned in group
    }
    measured, before = {file for file, state in states.items() if not state.stands}, -1
    while before < len(measured):  # An added run may need further runs.
        before = len(measured)
        for planned in group:
            for reference in planned.references:
                run, other = states[planned.file], states[reference]
                if run.has_failed or other.has_failed:
                    continue
                if planned.file not in measured:
                    if not run.is_matched(other):
                        measured |= {planned.file, reference}
                # An earlier plan of this call may have measured the reference.
                elif other.session != session():
                    measured.add(reference)
    if measured and whole:
        measured |= {
            file
            for file, state in states.items()
            if not state.has_failed and state.session != session()
        }
    return [planned for planned in group if planned.file in measured]


def runs_left_of(plan: Plan, present: Present) -> list[PlannedRun]:
    """Return the runs of a plan that must be measured, in the order of execution."""
    return [planned for group in plan.groups for planned in runs_left(group, present)]


def find_failed(group: Group, present: Present) -> list[PlannedRun]:
    """Return the failed runs of a group, which are gaps."""
    return [planned for planned in group if _State(planned, present).has_failed]


def find_missing(group: Group, present: Present) -> list[PlannedRun]:
    """Return the runs of a group that do not stand. Their matches do not matter."""
    return [planned for planned in group if not _State(planned, present).stands]


class _State:
    """The state of a run's results on disk.

    Attributes
    ----------
    stands : whether the `run.json` of the run counts, or the store can serve the run.
    has_failed : whether the `run.json` counts and states a failure.
    session : the session of a `run.json` that counts and is ok; else None.
    """

    def __init__(self, planned: PlannedRun, present: Present, stored: set[str] | None = None):
        self._folder, self._stored = Path(planned.run.folder), stored or set()
        self._counts = partial(present.counts, identity=present.identity(planned))
        now = _read(Path(planned.file))
        counts = now is not None and self._counts(now)
        self.stands = counts or bool(stored)
        self.has_failed = counts and now["status"] != "ok"
        self.session = now["session"] if counts and not self.has_failed else None

    @cached_property
    def _sessions(self) -> set[str]:
        """The sessions that measured the run with the present code, data and environment."""
        sessions = self._stored | {self.session} - {None}
        for path in self._folder.glob("sessions/*.json"):
            record = read_session(path) if path.stem not in sessions else None
            if record and record["status"] == "ok" and self._counts(record):
                sessions.add(path.stem)
        return sessions

    def is_matched(self, other: _State) -> bool:
        """Return whether a session measured this run and the other run."""
        # The last session has mostly measured both. Then the files of earlier sessions are not
        # read.
        if self.session and self.session == other.session:
            return True
        return bool(self._sessions & other._sessions)


def _read(path: Path) -> dict | None:
    """Return the content of a `run.json`; None if it is missing or cannot be read."""
    try:
        return read_result(path)
    except (InputError, FileNotFoundError):
        return None


#: Files that a run may leave next to its run.json.
STORED_FILES = (
    "ranks",
    "predictions.npy",
    "model.npz",
    "model.json",
    "tensorboard",
    *TIMELINE_FILES,
)
_RESULT = "run.json"


class Stored:
    """The measurements of a run in the store, under its present key.

    Attributes
    ----------
    planned : the run.
    sessions : the sessions that measured the run.
    """

    def __init__(self, planned: PlannedRun):
        self.planned, self._data = planned, Path(planned.data)
        probe = planned.run.instrument
        arrays = (base.DESCRIPTION, *base.files(base.description(self._data)))
        self._shelf = store.Shelf(
            probe or "train",
            key.code(*(planned.request[name] for name in ("workload", "strategy", "instrument"))),
            {name: path for name in arrays if (path := self._data / name).exists()},
            key.parameters(planned.request),
            key.machine(),
        )
        products = PROBES[probe].products if probe else ()
        names = dict.fromkeys((_RESULT, *STORED_FILES, *products))
        self._outputs = {name: Path(planned.run.folder, name) for name in names}
        # If a session measured a repeat again, its last measurement counts.
        self._measurements = {
            json.loads(content)["session"]: (entry, content)
            for entry, content in self._shelf.measurements(_RESULT)
        }
        self.sessions = set(self._measurements)

    def copy_sessions(self) -> None:
        """Copy all measurements into the `sessions/` of the run, to keep their matches."""
        for name, (_, content) in self._measurements.items():
            path = Path(self.planned.run.folder, "sessions", f"{name}.json")
            if not path.exists():
                with atomic(path) as temporary:
                    temporary.write_bytes(content)

    def serve(self) -> bool:
        """Replace the run by the newest measurement; return whether this was undamaged."""
        entry, _ = list(self._measurements.values())[-1]
        return bool(self._shelf.serve(self._outputs, entry.path.name))

    def keep(self) -> None:
        """Store the run if it ended ok, and if its code, program and data have not changed."""
        run, request = read_result(self._outputs[_RESULT]), self.planned.request
        code = key.code_sha256(*(request[name] for name in ("workload", "strategy", "instrument")))
        is_present = run["status"] == "ok" and run["source_sha256"] == code
        if is_present and not key.find_changes(request, self._data):
            self._shelf.keep(self._outputs)
