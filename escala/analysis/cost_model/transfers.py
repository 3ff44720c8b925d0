"""Predict the time of a collective from measured times, also for other layouts and networks.

    seconds = overhead + latency · messages + seconds_per_byte · bytes

Messages and bytes are those of a ring (`traffic`). Overhead and seconds per byte are fitted to the
measured sizes by non-negative least squares of relative residuals. The latency is that of the
network; without one it is a part of the overhead. The overhead does not depend on size and ranks:
for Horovod, negotiation and the wait for its cycle.

For a layout and network that were measured, the fit is multiplied at each size by measured divided
by fitted seconds: it holds whatever algorithm the library chose there, as Open MPI does by size and
ranks. For others, only the fit is used: more ranks than were measured are taken for a ring.

On a network that was not calibrated, `seconds_per_byte` is the maximum of two: the fitted one of
the fastest calibrated network, where the processor limits the rate, and the inverse of the new
network's rate. It is their maximum, not their sum, because a rank transfers a part of a message
while it copies or adds another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression, nnls

from escala.analysis.cost_model.calibration import LOCAL, Calibration, CollectiveTimes, Network
from escala.core.engines import COLLECTIVES
from escala.core.errors import InputError
from escala.probes.collectives import ALLGATHER
from escala.runtime.layout import Layout

#: The largest segment of a sum by Gloo.
GLOO_SEGMENT_BYTES = 2**20
#: Size of the cache of fits. A smaller one than draws times calibrated operations and networks
#: would compute fits again for each prediction.
_CACHED_FITS = 2**13


def traffic(library: str, operation: str, ranks: int, size: float) -> tuple[float, float]:
    """Return the messages that follow each other in a ring, and their bytes.

    A sum takes 2(p-1) messages of n/p bytes, a gather p-1 messages of n bytes (R. Thakur,
    R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH, Int. J.
    High Performance Computing Applications 19 (2005), 49-66). The time to add bytes is a part of
    that to send them. Ranks are numbered node by node, so the link of a node carries one message of
    each round. Gloo sums in segments of at most 1 MiB, at least two for each rank
    (`gloo/allreduce.cc`).

    Parameters
    ----------
    size : bytes of a rank's tensor before the operation: in an allreduce as large as the result, in
        an allgather a part of it.
    """
    if operation == ALLGATHER:
        return ranks - 1, (ranks - 1) * size
    segments = 1.0
    if COLLECTIVES[library].segmented:
        segments = max(2, -(-size // (ranks * GLOO_SEGMENT_BYTES)))
    return 2 * (ranks - 1) * segments, 2 * (ranks - 1) / ranks * size


@dataclass(frozen=True)
class Fit:
    """The parameters of a collective.

    Attributes
    ----------
    overhead : seconds.
    sizes : bytes that were measured, of shape (sizes,).
    ratios : measured seconds divided by fitted ones, of the same shape.
    """

    overhead: float
    seconds_per_byte: float
    sizes: np.ndarray
    ratios: np.ndarray

    def ratio(self, size: float) -> float:
        """Return measured seconds divided by fitted ones, interpolated between measured sizes."""
        return float(np.interp(np.log(size), np.log(self.sizes), self.ratios))


@dataclass(frozen=True)
class Transfer:
    """The time of a collective.

    Attributes
    ----------
    seconds : from the moment when the last rank is ready, if no rank computes meanwhile.
    core_seconds : the part of it in which a rank needs its core: that of the bytes in memory. By
        as much it takes longer if the rank computes on this core meanwhile.
    """

    seconds: float
    core_seconds: float


@lru_cache(_CACHED_FITS)
def fit(times: CollectiveTimes, latency_seconds: float = 0.0) -> Fit:
    """Fit the measured times of a collective, averaged over repeats.

    Parameters
    ----------
    latency_seconds : of the network of these times.
    """
    ranks = times.layout.ranks
    counted = [traffic(times.library, times.operation, ranks, size) for size in times.sizes]
    messages, sent = np.array(counted).T
    seconds = times.seconds.mean(axis=1)
    # The latency cannot take more than the whole time.
    rest = np.maximum(seconds - latency_seconds * messages, 0)
    columns = np.column_stack([np.ones_like(sent), sent])
    scale = np.maximum(columns.max(axis=0) / seconds.mean(), np.finfo(float).tiny)
    solution = nnls(columns / scale / seconds[:, None], rest / seconds)[0] / scale
    # More bytes do not take less time. Times that fall with the size are noise, and averaged.
    rising = isotonic_regression(seconds, weights=seconds**-2.0).x
    return Fit(*map(float, solution), times.sizes, rising / (seconds - rest + columns @ solution))


class _Way(NamedTuple):
    """The cost of the messages of an operation.

    Attributes
    ----------
    latency : seconds of a message.
    least : lower bound of the seconds per byte.
    copying : seconds in which a rank copies a byte.
    deviation : as of `CollectiveTimes`.
    measured : whether these times are those of the layout and the network that are predicted.
    """

    fit: Fit
    latency: float
    least: float
    copying: float
    deviation: float
    measured: bool


class Transfers:
    """Times of a library's collectives under one layout and network.

    Parameters
    ----------
    calibration : its repeats are averaged.
    network : between the nodes; without effect on one node.

    Attributes
    ----------
    extrapolated : what was not calibrated, as phrases; complete after the last call of `seconds`.
    """

    def __init__(
        self, calibration: Calibration, library: str, layout: Layout, network: Network | None
    ):
        self._calibration, self._library = calibration, library
        self._layout, self._network = layout, network if layout.nodes > 1 else None
        self._ways: dict[str, _Way] = {}
        self.extrapolated: list[str] = []

    def seconds(self, operation: str, size: float) -> Transfer:
        """Return the time of a collective.

        Parameters
        ----------
        size : as of `traffic`.

        Raises
        ------
        InputError : there are no times of this library's operation.
        """
        if operation not in self._ways:
            self._ways[operation] = self._way(operation)
        way = self._ways[operation]
        messages, sent = traffic(self._library, operation, self._layout.ranks, size)
        rate = max(way.fit.seconds_per_byte, way.least)
        seconds = way.fit.overhead + way.latency * messages + rate * sent
        if way.measured:
            seconds *= way.fit.ratio(size)
        core_seconds = min(rate, way.copying) * sent
        return Transfer(seconds * way.deviation, core_seconds * way.deviation)

    def _way(self, operation: str) -> _Way:
        calibration, network, layout = self._calibration, self._network, self._layout
        times = [
            entry
            for entry in calibration.collectives
            if (entry.library, entry.operation) == (self._library, operation)
        ]
        within = [entry for entry in times if entry.layout.nodes == 1]
        across = [entry for entry in times if entry.layout.nodes > 1]
        measured = within
        if network:
            measured = [entry for entry in across if entry.network == network.name]
            if across and not measured:
                rates = calibration.networks
                fastest = min(across, key=lambda entry: rates[entry.network].seconds_per_byte)
                times = [entry for entry in across if entry.network == fastest.network]
        if not measured and not (network and times):
            raise InputError(
                "collectives",
                f"{self._library} {operation}",
                f"is not among the calibrated times for {layout}",
                "calibrate it",
            )
        base = self._nearest(measured or times, layout.ranks)
        if base.layout.ranks < layout.ranks:
            few = base.layout.ranks
            self._note(f"collectives were calibrated with {few} ranks, not {layout.ranks}")
        latency = calibrated_latency = self._latency(base.network)
        least, copying = 0.0, 1 / float(calibration.bytes_per_second.mean())
        if not measured:
            if network.latency_seconds is None:
                self._note(f"the latency of {base.network} stands for that of {network.name}")
            else:
                latency = network.latency_seconds
            self._note(f"{network.name} was not calibrated")
            known = calibration.networks.get(base.network)
            if known and known.seconds_per_byte > network.seconds_per_byte:
                self._note(f"no {operation} was calibrated on a network as fast as {network.name}")
            least = max(network.seconds_per_byte, copying)
        if within:
            local = self._nearest(within, layout.processes)
            copying = fit(local, self._latency(LOCAL)).seconds_per_byte
        is_same = bool(measured) and base.layout == layout
        fitted = fit(base, calibrated_latency)
        return _Way(fitted, latency, least, copying, base.deviation, is_same)

    def _nearest(self, times: list[CollectiveTimes], ranks: int) -> CollectiveTimes:
        """Return the times of the layout that is predicted, or of the nearest number of ranks."""
        return min(
            times, key=lambda entry: (entry.layout != self._layout, abs(entry.layout.ranks - ranks))
        )

    def _latency(self, network: str) -> float:
        known = self._calibration.networks.get(network)
        return (known.latency_seconds if known else None) or 0.0

    def _note(self, phrase: str) -> None:
        if phrase not in self.extrapolated:
            self.extrapolated.append(phrase)
