"""Errors that a user can act on, the places where they arose, and the answers of checks."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Characters of a value in a message.
_LONGEST = 120


class InputError(ValueError):
    """An input of the user that cannot be used.

    Parameters
    ----------
    where : the file or the key of the config that holds the input, as the user wrote it.
    value : the present content; None without one. If `where` ends with the value, as a path ends
        with the name of its file, the message leaves the value out.
    reason : why the input cannot be used.
    remedy : what to do about it.
    """

    def __init__(self, where: object, value: object, reason: str, remedy: str):
        self.where, self.value, self.reason, self.remedy = where, value, reason, remedy
        text = repr(value)
        text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
        named = isinstance(value, str) and re.search(rf"(^|[/. ]){re.escape(value)}$", str(where))
        shown = "" if value is None or (value and named) else f" {text}:"
        super().__init__(f"{where}:{shown} {reason}. Remedy: {remedy}.")

    def __reduce__(self):
        return type(self), (self.where, self.value, self.reason, self.remedy)


class InputErrors(InputError):
    """Errors of several inputs, one line each. The attributes are those of the first error."""

    def __init__(self, errors: Sequence[InputError]):
        self.errors, first = list(errors), errors[0]
        super().__init__(first.where, first.value, first.reason, first.remedy)
        self.args = ("\n".join(dict.fromkeys(map(str, errors))),)

    def __reduce__(self):
        return type(self), (self.errors,)


class Unavailable(RuntimeError):
    """A program or device that a run needs is missing."""


class Diverged(ArithmeticError):
    """The training loss is infinite or not a number."""


class Failed(RuntimeError):
    """The training of a run has failed; the message says how.

    Attributes
    ----------
    at : when the program ended, in seconds since 1970. Not set if it ended just now.
    code : the exit code of the program, or the negative number of the signal that ended it. Not set
        if no program ended.
    """


def place_in(error: BaseException, folder: Path) -> str | None:
    """Return the file and line of a folder's code where an error was raised, or None.

    TensorFlow raises a new error for a compiled function; the file and line are in its text.
    """
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, frame.lineno) for frame in frames]
    places += re.findall(r'File "([^"]+)", line (\d+)', str(error))
    inside = [place for place in places if folder in Path(place[0]).parents]
    return "{}, line {}".format(*inside[-1]) if inside else None


def text_of(error: BaseException) -> str:
    """Return the type and the text of an error, without additions of TensorFlow and Keras.

    They add a traceback, and the names and the arguments of the layers that were called.
    """
    text = str(error).strip()
    kind = f"{type(error).__name__}: "
    if text.startswith(("in user code:", "Exception encountered when calling")):
        # The text of a traceback names the type itself.
        kind = "" if "in user code:" in text else kind
        text = text.partition("Call arguments received")[0].strip().split("\n\n")[-1].strip()
    return kind + text


#: The width of the column of names, in letters.
WIDTH = 22


@dataclass(frozen=True)
class Answer:
    """The answer to a check: yes or no (`able`), and the finding, or the reason for a no."""

    name: str
    able: bool
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = "" if self.able else f". Remedy: {self.remedy}"
        return f"{self.name:<{WIDTH}}{'yes' if self.able else 'no':<5}{self.detail}{remedy}"


class Refused(Exception):
    """A part that a user wrote does not do what its contract says."""

    def __init__(self, reason: str, remedy: str):
        self.reason, self.remedy = reason, remedy
        super().__init__(reason)


def answer_of(name: str, check: Callable[[Any], str], subject: Any, folder: Path) -> Answer:
    """Return the answer to a check. The check calls code of the user, which may raise anything.

    Parameters
    ----------
    check : takes the subject, and returns the finding.
    folder : the folder with the code of the user.
    """
    try:
        return Answer(name, True, check(subject))
    except Refused as error:
        return Answer(name, False, error.reason, error.remedy)
    except InputError as error:
        return Answer(name, False, f"{error.where}: {error.reason}", error.remedy)
    except Exception as error:
        place = place_in(error, folder.resolve())
        reason = text_of(error).splitlines()[0]
        return Answer(name, False, reason, f"see {place or 'the docstring of escala.workloads'}")
