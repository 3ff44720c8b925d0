"""Keep results in a store. The key of a result is a digest of everything that determined it.

A key is the SHA-256 of: the name of a step, the content of its inputs, its parameters, the code and
the packages that it declares (`escala.cache.code`), the variables and files of the user that can
change a result (`escala.core.variables`), `FORMAT`, and the machine of a measurement. To *serve* a
result is to copy it from the store. The digest of every copy is computed. If it differs from the
stored digest, the copy is not served. `escala.cache.entries` describes the files.

`ESCALA_STORE` names the folder. The default is `.escala/store` in the working directory; `off` uses
no store. If the store cannot be used, a line says so, and the work goes on without the store.
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

#: A number to increase when the meaning of an entry, or the computation of a key, changes.
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
    outputs : the files and folders that the step makes. They replace existing files and folders.
    make : makes the outputs.
    optional : names of outputs that the step may leave out.

    Raises
    ------
    OSError : an input is missing or cannot be read; an output was not made or cannot be written.
    InputError : an input is a folder with a link to a folder around the link.
    Exception : every exception of `make`.
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
    step : the name of the step, for people and for the key.
    code : the files and packages that decide the outputs.
    inputs : files and folders that the step reads. The key depends on their content, not on their
        paths.
    parameters : all other values that determine the outputs, as values of JSON.
    measurement : the machine, for a step that measures. `ESCALA_MEASURE_AGAIN=1` repeats the step.

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
        # The variables are read once, because libraries that the step loads set variables.
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
            # This is a copy, because the step may change its parameters.
            return json.loads(json.dumps(parts, allow_nan=False))

        self._read_key_parts = read_key_parts
        self._determined = read_key_parts() if self._store else {}
        self._key = digest(self._determined)

    def measurements(self, output: str) -> list[tuple[Entry, bytes]]:
        """Return the undamaged entries, oldest first, each with the bytes of one output file.

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
        """Replace outputs by copies of the newest undamaged entry.

        Parameters
        ----------
        entry : pattern of the names of the entries that may be served.

        Returns
        -------
        Whether the outputs were replaced; None without a store, and if the store cannot be used.

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
                    # Another call stored the same work, with other names of outputs.
                    if stored.outputs.keys() != outputs.keys():
                        continue
                    restore(self._store, stored, outputs)
                except OSError as error:
                    # This error concerns an output. It is raised after the block, which catches
                    # errors of the store.
                    unwritable = error
                    break
                except Damaged as error:
                    say(f"store: damaged, not served: {error}")
                    with suppress(OSError):
                        path.unlink(missing_ok=True)
                    continue
                # Set the time of last use. Only the owner of the entry may set it.
                with suppress(OSError):
                    os.utime(path)
                return True
            else:
                return False
        if unwritable:
            raise unwritable
        return None

    def keep(self, outputs: Mapping[str, Path]) -> None:
        """Store outputs, unless a value that determines them has changed since the start."""
        if self._store is None:
            return
        if self._read_key_parts() != self._determined:
            say(f"{self._step}: its inputs or its code changed while it ran: not stored")
            return
        with _go_on_without(self._store):
            keep(self._store, self._determined, outputs)


@contextmanager
def _go_on_without(store: Path) -> Iterator[None]:
    """If the store fails in the block, print a line and continue after the block."""
    try:
        yield
    except InputError as error:  # An output holds a link to a folder around it.
        say(f"store {store}: {error} The work goes on without it")
    except OSError as error:
        about = f" ({error.filename})" if error.filename else ""
        say(f"store {store}: {error.strerror or error}{about}; the work goes on without it")
