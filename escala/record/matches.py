"""Decide which runs must be measured together, so that no run stands alone.

A *match* is a run and a run of its reference, of the same repeat and session. Only matches have
ratios. So when a run is measured, its references of that repeat are measured with it, and a run
without a match is measured again with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from escala.core.errors import InputError
from escala.experiment import Run
from escala.record import key
from escala.record.schema import read_result, read_session


class Identity(NamedTuple):
    """What two measurements of one run share if they measured the same.

    `environment` is None for a run that is still to be measured: its job may see other files than
    the process that starts it.
    """

    request: str | None
    source: str
    environment: dict | None = None

    @classmethod
    def expected(cls, run: Run, request: dict, source: Callable[..., str]) -> Identity:
        """Return the identity that a run has if it is measured now.

        Parameters
        ----------
        source : `escala.record.key.code_sha256`, or a cache of it.
        """
        digest = source(run.workload, run.strategy, run.instrument)
        return cls(key.request_sha256(request), digest)


class _Measurement(NamedTuple):
    session: str
    ok: bool
    identity: Identity

    @classmethod
    def of(cls, record: dict[str, Any]) -> _Measurement:
        request, environment = record.get("request_sha256"), record.get("environment")
        identity = Identity(request, record["source_sha256"], environment)
        return cls(record["session"], record["status"] == "ok", identity)


class Matches:
    """The matches of runs, from the files that exist.

    Files are read only if needed, and once. `run.json` decides in most cases; of the older
    measurements in `sessions/` mostly the names are read.

    Parameters
    ----------
    references_of : returns the runs that a run's ratios are formed with.
    expected : returns the identity that a run has if it is measured now.
    needed : the runs that are measured in this call.
    done : those that were measured in this call already.
    """

    def __init__(
        self,
        references_of: Callable[[Run], Iterable[Run]],
        expected: Callable[[Run], Identity],
        needed: Collection[Run],
        done: Collection[Run] = (),
    ):
        self._references_of, self._expected = references_of, expected
        self._needed, self._done = set(needed), set(done)
        self._current: dict[Run, _Measurement | None] = {}
        self._older: dict[Path, _Measurement | None] = {}

    def incomplete(self, runs: Iterable[Run]) -> set[Run]:
        """Return the runs that must be measured as well, so that each of `runs` has its matches.

        A run that failed, and was not removed, is a gap until it is. So it needs no match, and none
        is looked for with it.
        """
        given, waiting = set(self._needed), dict.fromkeys(runs)
        while waiting:
            # A run that is measured may leave another without a match, if it measures other code.
            more = {run for each in waiting for run in self._missing(each)}
            self._needed |= more
            waiting = dict.fromkeys([*waiting, *more]) if more else {}
        return self._needed - given

    def _missing(self, run: Run) -> set[Run]:
        references = list(self._references_of(run))
        if run in self._needed:
            return set(references) - self._needed - self._done
        current = self._read(run)
        if run in self._done or current is None or not current.ok:
            return set()
        if all(self._has_failed(other) or self._is_matched(run, other) for other in references):
            return set()
        return {run, *references} - self._needed - self._done

    def _has_failed(self, run: Run) -> bool:
        current = self._read(run)
        there = run not in self._needed and Path(run.file).exists()
        return there and not (current and current.ok)

    def _is_matched(self, run: Run, reference: Run) -> bool:
        """Return whether a session measured both, each as it is now or as it will be."""
        now = self._read(run), self._read(reference)
        if reference not in self._needed and now[1] and now[0].session == now[1].session:
            return True
        sessions = [
            {path.stem for path in Path(each.folder).glob("sessions/*.json")}
            for each in (run, reference)
        ]
        return any(
            all(self._counts(each, session) for each in (run, reference))
            for session in sorted(set.intersection(*sessions), reverse=True)
        )

    def _counts(self, run: Run, session: str) -> bool:
        older, now = self._measured(run, session), self._read(run)
        if not older or not older.ok:
            return False
        if run not in self._needed and now:
            return older.identity == now.identity
        return older.identity._replace(environment=None) == self._expected(run)

    def _read(self, run: Run) -> _Measurement | None:
        """Return the current measurement of a run, None if there is none that can be read."""
        if run not in self._current:
            try:
                self._current[run] = _Measurement.of(read_result(Path(run.file)))
            except (InputError, FileNotFoundError, KeyError):
                self._current[run] = None
        return self._current[run]

    def _measured(self, run: Run, session: str) -> _Measurement | None:
        now = self._read(run)
        if now and now.session == session:
            return now
        path = Path(run.folder, "sessions", f"{session}.json")
        if path not in self._older:
            record = read_session(path)
            self._older[path] = record and _Measurement.of(record)
        return self._older[path]
