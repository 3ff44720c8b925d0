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

from escala.cache.code import Code
from escala.cache.entries import (
    Damaged,
    Entry,
    blob,
    content,
    digest,
    folder,
    hold_lock,
    keep,
    read,
    restore,
)
from escala.core import variables
from escala.core.console import say
from escala.core.errors import InputError

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
    make: Callable[[], None],
    optional: Collection[str] = (),
) -> str:
    """Serve the outputs of a step from the store, or make and store them; say `served` or `made`.

    Parameters
    ----------
    step, code, inputs, parameters : see `Shelf`.
    outputs : files and folders it makes. Existing ones are replaced, by copies if they are served.
    make : makes the outputs.
    optional : names of outputs that the step may leave out.

    Raises
    ------
    OSError : an input is missing or cannot be read, an output was not made or cannot be written.
    InputError : an input holds a link to a folder that holds it. All exceptions of `make`, too.
    """
    shelf = Shelf(step, code, inputs, parameters)
    served = shelf.serve(outputs)
    if served:
        return "served"
    make()
    for name, path in outputs.items():
        if name not in optional and not path.exists():
            raise FileNotFoundError(errno.ENOENT, f"the step {step} did not make it", str(path))
    if served is not None:
        shelf.keep(outputs)
    return "made"


class Shelf:
    """Entries of the store under the key of a step.

    Parameters
    ----------
    step : its name, for people and for the key.
    code : the files and packages that decide its outputs.
    inputs : files and folders it reads. Their content is in the key, their path is not.
    parameters : everything else that determines the outputs; serialisable as JSON.
    measurement : the machine, for a step that measures. `ESCALA_MEASURE_AGAIN=1` repeats it.

    Raises
    ------
    OSError : an input is missing or cannot be read.
    """

    def __init__(
        self,
        step: str,
        code: Code,
        inputs: Mapping[str, Path],
        parameters: Mapping,
        measurement: Mapping | None = None,
    ) -> None:
        self._step, self._store = step, location()
        # Read once, because libraries that the step loads set variables of this process.
        environment = variables.describe()

        def read_key_parts() -> dict:
            parts = {
                "format": FORMAT,
                "step": step,
                "inputs": {name: content(path, self._store) for name, path in inputs.items()},
                "parameters": dict(parameters),
                "code": code.files(),
                "packages": dict(code.versions),
                "measurement": None if measurement is None else dict(measurement),
                "environment": environment,
            }
            # Read back, because the step may change its parameters.
            return json.loads(json.dumps(parts, allow_nan=False))

        self._read_key_parts = read_key_parts
        self._determined = read_key_parts() if self._store else {}
        self._key = digest(self._determined)

    def measurements(self, output: str) -> list[tuple[Entry, bytes]]:
        """Return the undamaged entries, oldest first, each with the bytes of one output, a file.

        The list is empty without a store, or with `ESCALA_MEASURE_AGAIN`.
        """
        undamaged: list[tuple[Entry, bytes]] = []
        if self._store is None or not self._store.exists() or os.environ.get(AGAIN) == "1":
            return undamaged
        with _go_on_without(self._store), hold_lock(self._store):
            for path in sorted(folder(self._store, self._key).glob("*.json")):
                with suppress(Damaged, LookupError, TypeError, OSError):
                    entry = read(path)
                    ((sha256, _),) = filter(None, entry.outputs[output].values())
                    written = blob(self._store, sha256).read_bytes()
                    if hashlib.sha256(written).hexdigest() == sha256:
                        undamaged.append((entry, written))
        return undamaged

    def serve(self, outputs: Mapping[str, Path], entry: str = "*.json") -> bool | None:
        """Replace outputs by copies of the newest stored ones that are undamaged.

        Parameters
        ----------
        entry : pattern of the names of the entries that may be served.

        Returns
        -------
        Whether they were replaced; None if there is no store, or none that can be used.

        Raises
        ------
        OSError : an output cannot be written.
        """
        if self._store is None:
            return None
        unwritable = None
        with _go_on_without(self._store), hold_lock(self._store):
            for path in sorted(folder(self._store, self._key).glob(entry), reverse=True):
                try:
                    stored = read(path)
                    # The same work, stored by a call that named its outputs differently.
                    if stored.outputs.keys() != outputs.keys():
                        continue
                    restore(self._store, stored, outputs)
                except OSError as error:
                    # Of an output: raised behind the block, which takes errors of the store.
                    unwritable = error
                    break
                except Damaged as error:
                    say(f"store: damaged, not served: {error}")
                    with suppress(OSError):
                        path.unlink(missing_ok=True)
                    continue
                # Set the time of last use. This fails for the entry of another user.
                with suppress(OSError):
                    os.utime(path)
                return True
            else:
                return False
        if unwritable:
            raise unwritable
        return None

    def keep(self, outputs: Mapping[str, Path]) -> None:
        """Store outputs, unless what determines them has changed since this was made."""
        if self._store is None:
            return
        if self._read_key_parts() != self._determined:
            say(f"{self._step}: its inputs or its code changed while it ran: not stored")
            return
        with _go_on_without(self._store):
            keep(self._store, self._determined, outputs)


@contextmanager
def _go_on_without(store: Path) -> Iterator[None]:
    """If the store fails in the block, print a line and go on behind the block."""
    try:
        yield
    except InputError as error:  # An output holds a link to a folder around it.
        say(f"store {store}: {error} The work goes on without it")
    except OSError as error:
        about = f" ({error.filename})" if error.filename else ""
        say(f"store {store}: {error.strerror or error}{about}; the work goes on without it")
