"""DistributedDataParallel of ranks of unequal speed: each takes a fraction of every batch.

Every rank divides the loss of a row by the global number of rows, so the sum of the gradients is
that of one process with all rows, whatever the fractions.
"""

from __future__ import annotations

from escala.strategies.ddp import DDP


class DDPHybrid(DDP):
    position = 24
