"""Compute how much longer a step is by its exchange, of which computing hides a part.

A background process looks for tensors that are known, exchanges all of them in fused messages, one
after the other, and looks again. Horovod looks once in a cycle (`RunLoopOnce` in
`horovod/common/operations.cc`, version 0.28), or when its messages are sent if they take longer. So
a tensor that is known after a look waits for the next one. Steps begin at any moment of a cycle, so
the result is a mean over these moments. The calibrated time of a transfer holds the mean wait, half
a cycle. It counts for a message that the rank waits for at once, and for the others the wait is
that of the look.

A transfer needs the core of its rank for a part of its time. So of a transfer that computing
covers, the part on the core makes the step longer. A transfer takes longer while the rank computes
on the same core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

from escala.analysis.cost_model.messages import Message
from escala.analysis.cost_model.transfers import Transfer

#: Moments of a cycle of which the mean is taken: the middles of so many equal parts, counted from
#: the end of computing. So what is known then waits half a cycle on average, exactly.
_MOMENTS = 8


def exposed_seconds(
    computing: float,
    messages: Sequence[Message],
    transfer: Callable[[str, float], Transfer],
    fusion_bytes: float,
    spare_core: bool = False,
    cycle_seconds: float = 0.0,
) -> float:
    """Return the time from the moment when a rank could have ended computing to the last transfer.

    Parameters
    ----------
    computing : seconds that a rank computes until its last gradient, if it does nothing else.
    messages : in the order in which they are known.
    transfer : returns the time of an operation on a number of bytes.
    fusion_bytes : largest size of a fused message.
    spare_core : whether transfers have a core that the rank does not compute on.
    cycle_seconds : between two moments at which the background process looks for tensors; 0 if it
        always does.
    """
    transfer = cache(transfer)
    moments = _MOMENTS if cycle_seconds else 1
    waits = [(moment + 0.5) / moments * cycle_seconds for moment in range(moments)]
    blocking = sum(
        transfer(each.operation, each.size).seconds for each in messages if each.blocking
    )
    others = [each for each in messages if not each.blocking]
    found = [
        _exposed_seconds(
            computing,
            others,
            transfer,
            fusion_bytes,
            spare_core,
            (computing + wait) % cycle_seconds if cycle_seconds else 0.0,
            cycle_seconds,
        )
        for wait in waits
    ]
    return blocking + sum(found) / moments


def _exposed_seconds(
    computing: float,
    messages: Sequence[Message],
    transfer: Callable[[str, float], Transfer],
    fusion_bytes: float,
    spare_core: bool,
    look: float,
    cycle: float,
) -> float:
    """Return the same if the background process looks for the first time after `look` seconds."""
    now = done = 0.0  # the time, and the computing that is done
    began, found = 0.0, -1.0  # the last look, and the computing that was done by then
    waiting = list(messages)
    while waiting:
        if (known := waiting[0].ready * computing) > found:
            began = _first_look(look, now + max(known - done, 0.0), cycle)
            found = done = max(min(done + began - now, computing), known)
            now = began
        fused = _fused(waiting, found, computing, fusion_bytes)
        waiting = waiting[len(fused) :]
        each = transfer(fused[0].operation, sum(message.size for message in fused))
        after = max(each.seconds - cycle / 2, 0.0)
        beside = after if spare_core else max(each.computing_seconds - cycle / 2, 0.0)
        # While both are active, computing advances by what the transfer does not take of the core.
        advance = max(beside - (0.0 if spare_core else each.core_seconds), 0.0)
        hidden = min(computing - done, advance)
        share = hidden / advance if advance else 0.0
        now += share * beside + (1 - share) * after
        done += hidden
        look = max(began + cycle, now)
    return now - done


def _first_look(look: float, known: float, cycle: float) -> float:
    """Return the first look at or after a moment, from one look on."""
    if known <= look or not cycle:
        return max(known, look)
    return look + math.ceil((known - look) / cycle) * cycle


def _fused(
    waiting: Sequence[Message], begins: float, computing: float, fusion_bytes: float
) -> list[Message]:
    """Return the first messages that are fused: of one operation, and not too large together.

    Parameters
    ----------
    begins : the computing that is done when the transfer begins; what is known by then is fused.
    """
    fused, size = [], 0.0
    for message in waiting:
        size += message.size
        known = message.ready * computing <= begins
        if fused and not (
            known and message.operation == fused[0].operation and size <= fusion_bytes
        ):
            break
        fused.append(message)
    return fused
