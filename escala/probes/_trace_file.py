"""Read the events of a trace in Chrome's format one after the other, also from a file cut short.

The file is an array of objects, or an object that holds such an array as `traceEvents`. It may be
compressed. It is read in blocks, so its size does not matter.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.text import ARCHIVES, DAMAGED, PACKED

_BLOCK = 1 << 20
#: An object that is longer, in letters, is broken. Horovod's events have some hundred.
_LONGEST = 1 << 16
_BETWEEN = re.compile(r"[\s,\[\]\ufeff]*")
#: Where an event begins; an object inside an event follows a colon.
_NEXT = re.compile(r'[\n,]\s*\{\s*"')
_WRAPPED = re.compile(r'[\s\ufeff]*\{.*?"traceEvents"\s*:\s*(?=\[)', re.DOTALL)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no time")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


@dataclass
class Events:
    """Iterate over the events of a trace up to its end, or to a place that is damaged.

    There None comes as the last one: what follows cannot be set in order, because ends of phases
    may be lost. An event that is cut by the end of the file is left out.

    Attributes
    ----------
    progress : called after each block that is read.
    closed : whether the array has an end.
    """

    stream: BinaryIO
    progress: Callable[[], object] = bool
    closed: bool = False

    def __iter__(self) -> Iterator[dict | None]:
        decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        text, ended, wrapped = "", False, None
        while not ended:
            block = self._block()
            ended = not block
            text += decode(block, ended)
            at = 0
            if wrapped is None:
                wrapped = _WRAPPED.match(text, 0, _LONGEST)
                at = wrapped.end() if wrapped else 0
            while (at := self._between(text, at)) < len(text):
                if self.closed and wrapped:
                    return  # What follows the array in the object that holds it.
                try:
                    event, end = _DECODER.raw_decode(text, at)
                except (ValueError, RecursionError):
                    if ended and not _NEXT.search(text, at):
                        return  # The file was cut here.
                    if not ended and len(text) - at < _LONGEST:
                        break
                    event, end = None, at
                if self.closed or not _usable(event):
                    self.closed = False
                    yield None
                    return
                at = end
                yield event
            text = text[at:]

    def _block(self) -> bytes:
        """Return the next bytes, none at the end of the file or where it cannot be unpacked."""
        try:
            block = self.stream.read(_BLOCK)
        except DAMAGED:
            block = b""
        self.progress()
        return block

    def _between(self, text: str, at: int) -> int:
        """Return where the next object begins, and note whether the array ended before it."""
        end = _BETWEEN.match(text, at).end()
        self.closed |= "]" in text[at:end]
        return end


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
