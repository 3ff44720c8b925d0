"""Errors a user can act on."""

from __future__ import annotations

from collections.abc import Sequence


class InputError(ValueError):
    """An input of the user that cannot be used.

    Parameters
    ----------
    where : the file or the key of the config that holds it, as the user wrote it.
    value : its present content; None if it has none.
    reason : why it cannot be used.
    remedy : what to do about it.
    """

    def __init__(self, where: object, value: object, reason: str, remedy: str):
        self.where, self.value, self.reason, self.remedy = where, value, reason, remedy
        shown = "" if value is None else f" {_shown(value)}:"
        super().__init__(f"{where}:{shown} {reason}. Remedy: {remedy}.")

    def __reduce__(self):
        return type(self), (self.where, self.value, self.reason, self.remedy)


class InputErrors(InputError):
    """Several inputs that cannot be used, a line each; it has the attributes of the first."""

    def __init__(self, errors: Sequence[InputError]):
        self.errors, first = list(errors), errors[0]
        super().__init__(first.where, first.value, first.reason, first.remedy)
        self.args = ("\n".join(dict.fromkeys(map(str, errors))),)

    def __reduce__(self):
        return type(self), (self.errors,)


def _shown(value: object, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


class Unavailable(RuntimeError):
    """A program or device that a run needs is missing."""


class Diverged(ArithmeticError):
    """The training loss is infinite or not a number."""


class Failed(RuntimeError):
    """The training of a run has failed; the message says how.

    Attributes
    ----------
    at : when the program ended, in seconds since 1970. Not set if it ended just now.
    code : the exit code of the program, or minus the signal that ended it. Not set if there is
        none.
    """
