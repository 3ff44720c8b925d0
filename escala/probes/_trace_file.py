"""Read the events of a trace in Chrome's format one after the other, also from a damaged file.

The file is an array of objects, or an object that holds such an array as `traceEvents`. It may be
compressed. It is read in blocks, so its size does not matter.

A whole block is parsed by one call. If this fails, its events are read one by one. What cannot be
read is left out and noted, and reading goes on at the next event.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.files import atomic
from escala.core.readable import counted
from escala.core.text import ARCHIVES, DAMAGED, PACKED

_BLOCK = 1 << 20
#: An object that has not ended after so many letters is broken. Horovod's events have some hundred.
_LONGEST = 1 << 16
_BETWEEN = re.compile(r"[\s,\[\]\ufeff]*")
_OBJECT = re.compile(r'\{\s*"')
_WRAPPED = re.compile(r'[\s\ufeff]*\{.*?"traceEvents"\s*:\s*(?=\[)', re.DOTALL)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a time")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


@dataclass(frozen=True)
class Place:
    """A part of the content of a file: its first byte, the line of this byte, and its bytes."""

    offset: int
    line: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length

    def said(self) -> str:
        length = counted(self.length, "byte")
        return f"{length} at byte {self.offset} (line {self.line}) hold no event that can be used"


@dataclass
class Events:
    """Iterate over the usable events of a trace, and note what is left out.

    None comes in place of events that were left out, and between two arrays: phases that are open
    there have no end.

    Attributes
    ----------
    progress : called after each block that is read.
    skipped : places that hold no usable event.
    cut : the unfinished event at the end of the file, if there is one.
    arrays : where another array begins after the end of one.
    damage : why a compressed file could not be read to its end.
    closed : whether the array has an end.
    """

    stream: BinaryIO
    progress: Callable[[], object] = bool
    skipped: list[Place] = field(default_factory=list)
    cut: Place | None = None
    arrays: list[Place] = field(default_factory=list)
    damage: str | None = None
    closed: bool = False

    def __post_init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._text, self._at = "", 0
        self._offset, self._line = 0, 1
        self._ended = self._wrapped = self._skips = self._lost = False

    def __iter__(self) -> Iterator[dict | None]:
        self._more()
        if head := _WRAPPED.match(self._text, 0, _LONGEST):
            self._at, self._wrapped = head.end(), True
        while not self._ended:
            yield from self._block()
            yield from self._single(_LONGEST)
            self._more()
        yield from self._single(0)

    def _more(self) -> None:
        """Drop the text that was read, and append the next block."""
        self._offset, self._line = self._position(self._at)
        blocks, size = [], 0
        while size < _BLOCK and not self._ended:
            try:
                block = self.stream.read1(_BLOCK - size)
            except DAMAGED as error:
                block, self.damage = b"", str(error)
            self._ended = not block
            blocks.append(block)
            size += len(block)
        self._text = self._text[self._at :] + self._decode(b"".join(blocks), self._ended)
        self._at = 0
        self.progress()

    def _position(self, at: int) -> tuple[int, int]:
        """Return byte and line of a position in the text."""
        before = self._text[:at]
        size = len(before.encode("utf-8", "surrogateescape"))
        return self._offset + size, self._line + before.count("\n")

    def _block(self) -> Iterator[dict]:
        """Yield the events of the text except the last ones, if all of them are usable."""
        self._between()
        start = self._at
        end = self._text.rfind("},", start)
        while end > start and not self._text[end + 2 : end + 9].lstrip().startswith("{"):
            end = self._text.rfind("},", start, end)
        if end <= start or self._lost:
            return
        try:
            events = _DECODER.decode(f"[{self._text[start : end + 1]}]")
        except (ValueError, RecursionError):
            return
        if all(map(_usable, events)):
            self._at, self.closed, self._skips = end + 1, False, False
            yield from events

    def _single(self, rest: int) -> Iterator[dict | None]:
        """Yield events one by one, as long as the text has more than `rest` letters."""
        while True:
            self._between()
            if len(self._text) - self._at <= rest:
                return
            if self._lost:
                self._lost = False
                yield None
            event, end = self._object(self._at)
            if event is None:
                self._leave_out(end)
            else:
                self._at, self.closed, self._skips = end, False, False
                yield event

    def _between(self) -> None:
        """Go to the next object, and note where an array ends and another one begins."""
        end = _BETWEEN.match(self._text, self._at).end()
        for bracket in re.finditer(r"[\[\]]", self._text[self._at : end]):
            if bracket[0] == "[" and self.closed:
                self.arrays.append(Place(*self._position(self._at + bracket.start()), 0))
                self._lost = True
            self.closed = bracket[0] == "]"
        self._at = end

    def _object(self, at: int) -> tuple[dict | None, int]:
        """Return the usable event at a position, or None, and the position after the object.

        This is the position itself if no object can be read there.
        """
        try:
            event, end = _DECODER.raw_decode(self._text, at)
        except (ValueError, RecursionError):
            return None, at
        return (event if _usable(event) else None), end

    def _leave_out(self, end: int) -> None:
        """Note what is at the present position, and go behind it, or to the next event."""
        offset, line = self._position(self._at)
        unfinished = self._text.startswith("{", self._at)
        found = end > self._at
        if found:
            self._at = end
        else:
            self._at += 1
            found = self._seek()
        place = Place(offset, line, self._position(self._at)[0] - offset)
        if self._wrapped and self.closed:
            return  # What follows the array in the object that holds it.
        if not found and unfinished:
            self.cut = place
        elif self._skips:
            last = self.skipped[-1]
            self.skipped[-1] = Place(last.offset, last.line, place.end - last.offset)
        else:
            self.skipped.append(place)
        self._skips = self._lost = True

    def _seek(self) -> bool:
        """Go to the next usable event, or to the end; return whether there is one."""
        while True:
            match = _OBJECT.search(self._text, self._at)
            at = match.start() if match else max(self._at, len(self._text) - 1)
            if not self._ended and len(self._text) - at <= _LONGEST:
                self._at = at
                self._more()
                continue
            if match is None:
                self._at = len(self._text)
                return False
            if self._object(at)[0] is not None:
                self._at = at
                return True
            self._at = at + 1


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


def _usable(event: object) -> bool:
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
