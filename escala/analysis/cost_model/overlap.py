"""Compute how much longer a step is by its exchange, of which computing hides a part.

A background process transfers one fused message after the other, as Horovod does: when it is free,
it takes all tensors that are known. Horovod looks for tensors once in a cycle (`RunLoopOnce` in
`horovod/common/operations.cc`, version 0.28). So a tensor that is known while nothing is
transferred waits for the next cycle, and those that are known by then go with it. Steps begin at
any moment of a cycle, so the result is a mean over these moments. The calibrated time of a transfer
holds the mean wait, half a cycle.

A transfer needs the core of its rank for a part of its time. So of a transfer that computing
covers, the part on the core makes the step longer. A transfer takes longer while the rank computes
on the same core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from escala.analysis.cost_model.messages import Message
from escala.analysis.cost_model.transfers import Transfer

#: Moments of a cycle of which the mean is taken: the middles of so many equal parts.
_MOMENTS = 4


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
    moments = _MOMENTS if cycle_seconds else 1
    waits = [(moment + 0.5) / moments * cycle_seconds for moment in range(moments)]
    found = [
        _exposed_seconds(
            computing, messages, transfer, fusion_bytes, spare_core, wait, cycle_seconds / 2
        )
        for wait in waits
    ]
    return sum(found) / moments


def _exposed_seconds(
    computing: float,
    messages: Sequence[Message],
    transfer: Callable[[str, float], Transfer],
    fusion_bytes: float,
    spare_core: bool,
    wait: float,
    mean_wait: float,
) -> float:
    """Return the same if the first tensor of a transfer waits for so many seconds.

    A transfer that follows another begins at once. It takes the calibrated time nevertheless,
    because the next cycle of a short transfer is late.
    """
    now = done = 0.0  # the time, and the computing that is done
    waiting = list(messages)
    while waiting:
        known = waiting[0].ready * computing
        begins, later, least = done, 0.0, 0.0
        if known >= done:
            now, done = now + known - done, known
            begins, later, least = known + wait, wait - mean_wait, wait
        fused = _fused(waiting, begins, computing, fusion_bytes)
        waiting = waiting[len(fused) :]
        each = transfer(fused[0].operation, sum(message.size for message in fused))
        after = max(each.seconds + later, least)
        beside = after if spare_core else max(each.computing_seconds + later, least)
        # While both are active, computing advances by what the transfer does not take of the core.
        advance = max(beside - (0.0 if spare_core else each.core_seconds), 0.0)
        hidden = min(computing - done, advance)
        share = hidden / advance if advance else 0.0
        now += share * beside + (1 - share) * after
        done += hidden
    return now - done


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
