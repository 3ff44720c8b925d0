"""Compute how much longer a step is by its exchange, of which computing hides a part.

A background process looks for tensors that are known, exchanges all of them in fused messages, one
after the other, and looks again. Horovod looks once in a cycle (`RunLoopOnce` in
`horovod/common/operations.cc`, version 0.28), or when its messages are sent if they take longer. So
a tensor that is known after a look waits for the next one. Steps begin at any moment of a cycle, so
the result is a mean over these moments. The calibrated time of a transfer holds the mean wait, half
a cycle, in whose place the wait is that of the look.

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

#: Largest size of tensors that Horovod exchanges as one, and its time between two looks: the
#: defaults of version 0.28.
FUSION_BYTES, CYCLE_SECONDS = 128 * 2**20, 1e-3
#: Moments of a cycle of which the mean is taken: the middles of so many equal parts, counted from
#: the end of computing. So what is known then waits half a cycle on average, exactly.
_MOMENTS = 8


def exposed_seconds(
    computing: float,
    messages: Sequence[Message],
    transfer: Callable[[str, float], Transfer],
    spare_core: bool = False,
    cycle: float = 0.0,
    fusion_bytes: float = FUSION_BYTES,
) -> float:
    """Return the time from the moment when a rank could have ended computing to the last transfer.

    Parameters
    ----------
    computing : seconds that a rank computes until its last gradient, if it does nothing else.
    messages : in the order in which they are known.
    transfer : returns the time of an operation on a number of bytes.
    spare_core : whether transfers have a core that the rank does not compute on.
    cycle : seconds between two looks; 0 if the background process always looks.
    fusion_bytes : largest size of a fused message.
    """
    transfer = cache(transfer)
    looks = [0.0]
    if cycle:
        looks = [
            (computing + (moment + 0.5) / _MOMENTS * cycle) % cycle for moment in range(_MOMENTS)
        ]
    found = [
        _exposed(computing, messages, transfer, spare_core, cycle, fusion_bytes, look)
        for look in looks
    ]
    return sum(found) / len(found)


def _exposed(
    computing: float,
    messages: Sequence[Message],
    transfer: Callable[[str, float], Transfer],
    spare_core: bool,
    cycle: float,
    fusion_bytes: float,
    look: float,
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
        alongside = after if spare_core else max(each.computing_seconds - cycle / 2, 0.0)
        # While both are active, computing advances by what the transfer does not take of the core.
        advance = max(alongside - (0.0 if spare_core else each.core_seconds), 0.0)
        hidden = min(computing - done, advance)
        fraction = hidden / advance if advance else 0.0
        now += fraction * alongside + (1 - fraction) * after
        done += hidden
        look = max(began + cycle, now)
    return now - done


def _first_look(look: float, known: float, cycle: float) -> float:
    """Return the first look at or after a moment, from one look on."""
    if known <= look or not cycle:
        return max(known, look)
    return look + math.ceil((known - look) / cycle) * cycle


def _fused(
    waiting: Sequence[Message], done: float, computing: float, fusion_bytes: float
) -> list[Message]:
    """Return the first messages that are fused: of one operation, and not too large together.

    Parameters
    ----------
    done : the computing when the transfer begins; what is known by then is fused.
    """
    fused, size = [waiting[0]], waiting[0].size
    for message in waiting[1:]:
        size += message.size
        known = message.ready * computing <= done
        if not known or message.operation != fused[0].operation or size > fusion_bytes:
            break
        fused.append(message)
    return fused
