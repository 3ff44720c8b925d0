"""The answer of a check, as a line of text."""

from __future__ import annotations

from dataclasses import dataclass

#: Characters of the column of names.
WIDTH = 22


@dataclass(frozen=True)
class Answer:
    """The result of a check: `detail` is the finding, or the reason for a no."""

    name: str
    able: bool
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = "" if self.able else f". Remedy: {self.remedy}"
        return f"{self.name:<{WIDTH}}{'yes' if self.able else 'no':<5}{self.detail}{remedy}"
