"""Use the store's measurements of a run without taking a match from it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from escala.core.files import atomic


def keep_older(output: Path, measurements: Iterable[bytes]) -> set[str]:
    """Put measurements of a run from the store alongside its run.json; return their sessions.

    So a run that is served, or measured again, keeps the matches that it had in these sessions. Of
    one session the last counts: its repeat was measured again.

    Parameters
    ----------
    measurements : contents of run.json, oldest first.
    """
    by_session = {json.loads(written)["session"]: written for written in measurements}
    for session, written in by_session.items():
        path = output.parent / "sessions" / f"{session}.json"
        if not path.exists():
            with atomic(path) as temporary:
                temporary.write_bytes(written)
    return set(by_session)


def may_be_served(sessions: set[str], matched_with: Iterable[Iterable[bytes]]) -> bool:
    """Return whether the store holds a match with each run that a run is matched with.

    Both sides of a match decide by the same sets of sessions, so they decide alike. A run that is
    measured meanwhile adds this call's session to its own set only.

    Parameters
    ----------
    sessions : those in which the store's measurements of the run were made.
    matched_with : for each such run, the store's measurements of it.
    """
    others = ({json.loads(written)["session"] for written in each} for each in matched_with)
    return all(sessions & other for other in others)
