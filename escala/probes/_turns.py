"""Steps that ranks make at the same time, in turns, and with an exchange.

The speed of a machine drifts within seconds, and differs between runs. So these kinds of steps
alternate within one run, in blocks. A block of each kind is a round. Within a round, the ratio of a
step at the same time to one in turns is what the ranks lose by each other, and the difference of a
step that exchanges to one at the same time is what they lose by the exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

#: Kinds of blocks, in the order of a round. Steps at the same time follow those that exchange, so
#: that neighbours are compared.
EXCHANGING, TOGETHER, IN_TURNS = KINDS = (
    "exchanging_seconds",
    "together_seconds",
    "in_turns_seconds",
)
#: What is also recorded of steps in turns.
LIBRARY = "library_seconds"


class Blocks(NamedTuple):
    """Blocks of `length` steps, whose kinds alternate over the epochs of a run.

    Epochs and their steps have numbers from 1. In an epoch, the first step is in no block, nor are
    those after its `per_epoch` blocks. So no turn goes on over the end of an epoch, where all ranks
    exchange.
    """

    length: int
    per_epoch: int

    @classmethod
    def of(cls, steps: int, length: int) -> Blocks:
        """Return blocks of about the given length that fill the given steps of an epoch."""
        per_epoch = max(1, round((steps - 1) / length))
        return cls(max(steps - 1, 0) // per_epoch, per_epoch)

    def number(self, epoch: int, step: int) -> int | None:
        """Return the number of a step's block, from 0 on over all epochs; None outside of them."""
        if not 2 <= step <= self.length * self.per_epoch + 1:
            return None
        return (epoch - 1) * self.per_epoch + (step - 2) // self.length

    def kind(self, epoch: int, step: int) -> str | None:
        """Return one of `KINDS`, None outside of blocks."""
        number = self.number(epoch, step)
        return None if number is None else KINDS[number % len(KINDS)]

    def begins(self, epoch: int, step: int, kind: str) -> bool:
        """Return whether a block of a kind begins with this step."""
        changed = self.number(epoch, step) != self.number(epoch, step - 1)
        return changed and self.kind(epoch, step) == kind

    def ends(self, epoch: int, step: int, kind: str) -> bool:
        """Return whether a block of a kind ends with this step."""
        changed = self.number(epoch, step) != self.number(epoch, step + 1)
        return changed and self.kind(epoch, step) == kind


class Turns:
    """Lets one rank make the steps of a block while the others wait, and records their times.

    Parameters
    ----------
    rank : of `ranks` in all.
    meet : returns when every rank has called it as often as this one.
    library_seconds : returns the seconds that threads of the library have run in this process.

    Attributes
    ----------
    rounds : of each round, the seconds of its steps by `KINDS`, and those that the library ran
        since the step before, in turns.
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
        self.rounds: list[dict[str, list[float]]] = []

    def note(self, epoch: int, step: int, seconds: float) -> None:
        """Record the time of a step."""
        kind = self._blocks.kind(epoch, step)
        if kind is None:
            return
        if self._blocks.begins(epoch, step, KINDS[0]):
            self.rounds.append({name: [] for name in (*KINDS, LIBRARY)})
        self.rounds[-1][kind].append(seconds)
        if kind == IN_TURNS:
            before, self._before = self._before, self._library_seconds()
            self.rounds[-1][LIBRARY].append(self._before - before)

    def wait(self, epoch: int, step: int) -> None:
        """Return when this rank may go on after a step.

        Of n ranks, rank r begins its turn when all ranks have met r + 1 times, and ends it before
        they meet the next time. Each rank has met n + 1 times when the last turn has ended.
        """
        blocks = self._blocks
        before = self._rank + 1 if blocks.begins(epoch, step + 1, IN_TURNS) else 0
        after = self._ranks - self._rank if blocks.ends(epoch, step, IN_TURNS) else 0
        for _ in range(before + after):
            self._meet()


#: The rounds of each rank, as `Turns` records them.
EachRank = Sequence[Sequence[Mapping[str, Sequence[float]]]]


def slowdowns(each_rank: EachRank) -> list[float]:
    """Return for each round how many times longer a step takes alongside the other ranks.

    It is the mean of the steps at the same time, divided by that of the steps in turns. The first
    step of a block is left out if there are others: the cores did something else before it.
    """
    return [_mean(round_, TOGETHER) / _mean(round_, IN_TURNS) for round_ in _whole(each_rank)]


def exchanges(each_rank: EachRank) -> list[float]:
    """Return for each round how many seconds longer a step takes if it exchanges.

    It is negative if something disturbed the steps at the same time.
    """
    return [_mean(round_, EXCHANGING) - _mean(round_, TOGETHER) for round_ in _whole(each_rank)]


def library_fractions(each_rank: EachRank) -> list[float]:
    """Return for each round the fraction of a core that threads of the library take.

    It is that of steps in turns, without the first one of a block, before which the rank waits. So
    a block of one step has none.
    """
    return [
        _mean(round_, LIBRARY) / _mean(round_, IN_TURNS)
        for round_ in _whole(each_rank)
        if len(round_[0][IN_TURNS]) > 1
    ]


def _whole(each_rank: EachRank) -> Iterator[Sequence[Mapping[str, Sequence[float]]]]:
    """Yield the ranks of each round, without a round that the run ended before its last block."""
    return (round_ for round_ in zip(*each_rank, strict=True) if round_[0][IN_TURNS])


def _mean(round_: Iterable[Mapping[str, Sequence[float]]], name: str) -> float:
    blocks = [rank[name] for rank in round_]
    seconds = [each for block in blocks for each in (block[1:] or block)]
    return sum(seconds) / len(seconds)
