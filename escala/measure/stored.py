"""Measurements of planned runs in the store, whose matches stay whole."""

from __future__ import annotations

import json
from pathlib import Path

from escala.cache import store
from escala.core.files import atomic
from escala.data import base
from escala.measure.plan import PlannedRun
from escala.probes import PROBES
from escala.record import key
from escala.record.schema import read_result
from escala.strategies.base import TIMELINE_FILES

#: Files that a run may leave next to its run.json.
FILES = ("ranks", "predictions.npy", "model.npz", "model.json", "tensorboard", *TIMELINE_FILES)
_RESULT = "run.json"


class Stored:
    """Entries of the store for a run, under its present key.

    Attributes
    ----------
    planned : the run.
    sessions : those in which it was measured.
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
        names = dict.fromkeys((_RESULT, *FILES, *products))
        self._outputs = {name: Path(planned.run.folder, name) for name in names}
        # Of one session the last counts: its repeat was measured again.
        self._held = {
            json.loads(written)["session"]: (entry, written)
            for entry, written in self._shelf.measurements(_RESULT)
        }
        self.sessions = set(self._held)

    def copy_sessions(self) -> None:
        """Put all measurements alongside the run's own, so that it keeps its matches in them."""
        for session, (_, written) in self._held.items():
            path = Path(self.planned.run.folder, "sessions", f"{session}.json")
            if not path.exists():
                with atomic(path) as temporary:
                    temporary.write_bytes(written)

    def serve(self) -> bool:
        """Replace the run by the newest measurement; return whether that is undamaged."""
        entry, _ = list(self._held.values())[-1]
        return bool(self._shelf.serve(self._outputs, entry.path.name))

    def keep(self) -> None:
        """Store the run, if it ended ok and is of what the plan asks for."""
        run, request = read_result(self._outputs[_RESULT]), self.planned.request
        code = key.code_sha256(*(request[name] for name in ("workload", "strategy", "instrument")))
        is_asked = run["status"] == "ok" and run["source_sha256"] == code
        if is_asked and not key.changed_files(request, self._data):
            self._shelf.keep(self._outputs)
