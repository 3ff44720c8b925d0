"""Time the collectives of a process, and its steps of each kind, in the calls of any framework."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from escala.core.files import write_json
from escala.probes import _cores
from escala.probes._turns import EXCHANGING, IN_TURNS, Blocks, Turns
from escala.probes.collectives import AFTER, ALONE, COMPUTING, FRACTIONS, Collectives

MOST_CALLS = 20
#: Skip a size if one call takes longer than this number of budgets (time of all calls of a size).
_MOST_BUDGETS = 4
#: Time in which the speed of products without calls is measured, and calls that do nothing, by
#: which they become slower too.
_USUAL_SECONDS, _EMPTY_CALLS = 0.2, 200


class Library(NamedTuple):
    """The collectives of a library, as a framework calls them.

    Attributes
    ----------
    name : one of `escala.core.engines.COLLECTIVES`.
    operations : those that ranks use.
    call : returns a collective of an operation and a size in bytes, which is called with the same
        values each time; every rank must call it.
    empty : a call of the framework that does nothing.
    agree : returns the mean of a number over the ranks, so that all decide the same.
    product : of the framework.
    """

    name: str
    operations: Sequence[str]
    call: Callable[[str, int], _cores.Timed]
    empty: _cores.Timed
    agree: Callable[[float], float]
    product: _cores.Product


class Timed(ABC):
    """Times the collectives of one process when it is made, and its steps of each kind.

    Attributes
    ----------
    alone : whether a rank can make steps without the other ranks.
    """

    def __init__(
        self, probe: Collectives, plan: Mapping, process: int, library: Library, alone: bool
    ):
        values, ranks = probe.values, plan["ranks"]
        whole_steps = plan["train_rows"] // plan["global_batch"]
        steps = min(whole_steps, plan["max_steps"] or whole_steps)
        # Those of a product in this process.
        threads = plan["knobs"]["threads"]["intra_op"] or plan["knobs"]["cores_per_process"]
        self.alone = alone
        self._path = probe.folder / f"rank{process}.collectives.json"
        self._library, self._blocks = library.name, Blocks.of(steps, values["block"])
        self._core = _cores.rates(values["rounds"], threads, library.product)
        self._timed = Timings(library, values["sizes"], values["rounds"], values["seconds"])
        self._timed.before_steps()
        self._timed.meet()
        communicating = _cores.library_threads()
        self._turns = Turns(
            process,
            ranks,
            self._blocks,
            self._timed.meet,
            partial(_cores.core_seconds, communicating),
        )

    @abstractmethod
    def exchange(self, exchanging: bool) -> None:
        """Let the next steps exchange gradients, or not."""

    @abstractmethod
    def broadcast(self) -> None:
        """Give every rank the trained weights of rank 0."""

    def note(self, epoch: int, step: int, began: float, gathered: float, returned: float) -> None:
        """Record the time of a step, and wait for the turn of the next one."""
        if not self.alone:
            return
        self._turns.note(epoch, step, returned - began)
        if self._blocks.kind(epoch, step) not in (EXCHANGING, IN_TURNS):
            self._timed.after_step()
        # Only at changes: a call of a framework between two short steps makes them longer.
        if self._blocks.begins(epoch, step + 1, EXCHANGING):
            self.exchange(True)
        elif self._blocks.ends(epoch, step, EXCHANGING):
            self.exchange(False)
        self._turns.wait(epoch, step)

    def write(self) -> None:
        if self.alone:
            self.broadcast()
        record = {"library": self._library, "alone": self.alone, "core": self._core}
        record |= {"rounds": self._turns.rounds, "times": self._timed.entries}
        write_json(self._path, record, durable=False)


class Timings:
    """Times the collectives of each operation and size, in calls of every rank.

    All calls of `before_steps` together take about so many `seconds`. `entries` are, of each
    operation and size, the seconds of each call of each repeat, by `WAYS`.
    """

    def __init__(self, library: Library, sizes: Sequence[int], repeats: int, seconds: float):
        budget = seconds / (repeats * len(library.operations) * len(sizes) * 2)
        self._repeats, self._agree, self._empty = repeats, library.agree, library.empty
        self._entries: list[dict] = []
        self._calls: list[tuple[_cores.Timed, int]] = []
        self._after: list[float] = []
        for operation in library.operations:
            for number, size in enumerate(ordered := sorted(sizes)):
                call = library.call(operation, size)
                call.seconds()  # Connects the ranks.
                # The shorter one, because a call may once take many times as long.
                once = self._agree(min(_cores.seconds_of(call.seconds) for _ in range(2)))
                count = max(1, min(MOST_CALLS, math.floor(budget / once)))
                self._entries.append({"operation": operation, "bytes": size})
                self._calls.append((call, count))
                larger = ordered[number + 1 : number + 2]
                if larger and once * larger[0] / size > _MOST_BUDGETS * budget:
                    break

    def before_steps(self) -> None:
        """Time all calls, with and without computing, in turns: a repeat has all of them."""
        for entry in self._entries:
            entry |= {way: [] for way in (ALONE, COMPUTING, FRACTIONS)}
        for _ in range(self._repeats):
            with _cores.Computing() as computing:
                usual = computing.rate(_USUAL_SECONDS)
                self._empty.seconds()
                _, by_calling = computing.alongside(self._empty, _EMPTY_CALLS, usual)
            for entry, (call, count) in zip(self._entries, self._calls, strict=True):
                call.seconds()
                entry[ALONE].append([call.seconds() for _ in range(count)])
                with _cores.Computing() as computing:
                    call.seconds()
                    found, lost = computing.alongside(call, count, usual)
                entry[COMPUTING].append(found)
                entry[FRACTIONS].append(max(1 - (lost - by_calling) * count / sum(found), 0.0))

    def after_step(self) -> None:
        """Time one call: that of the next entry."""
        call, _ = self._calls[len(self._after) % len(self._calls)]
        self._after.append(call.seconds())

    def meet(self) -> None:
        """Return when every rank has called it as often as this one."""
        self._agree(0.0)

    @property
    def entries(self) -> list[dict]:
        number = len(self._entries)
        whole = len(self._after) // number * number
        return [
            entry | {AFTER: [[each] for each in self._after[place:whole:number]]}
            for place, entry in enumerate(self._entries)
        ]
