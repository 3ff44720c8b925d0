"""Follow configurations over the sessions of a history, and mark changes that recur."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import duckdb

from escala.analysis import changes, history
from escala.analysis.comparable import alike_rates, alike_speeds
from escala.core.readable import counted
from escala.experiment.runs import Configuration


class Quantity(NamedTuple):
    """A quantity to follow: the query in `history.QUERIES` that has it, its name and its unit."""

    query: str
    label: str
    unit: str


QUANTITIES = {
    "time": Quantity("times", "training seconds per epoch", " s"),
    "ratio": Quantity("ratios", "ratio to one process", ""),
}
#: What names a series to readers.
NAMES = ("dataset", "workload", *Configuration._fields)


class Session(NamedTuple):
    """Measurements of a series in one session: `value` is their median, with their range."""

    session: str
    started: datetime
    value: float
    least: float
    most: float
    measurements: int
    mbit_per_second: float | None
    speed_seconds: float | None
    hosts: str
    versions: str
    source_sha256: str


class Series(NamedTuple):
    """Sessions in order of time, alike in every condition of a comparison but versions and code.

    Attributes
    ----------
    names : dataset, workload, strategy, layout, variant, network.
    digest : the column `series_sha256`.
    machines : the kinds of the machines.
    """

    names: tuple[str, ...]
    digest: str
    machines: str
    sessions: list[Session]

    @property
    def title(self) -> str:
        dataset, workload, *configuration = self.names
        return f"{dataset}, {workload}: {Configuration(*configuration)}"

    def marks(self, **limits: Any) -> changes.Marks:
        """Return the changes that `escala.analysis.changes.mark` marks."""
        return changes.mark([each.value for each in self.sessions], **limits)

    def differs_from_before(self, position: int) -> list[str]:
        """Return what differs between a session and the one before: versions, code or hosts."""
        before, after = self.sessions[max(0, position - 1)], self.sessions[position]
        parts = {"versions": "versions", "code": "source_sha256", "hosts": "hosts"}
        return [
            name for name, part in parts.items() if getattr(before, part) != getattr(after, part)
        ]


def series(database: duckdb.DuckDBPyConnection, quantity: str = "time") -> list[Series]:
    """Return the series of a history.

    A configuration has a series for each speed of the machines, and over several nodes for each
    rate of its link, as measured: those of one series are alike.

    Parameters
    ----------
    quantity : a name of `QUANTITIES`.
    """
    table = history.query(database, history.named_query(QUANTITIES[quantity].query))
    found: dict[tuple, list[Series]] = {}
    for values in table.rows:
        row = dict(zip(table.columns, values, strict=True))
        key = (tuple(row[name] for name in NAMES), row["series_sha256"], row["machines"])
        session = Session(*(row[name] for name in Session._fields))
        alike = found.setdefault(key, [])
        for each in alike:
            first = each.sessions[0]
            if alike_rates(first.mbit_per_second, session.mbit_per_second) and alike_speeds(
                first.speed_seconds, session.speed_seconds
            ):
                each.sessions.append(session)
                break
        else:
            alike.append(Series(*key, [session]))
    return [each for alike in found.values() for each in alike]


def lines(found: Iterable[Series], quantity: str = "time", **limits: Any) -> Iterator[str]:
    """Yield lines on the changes of each series that has any, and on the series without.

    Parameters
    ----------
    limits : further arguments of `escala.analysis.changes.mark`.
    """
    found, unit = list(found), QUANTITIES[quantity].unit
    steady, short, longest = 0, 0, 0
    needed = limits.get("before", changes.BEFORE) + limits.get("recurrence", changes.RECURRENCE)
    for each in found:
        marks = each.marks(**limits)
        short += len(each.sessions) < needed
        steady += not marks.changes and len(each.sessions) >= needed
        longest = max(longest, len(each.sessions))
        described = [_line(each, change, unit) for change in marks.changes]
        if marks.unconfirmed:
            described.append(f"not confirmed: {_line(each, marks.unconfirmed, unit)}")
        if described:
            yield f"{each.title}; {each.machines}"
            yield from (f"  {line}" for line in described)
    yield f"{counted(len(found), 'series', 'series')}: {steady} without a change, {short} too short"
    if short:
        yield f"A change needs {needed} sessions: {short} of the series have fewer."
    if longest >= needed:
        lengths = {key: limits[key] for key in ("recurrence", "before") if key in limits}
        chance = changes.chance_of_a_mark(longest, **lengths)
        yield (
            f"A steady series of {longest} sessions has a mark with a probability of at most "
            f"{chance:.2g}."
        )


def _line(found: Series, change: changes.Change, unit: str) -> str:
    session = found.sessions[change.first]
    other = found.differs_from_before(change.first)
    changed = f"; other {' and '.join(other)} than the session before" if other else ""
    return (
        f"{session.started:%Y-%m-%d %H:%M} session {session.session}: {change.before:.4g}{unit} "
        f"to {change.after:.4g}{unit} ({change.relative:+.1%}), "
        f"{counted(change.sessions, 'session')} in a row{changed}"
    )


def by_digest(found: Iterable[Series]) -> Mapping[tuple, list[Series]]:
    """Group series that differ in the machines only."""
    groups: dict[tuple, list[Series]] = {}
    for each in found:
        groups.setdefault((each.names, each.digest), []).append(each)
    return groups
