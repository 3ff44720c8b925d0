"""Tell whether a user's files are still as they were when they were described."""

from collections.abc import Mapping
from pathlib import Path

from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.data.files.settings import state

_STATES = "states.json"


def remember(split: Path, inputs: Mapping[str, Path], where: str) -> None:
    """Write the state of each path alongside the description, which is the same after a move."""
    states = {key: [str(path), state({key: path}, where)] for key, path in inputs.items()}
    write_json(split / _STATES, states)


def find_changes(split: Path) -> list[str]:
    """Return the names of the paths whose files changed."""
    names = []
    for key, (path, known) in read_json(split / _STATES).items():
        try:
            now = state({key: Path(path)}, "paths")
        except InputError:
            now = None
        names += [f"{{data.{key}}}"] * (now != known)
    return names
