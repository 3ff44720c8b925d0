"""Strategies: how replicas synchronise. Adding one is adding a module and a line here."""

from __future__ import annotations

from escala.parallel.strategies.base import Strategy
from escala.parallel.strategies.horovod_gloo import HorovodGloo
from escala.parallel.strategies.horovod_mpi import HorovodMPI
from escala.parallel.strategies.single import Single

STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy for strategy in (Single, HorovodMPI, HorovodGloo)
}

__all__ = ["STRATEGIES", "Strategy"]
