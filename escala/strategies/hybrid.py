"""Ranks of unequal speed: each takes the share of every batch that it can do in the same time.

The loss of a row is divided by the global number of rows wherever the row is computed, so the sum
of the gradients is that of one process on the union however unequal the shares are.
"""

from __future__ import annotations

from escala.strategies.horovod_mpi import HorovodMPI


class Hybrid(HorovodMPI):
    name = "hybrid"
    position = 4
    by_speed = True
