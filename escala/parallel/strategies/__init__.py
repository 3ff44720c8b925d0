"""Strategies: how replicas synchronise. Adding one is adding a module and a line here."""

from __future__ import annotations

from escala.parallel.strategies.base import Strategy
from escala.parallel.strategies.horovod_gloo import HorovodGloo
from escala.parallel.strategies.horovod_mpi import HorovodMPI
from escala.parallel.strategies.hybrid import Hybrid
from escala.parallel.strategies.mirrored import Mirrored
from escala.parallel.strategies.multiworker_mirrored import MultiWorkerMirrored
from escala.parallel.strategies.parameter_server import ParameterServer
from escala.parallel.strategies.single import Single
from escala.parallel.strategies.wrapped_single import WrappedSingle

STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy
    for strategy in (
        Single,
        WrappedSingle,
        HorovodMPI,
        HorovodGloo,
        Hybrid,
        Mirrored,
        MultiWorkerMirrored,
        ParameterServer,
    )
}

__all__ = ["STRATEGIES", "Strategy"]
