"""Steps that all ranks make at the same time, and steps that they make in turns.

The speed of a machine drifts within seconds, and differs between runs. So both kinds of steps
alternate within one run, in blocks. A block of each kind is a pair, and the time of a step in one,
divided by that in the other, is what the ranks lose by each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple


class Blocks(NamedTuple):
    """The blocks of an epoch: pairs of `length` steps at the same time and `length` in turns.

    Steps after the last pair are made at the same time. A step has a number from 1.
    """

    length: int
    pairs: int

    @classmethod
    def of(cls, steps: int, length: int) -> Blocks:
        """Return the blocks of nearly a length that fill so many steps."""
        pairs = max(1, round(steps / (2 * length)))
        return cls(steps // (2 * pairs), pairs)

    def pair(self, step: int) -> int | None:
        """Return the number of the step's pair, from 0; None after the last one."""
        if not 1 <= step <= 2 * self.length * self.pairs:
            return None
        return (step - 1) // (2 * self.length)

    def in_turns(self, step: int) -> bool:
        """Return whether only one rank makes this step at a time."""
        return self.pair(step) is not None and (step - 1) // self.length % 2 == 1

    def begins_turn(self, step: int) -> bool:
        return self.in_turns(step) and not self.in_turns(step - 1)

    def ends_turn(self, step: int) -> bool:
        return self.in_turns(step) and not self.in_turns(step + 1)


class Turns:
    """Lets one rank make the steps of a block while the others wait, and records their times.

    Parameters
    ----------
    rank : of `ranks` in all.
    meet : returns when every rank has called it as often as this one.
    library_seconds : returns the seconds that threads of the library have run in this process.

    Attributes
    ----------
    pairs : of each pair of blocks, the seconds of its steps, at the same time and in turns, and
        those that the library ran since the step before, in turns.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        blocks: Blocks,
        meet: Callable[[], None],
        library_seconds: Callable[[], float],
    ):
        self._rank, self._ranks, self._blocks, self._meet = rank, ranks, blocks, meet
        self._library_seconds, self._before = library_seconds, 0.0
        self.pairs: list[dict[str, list[float]]] = []

    def note(self, step: int, seconds: float) -> None:
        """Record the time of a step of an epoch."""
        if self._blocks.pair(step) is None:
            return
        if self._blocks.pair(step) != self._blocks.pair(step - 1):
            self.pairs.append({TOGETHER: [], IN_TURNS: [], LIBRARY: []})
        if not self._blocks.in_turns(step):
            self.pairs[-1][TOGETHER].append(seconds)
            return
        before, self._before = self._before, self._library_seconds()
        self.pairs[-1][IN_TURNS].append(seconds)
        self.pairs[-1][LIBRARY].append(self._before - before)

    def wait(self, step: int) -> None:
        """Return when this rank may go on after a step.

        Of n ranks, rank r begins its turn when all ranks have met r + 1 times, and ends it before
        they meet the next time. Each rank has met n + 1 times when the last turn has ended.
        """
        blocks = self._blocks
        before = self._rank + 1 if blocks.begins_turn(step + 1) else 0
        after = self._ranks - self._rank if blocks.ends_turn(step) else 0
        for _ in range(before + after):
            self._meet()


#: What is recorded of a pair.
TOGETHER, IN_TURNS, LIBRARY = "together_seconds", "in_turns_seconds", "library_seconds"
#: The pairs of each rank, as `Turns` records them.
OfRanks = Sequence[Sequence[Mapping[str, Sequence[float]]]]


def slowdowns(of_ranks: OfRanks) -> list[float]:
    """Return for each pair of blocks how many times longer a step takes beside the other ranks.

    It is the mean of the steps at the same time, divided by that of the steps in turns. The first
    step of a block is left out if there are others, because the cores were idle or exchanged
    before it.
    """
    return [
        _mean(each[TOGETHER] for each in of_pair) / _mean(each[IN_TURNS] for each in of_pair)
        for of_pair in zip(*of_ranks, strict=True)
    ]


def library_shares(of_ranks: OfRanks) -> list[float]:
    """Return for each pair of blocks the share of a core that threads of the library take.

    It is that of steps in turns, without the first one of a block, before which the rank waits. So
    a block of one step has none.
    """
    return [
        _mean(each[LIBRARY] for each in of_pair) / _mean(each[IN_TURNS] for each in of_pair)
        for of_pair in zip(*of_ranks, strict=True)
        if len(of_pair[0][IN_TURNS]) > 1
    ]


def _mean(blocks: Iterable[Sequence[float]]) -> float:
    seconds = [each for block in blocks for each in (block[1:] or block)]
    return sum(seconds) / len(seconds)
