"""Compute how much longer a step is by its exchange, of which computing hides a part.

A background process transfers one fused message after the other, as Horovod does: when it is free,
it takes all tensors that are known. A transfer needs the core of its rank for a part of its time.
So of a transfer that computing covers, the part on the core makes the step longer. A transfer takes
longer while the rank computes on the same core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from escala.analysis.cost_model.messages import Message
from escala.analysis.cost_model.transfers import Transfer


def exposed_seconds(
    computing: float,
    messages: Sequence[Message],
    transfer: Callable[[str, float], Transfer],
    fusion_bytes: float,
    spare_core: bool = False,
) -> float:
    """Return the time from the moment when a rank could have ended computing to the last transfer.

    Parameters
    ----------
    computing : seconds that a rank computes until its last gradient, if it does nothing else.
    messages : in the order in which they are known.
    transfer : returns the time of an operation on a number of bytes.
    fusion_bytes : largest size of a fused message.
    spare_core : whether transfers have a core that the rank does not compute on.
    """
    now = done = 0.0  # the time, and the computing that is done
    waiting = list(messages)
    while waiting:
        known = waiting[0].ready * computing
        if known > done:
            now, done = now + known - done, known
        fused = _fused(waiting, done, computing, fusion_bytes)
        waiting = waiting[len(fused) :]
        each = transfer(fused[0].operation, sum(message.size for message in fused))
        beside = each.seconds if spare_core else each.computing_seconds
        # While both are active, computing advances by what the transfer does not take of the core.
        advance = beside - (0.0 if spare_core else each.core_seconds)
        hidden = min(computing - done, advance)
        share = hidden / advance if advance else 0.0
        now += share * beside + (1 - share) * each.seconds
        done += hidden
    return now - done


def _fused(
    waiting: Sequence[Message], done: float, computing: float, fusion_bytes: float
) -> list[Message]:
    """Return the first messages that are known, of one operation, and not too large together."""
    fused, size = [], 0.0
    for message in waiting:
        size += message.size
        known = message.ready * computing <= done
        if fused and not (
            known and message.operation == fused[0].operation and size <= fusion_bytes
        ):
            break
        fused.append(message)
    return fused
