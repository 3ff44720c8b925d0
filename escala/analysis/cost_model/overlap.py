"""Compute by how much an exchange makes a step longer; computing hides a part of it.

A background thread polls for tensors that are known, exchanges all of them in fused messages, one
after the other, and polls again. Horovod polls once per cycle (`RunLoopOnce` in
`horovod/common/operations.cc`, version 0.28), or later if sending takes longer than a cycle. A
tensor that becomes known after a poll waits for the next poll. A step may begin at any moment of a
cycle, so the result is the mean over such moments. Calibrated times of transfers include the mean
wait of half a cycle. It is subtracted here, because the wait for the poll is computed. PyTorch
sends a bucket as soon as it is known, and fuses none: for it there is no cycle, and a fused message
has no bytes.

A transfer needs the core of its rank for a part of its time. Even if computing hides the whole
transfer, this part makes the step longer. A transfer also takes longer while the rank computes on
the same core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

from escala.analysis.cost_model.messages import Message
from escala.analysis.cost_model.transfers import Transfer

#: Horovod's fusion threshold, and its cycle time between two polls: defaults of version 0.28.
FUSION_BYTES, CYCLE_SECONDS = 128 * 2**20, 1e-3
#: Number of moments of a cycle over which the mean is taken: midpoints of equal parts of the cycle,
#: counted from the end of computing. So a tensor that is known at that end waits exactly half a
#: cycle on average.
_MOMENTS = 8


def exposed_seconds(
    computing: float,
    messages: Sequence[Message],
    transfer: Callable[[str, float], Transfer],
    spare_core: bool = False,
    cycle: float = 0.0,
    fusion_bytes: float = FUSION_BYTES,
) -> float:
    """Return by how many seconds the exchange makes a step longer than its computing.

    Parameters
    ----------
    computing : seconds until a rank has its last gradient, if it only computes.
    messages : in the order in which they are known.
    transfer : returns the time of an operation on a number of bytes.
    spare_core : whether transfers have a core that the rank does not compute on.
    cycle : seconds between two polls; 0 if the background thread polls all the time.
    fusion_bytes : largest size of a fused message.
    """
    transfer = cache(transfer)
    first_polls = [0.0]
    if cycle:
        first_polls = [
            (computing + (moment + 0.5) / _MOMENTS * cycle) % cycle for moment in range(_MOMENTS)
        ]
    found = [
        _exposed(computing, messages, transfer, spare_core, cycle, fusion_bytes, first_poll)
        for first_poll in first_polls
    ]
    return sum(found) / len(found)


def _exposed(
    computing: float,
    messages: Sequence[Message],
    transfer: Callable[[str, float], Transfer],
    spare_core: bool,
    cycle: float,
    fusion_bytes: float,
    poll: float,
) -> float:
    """Return `exposed_seconds` if the background thread first polls after `poll` seconds."""
    now = done = 0.0  # the time, and the seconds of computing done
    polled, done_at_poll = 0.0, -1.0  # the last poll, and the computing done by then
    waiting = list(messages)
    while waiting:
        if (known := waiting[0].ready * computing) > done_at_poll:
            polled = _first_poll(poll, now + max(known - done, 0.0), cycle)
            done_at_poll = done = max(min(done + (polled - now), computing), known)
            now = polled
        fused = _fused(waiting, done_at_poll, computing, fusion_bytes)
        waiting = waiting[len(fused) :]
        each = transfer(fused[0].operation, sum(message.size for message in fused))
        alone = max(each.seconds - cycle / 2, 0.0)
        alongside = alone if spare_core else max(each.seconds + each.core_seconds - cycle / 2, 0.0)
        # While both are active, computing has the core whenever the transfer leaves it free.
        advance = max(alongside - (0.0 if spare_core else each.core_seconds), 0.0)
        hidden = min(computing - done, advance)
        fraction = hidden / advance if advance else 0.0
        now += fraction * alongside + (1 - fraction) * alone
        # A sum that rounds to less than all computing would wait for one more poll.
        done = computing if hidden == computing - done else done + hidden
        poll = max(polled + cycle, now)
    return now - done


def _first_poll(poll: float, known: float, cycle: float) -> float:
    """Return when the first poll at or after the moment `known` is; `poll` is one of the polls."""
    if known <= poll or not cycle:
        return max(known, poll)
    return poll + math.ceil((known - poll) / cycle) * cycle


def _fused(
    waiting: Sequence[Message], done: float, computing: float, fusion_bytes: float
) -> list[Message]:
    """Return the first messages that are fused: of one operation, and not too large together.

    Parameters
    ----------
    done : seconds of computing done at the poll; tensors that are known by then are fused.
    """
    fused, size = [waiting[0]], waiting[0].size
    for message in waiting[1:]:
        size += message.size
        known = message.ready * computing <= done
        if not known or message.operation != fused[0].operation or size > fusion_bytes:
            break
        fused.append(message)
    return fused
