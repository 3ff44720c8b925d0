"""Read the events of a trace in Chrome's format one after the other, whatever the file's size.

The file is an array of objects, or an object that holds such an array as `traceEvents`. It may be
compressed, and end anywhere. Reading ends where the file is damaged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import ijson
from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.text import ARCHIVES, DAMAGED, PACKED

#: The most bytes that are parsed at once: the place of a damage is known as well as this.
_BLOCK = 1 << 16
#: The begin of the events in an object.
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*(\[|$)')


@dataclass
class Events:
    """Iterate over the events of a trace; None comes where another array follows the end of one.

    Attributes
    ----------
    progress : called after each block that is read.
    damage : why the file was not read to its end, with the place; None if it was.
    closed : whether the file ends with the end of an array.
    """

    stream: BinaryIO
    progress: Callable[[], object] = bool
    damage: str | None = None
    closed: bool = False

    def __iter__(self) -> Iterator[dict | None]:
        events, parser, before = ijson.sendable_list(), None, b""
        has_array = False
        for offset, line, piece in self._pieces():
            if parser is None and (start := piece.lstrip(b"\xef\xbb\xbf \r\n\t")):
                piece, has_array = start, start.startswith(b"[")
                events_at = "item" if has_array else "traceEvents.item"
                parser = ijson.items_coro(events, events_at, multiple_values=True, use_float=True)
            elif piece.startswith(b"[") and before.endswith(b"]"):
                yield None
            if parser is None:
                continue
            before = piece.strip() or before
            has_array = has_array or bool(_ARRAY.search(piece))
            try:
                parser.send(piece)
            except ijson.JSONError:
                self.damage = _place(offset, line, piece)
            for event in events:
                if not _is_usable(event):
                    self.damage = _place(offset, line, piece)
                    return
                yield event
            events.clear()
            if self.damage:
                return
        if parser is None:
            return
        with suppress(ijson.IncompleteJSONError):  # A file may end anywhere.
            parser.close()
            if not has_array:
                self.damage = "it has no array traceEvents"
            self.closed = self.damage is None

    def _pieces(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield lines, or parts of long ones, each with its first byte and the line's number."""
        offset, line = 0, 1
        while True:
            try:
                block = self.stream.read(_BLOCK)
            except DAMAGED as error:
                self.damage = (
                    f"it cannot be decompressed after byte {offset} of its content: {error}"
                )
                return
            if not block:
                return
            self.progress()
            for piece in block.splitlines(keepends=True):
                yield offset, line, piece
                offset += len(piece)
                line += piece.endswith(b"\n")


def _place(offset: int, line: int, piece: bytes) -> str:
    return f"bytes {offset} to {offset + len(piece)} (line {line}) hold no event that can be used"


@contextmanager
def opened(path: Path) -> Iterator[Events]:
    """Yield the events of a file, compressed or not, and show the progress if it takes long.

    Raises
    ------
    InputError : the file is compressed in another form than gzip, bzip2 or xz.
    """
    with open(path, "rb") as raw:
        start = raw.peek(8)
        for magic, name in ARCHIVES:
            if start.startswith(magic):
                raise InputError(path, None, f"is {name}, which is not read", "unpack it")
        opener = next((opens for magic, opens in PACKED if start.startswith(magic)), None)
        size = path.stat().st_size if raw.seekable() else None
        with tqdm(
            total=size, desc=path.name, unit="B", unit_scale=True, delay=1, disable=None
        ) as bar:
            yield Events(
                opener(raw) if opener else raw,
                lambda: bar.update(raw.tell() - bar.n) if size else None,
            )


def _is_usable(event: object) -> bool:
    """Return whether an event has what its kind needs."""
    if type(event) is not dict:
        return False
    kind = event.get("ph")
    if kind in ("B", "E", "X", "i"):
        moment = event.get("ts")
        return (
            type(moment) in (int, float)
            and abs(moment) < 1e18
            and (kind == "E" or type(event.get("name")) is str)
            and (kind == "i" or type(event.get("pid")) in (int, str))
        )
    if kind == "M":
        return type(event.get("args")) is dict and type(event.get("pid")) in (int, str)
    return type(kind) is str
