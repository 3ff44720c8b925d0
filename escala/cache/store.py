"""Keep results in a store, under a digest of all that determined them.

A key is the SHA-256 of a step's name, the content of its inputs, its parameters, the code and the
packages that it declares (`escala.cache.code`), what variables and files of the user decide
(`escala.core.variables`), for a measurement the machine, and `FORMAT`. To *serve* a result is to
copy it from the store. Every copy is digested, and one whose digest differs from the stored one is
not served. `escala.cache.entries` describes the files.

`ESCALA_STORE` names the folder. The default is `.escala/store` in the working directory; `off` uses
no store. If the store cannot be used, a line says so and the work goes on without it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from escala.cache.code import Code
from escala.cache.entries import (
    Damaged,
    Entry,
    blob,
    content,
    digest,
    folder,
    keep,
    locked,
    read,
    restore,
)
from escala.core import variables
from escala.core.errors import InputError
from escala.core.progress import say

#: Increase it when the meaning of an entry, or the computation of a key, changes.
FORMAT = 2
LOCATION, DEFAULT, OFF = "ESCALA_STORE", ".escala/store", "off"
AGAIN = "ESCALA_MEASURE_AGAIN"


def location() -> Path | None:
    """Return the folder of the store, absolute, or None if it is turned off."""
    named = os.environ.get(LOCATION) or DEFAULT
    return None if named == OFF else Path(named).absolute()


def get_or_compute(
    step: str,
    *,
    code: Code,
    inputs: Mapping[str, Path],
    parameters: Mapping,
    outputs: Mapping[str, Path],
    make: Callable[[], bool | None],
    measurement: Mapping | None = None,
    optional: Collection[str] = (),
    serve: bool = True,
) -> str:
    """Serve the outputs of a step from the store, or make and store them; say `served` or `made`.

    Parameters
    ----------
    step : its name, for people and for the key.
    code : the files and packages that decide its outputs.
    inputs : files and folders it reads. Their content is in the key, their path is not.
    parameters : everything else that determines the outputs; serialisable as JSON.
    outputs : files and folders it makes. Existing ones are replaced, by copies if they are served.
    make : makes the outputs. It returns False if they must not be stored.
    measurement : the machine, for a step that measures; `ESCALA_MEASURE_AGAIN=1` repeats it.
    optional : names of outputs that the step may leave out.
    serve : False makes the outputs anew.

    Raises
    ------
    OSError : an input is missing or cannot be read, an output was not made or cannot be written.
    InputError : an input holds a link to a folder that holds it. All exceptions of `make`, too.
    """
    store = location()
    # Read once, because libraries that the step loads set variables of this process.
    environment = variables.describe()

    def determined() -> dict:
        contents = {name: content(path, store) for name, path in inputs.items()}
        return _determined(step, code, contents, parameters, measurement, environment)

    if store is None:
        _make(step, make, outputs, optional)
        return "made"
    # Read back, because the step may change its parameters.
    known = json.loads(json.dumps(determined(), allow_nan=False))
    again = not serve or (measurement is not None and os.environ.get(AGAIN) == "1")
    served = None if again else _serve(store, digest(known), outputs)
    if served:
        return "served"
    if _make(step, make, outputs, optional) and (again or served is not None):
        if digest(determined()) == digest(known):
            with _without(store):
                keep(store, known, outputs)
        else:
            say(f"{step}: its inputs or its code changed while it ran: not stored")
    return "made"


def _make(
    step: str, make: Callable, outputs: Mapping[str, Path], optional: Collection[str]
) -> bool:
    """Make the outputs, and return whether they may be stored."""
    if make() is False:
        return False
    for name, path in outputs.items():
        if name not in optional and not path.exists():
            raise FileNotFoundError(errno.ENOENT, f"the step {step} did not make it", str(path))
    return True


class Work(NamedTuple):
    """What distinguishes measurements of one step, of the same inputs and on one machine.

    See `get_or_compute`.
    """

    parameters: Mapping
    code: Code


class Shelf:
    """The measurements that the store holds of one work, under its key at this moment.

    Parameters
    ----------
    step, inputs, measurement : see `get_or_compute`.

    Raises
    ------
    OSError : an input is missing or cannot be read.
    """

    def __init__(
        self, step: str, work: Work, inputs: Mapping[str, Path], measurement: Mapping
    ) -> None:
        self._store, self._step = location(), step
        self._key = (work, inputs, measurement)
        self._known = self._determined_now() if self._store else None

    def _determined_now(self) -> dict:
        work, inputs, measurement = self._key
        contents = {name: content(path, self._store) for name, path in inputs.items()}
        found = _determined(
            self._step, work.code, contents, work.parameters, measurement, variables.describe()
        )
        return json.loads(json.dumps(found, allow_nan=False))

    def measurements(self, output: str) -> list[tuple[Entry, bytes]]:
        """Return what is held, oldest first, with the bytes of one output, a file.

        There is nothing if measurements must not be served: without a store, or with
        `ESCALA_MEASURE_AGAIN`. Damaged ones are left out.
        """
        found: list[tuple[Entry, bytes]] = []
        if self._store is None or not self._store.exists() or os.environ.get(AGAIN) == "1":
            return found
        with _without(self._store), locked(self._store):
            for path in sorted(folder(self._store, digest(self._known)).glob("*.json")):
                with suppress(Damaged, LookupError, TypeError, OSError):
                    entry = read(path)
                    ((sha256, _),) = filter(None, entry.outputs[output].values())
                    written = blob(self._store, sha256).read_bytes()
                    if hashlib.sha256(written).hexdigest() == sha256:
                        found.append((entry, written))
        return found

    def serve(self, entry: Entry, outputs: Mapping[str, Path]) -> bool:
        """Replace outputs by copies of those of an entry; return whether it is undamaged.

        Raises
        ------
        OSError : an output cannot be written.
        """
        return bool(_serve(self._store, entry.key, outputs, entry.path.name))

    def keep(self, outputs: Mapping[str, Path]) -> None:
        """Store outputs, unless what determines them has changed since this was made."""
        if self._store is None:
            return
        if self._determined_now() != self._known:
            say(f"{self._step}: its inputs or its code changed while it ran: not stored")
            return
        with _without(self._store):
            keep(self._store, self._known, outputs)


def _determined(
    step: str,
    code: Code,
    contents: Mapping[str, dict],
    parameters: Mapping,
    measurement: Mapping | None,
    environment: Mapping,
) -> dict:
    """Return everything that goes into the digest of a key."""
    return {
        "format": FORMAT,
        "step": step,
        "inputs": dict(contents),
        "parameters": dict(parameters),
        "code": code.files(),
        "packages": dict(code.versions),
        "measurement": None if measurement is None else dict(measurement),
        "environment": dict(environment),
    }


def _serve(
    store: Path, key: str, outputs: Mapping[str, Path], names: str = "*.json"
) -> bool | None:
    """Replace the outputs by copies of the newest stored ones that are undamaged.

    Parameters
    ----------
    names : pattern of the names of the entries.

    Returns
    -------
    Whether they were; None if the store cannot be used.

    Raises
    ------
    OSError : an output cannot be written.
    """
    unwritable = None
    with _without(store), locked(store):
        for path in sorted(folder(store, key).glob(names), reverse=True):
            try:
                entry = read(path)
                # The same work, stored by a call that named its outputs differently.
                if entry.outputs.keys() != outputs.keys():
                    continue
                restore(store, entry, outputs)
            except OSError as error:
                unwritable = error
                break
            except Damaged as error:
                say(f"store: damaged, not served: {error}")
                with suppress(OSError):
                    path.unlink(missing_ok=True)
                continue
            # Set the time of last use. This fails for another user's entry, which keeps its time.
            with suppress(OSError):
                os.utime(path)
            return True
        else:
            return False
    if unwritable:
        raise unwritable
    return None


@contextmanager
def _without(store: Path) -> Iterator[None]:
    """If the store fails in the block, print a line and go on."""
    try:
        yield
    except InputError as error:  # An output holds a link to a folder around it.
        say(f"store {store}: {error} The work goes on without it")
    except OSError as error:
        about = f" ({error.filename})" if error.filename else ""
        say(f"store {store}: {error.strerror or error}{about}; the work goes on without it")
