"""Decide which runs of a group must be measured, so that no run stands alone.

A *match* is a run and a run of its reference, of the same repeat and session. Only matches have
ratios. So when a run is measured, its references are measured with it, and a run without a match is
measured again with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from escala.core.environment import session
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.data.base import DESCRIPTION
from escala.measure.plan import Group, Plan, PlannedRun
from escala.record import key
from escala.record.plan import sha256_of
from escala.record.schema import read_result, read_session


class Present:
    """The code, the data and the environment of this moment; only measurements of these count.

    Parameters
    ----------
    environment : as `escala.core.variables.describe` returns it; None: any counts.
    since : the first session that counts; empty: all do.
    """

    def __init__(self, environment: Mapping[str, Any] | None = None, since: str = ""):
        self._environment, self._since = environment, since
        self._source, self._data = cache(key.code_sha256), cache(_data_sha256)

    def identity(self, planned: PlannedRun) -> dict[str, Any]:
        """Return what the `run.json` of a run tells of it if it is measured now."""
        run, data = planned.run, self._data(planned.data)
        found = {
            "request_sha256": key.request_sha256(planned.request),
            "source_sha256": self._source(run.workload, run.strategy, run.instrument),
        }
        found |= {} if data is None else {"data": data}
        return found | ({} if self._environment is None else {"environment": self._environment})

    def counts(self, record: Mapping[str, Any], identity: Mapping[str, Any]) -> bool:
        """Return whether a measurement is of an identity, and of a session that counts."""
        told = {**record, "data": (record.get("data") or {}).get("sha256")}
        same = all(told.get(name) == value for name, value in identity.items())
        return same and record["session"] >= self._since


def _data_sha256(folder: str) -> dict | None:
    """Return the digests of a split's files; None before it is prepared."""
    path = Path(folder, DESCRIPTION)
    return sha256_of(read_json(path)) if path.is_file() else None


def left(
    group: Group,
    present: Present,
    stored: Mapping[str, set[str]] | None = None,
    whole: bool = False,
) -> list[PlannedRun]:
    """Return the runs of a group that must be measured, in their order.

    A run stands if its `run.json` is of the present code, data and environment. It needs a match
    with each of its references: a session that measured both, this one included. A failed run is a
    gap until its `run.json` is removed: it is not measured, and nothing waits for a match with it.

    Parameters
    ----------
    stored : sessions in which runs, by their files, count as measured, as if they were served.
    whole : whether all of them are, if any is, but for those that this session has measured.
    """
    there = {each.file: _There(each, present, (stored or {}).get(each.file)) for each in group}
    measured, before = {file for file, each in there.items() if not each.stands}, -1
    while before < len(measured):
        before = len(measured)
        for each in group:
            for reference in each.references:
                run, other = there[each.file], there[reference]
                if run.has_failed or other.has_failed:
                    continue
                if each.file not in measured:
                    if not run.is_matched(other):
                        measured |= {each.file, reference}
                elif other.session != session():  # Else an earlier plan of this call measured it.
                    measured.add(reference)
    if measured and whole:
        measured |= {
            file
            for file, each in there.items()
            if not each.has_failed and each.session != session()
        }
    return [each for each in group if each.file in measured]


def left_of(plan: Plan, present: Present) -> list[PlannedRun]:
    """Return the runs of a plan that must be measured, in the order of execution."""
    return [each for group in plan.groups for each in left(group, present)]


def failed(group: Group, present: Present) -> list[PlannedRun]:
    """Return the runs of a group that stand as gaps."""
    return [each for each in group if _There(each, present).has_failed]


def missing(group: Group, present: Present) -> list[PlannedRun]:
    """Return the runs of a group that do not stand, whatever their matches."""
    return [each for each in group if not _There(each, present).stands]


class _There:
    """State of a run's results on disk.

    Attributes
    ----------
    stands, has_failed : whether its `run.json` counts, and is of a failure.
    session : of a `run.json` that counts and is ok, else None.
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
        """The sessions that measured the run as it would be measured now."""
        found = self._stored | {self.session} - {None}
        for path in self._folder.glob("sessions/*.json"):
            record = read_session(path) if path.stem not in found else None
            if record and record["status"] == "ok" and self._counts(record):
                found.add(path.stem)
        return found

    def is_matched(self, other: _There) -> bool:
        """Return whether a session measured both."""
        # Mostly the last one, without a look at the others.
        if self.session and self.session == other.session:
            return True
        return bool(self._sessions & other._sessions)


def _read(path: Path) -> dict | None:
    """Return a run.json, None if there is none that can be read."""
    try:
        return read_result(path)
    except (InputError, FileNotFoundError):
        return None
