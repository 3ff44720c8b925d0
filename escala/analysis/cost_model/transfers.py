"""Predict the time of a collective from measured times, also for other layouts and networks.

    seconds = overhead + latency · messages + seconds_per_byte · bytes

Messages and bytes are those of a ring (`traffic`). Overhead and seconds per byte are fitted to the
measured sizes by non-negative least squares of relative residuals. The latency is a value of the
network. If the latency is not known, it is a part of the overhead. The overhead does not depend on
size and ranks. For Horovod, it is the negotiation and the wait for a cycle.

For a layout and network that were measured, the fit is multiplied at each size by measured seconds
divided by fitted seconds. So the result holds for any algorithm: Open MPI, for example, chooses one
by size and ranks. For other layouts and networks only the fit is used, as if their ranks were in a
ring.

On a network that was not calibrated, `seconds_per_byte` is the larger of two values. The first
value is fitted on the fastest calibrated network, where the processor limits the rate. The second
value is the inverse of the new network's rate. The values are not added, because a rank transfers a
part of a message while it copies or adds another part.
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
#: Size of the cache of fits. It should be at least the number of draws times that of calibrated
#: operations and networks. A smaller cache would compute fits again for each prediction.
_CACHED_FITS = 2**13


def traffic(library: str, operation: str, ranks: int, size: float) -> tuple[float, float]:
    """Return the number of messages that follow each other in a ring, and the sum of their bytes.

    With p ranks and n = `size` bytes, a sum takes 2(p-1) messages of n/p bytes, a gather p-1
    messages of n bytes (R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective
    communication operations in MPICH, Int. J. High Performance Computing Applications 19 (2005),
    49-66). The time to add bytes is a part of the time to send bytes. Ranks are numbered node by
    node, so the link of a node carries one message of each round. Gloo sums in segments of at most
    1 MiB, at least two for each rank (`gloo/allreduce.cc`).

    Parameters
    ----------
    size : bytes of a rank's tensor before the operation. In an allreduce, the result has the same
        size. In an allgather, the tensor is a part of the result.
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
    ratios : measured seconds divided by fitted seconds, of shape (sizes,).
    """

    overhead: float
    seconds_per_byte: float
    sizes: np.ndarray
    ratios: np.ndarray

    def ratio(self, size: float) -> float:
        """Return measured divided by fitted seconds, interpolated between measured sizes."""
        return float(np.interp(np.log(size), np.log(self.sizes), self.ratios))


@dataclass(frozen=True)
class Transfer:
    """The time of a collective.

    Attributes
    ----------
    seconds : time from the moment when the last rank is ready, if no rank computes meanwhile.
    core_seconds : the part of `seconds` in which a rank needs its core, to move bytes in memory. If
        the rank computes on this core meanwhile, the collective takes `core_seconds` longer.
    """

    seconds: float
    core_seconds: float


@lru_cache(_CACHED_FITS)
def fit(times: CollectiveTimes, latency_seconds: float = 0.0) -> Fit:
    """Fit the measured times of a collective, averaged over repeats.

    Parameters
    ----------
    latency_seconds : latency of the network of these times.
    """
    ranks = times.layout.ranks
    messages, sent_bytes = np.transpose(
        [traffic(times.library, times.operation, ranks, size) for size in times.sizes]
    )
    seconds = times.seconds.mean(axis=1)
    # The latency cannot take more than the whole time.
    without_latency = np.maximum(seconds - latency_seconds * messages, 0)
    columns = np.column_stack([np.ones_like(sent_bytes), sent_bytes])
    scale = np.maximum(columns.max(axis=0) / seconds.mean(), np.finfo(float).tiny)
    overhead, per_byte = (
        nnls(columns / scale / seconds[:, None], without_latency / seconds)[0] / scale
    )
    fitted = seconds - without_latency + overhead + per_byte * sent_bytes
    # More bytes do not take less time. Times that decrease with the size are noise, so they are
    # averaged.
    rising = isotonic_regression(seconds, weights=seconds**-2.0).x
    return Fit(float(overhead), float(per_byte), times.sizes, rising / fitted)


class _Costs(NamedTuple):
    """The values from which the time of an operation is computed.

    Attributes
    ----------
    latency : seconds of a message.
    least_per_byte : lower bound of the seconds per byte.
    copy_per_byte : seconds in which a rank copies a byte.
    deviation : as in `CollectiveTimes`.
    is_measured : whether the predicted layout and network were measured.
    """

    fit: Fit
    latency: float
    least_per_byte: float
    copy_per_byte: float
    deviation: float
    is_measured: bool


class Transfers:
    """Times of a library's collectives under one layout and network.

    Parameters
    ----------
    calibration : the calibration, whose repeats are averaged.
    network : network between the nodes; without effect on one node.

    Attributes
    ----------
    extrapolated : phrases on values that were not calibrated; complete after the last call of
        `seconds`.
    """

    def __init__(
        self, calibration: Calibration, library: str, layout: Layout, network: Network | None
    ):
        self._calibration, self._library = calibration, library
        self._layout, self._network = layout, network if layout.nodes > 1 else None
        self._costs: dict[str, _Costs] = {}
        self.extrapolated: list[str] = []

    def seconds(self, operation: str, size: float) -> Transfer:
        """Return the time of a collective.

        Parameters
        ----------
        size : as in `traffic`.

        Raises
        ------
        InputError : the calibration has no times of the operation with this library.
        """
        if operation not in self._costs:
            self._costs[operation] = self._costs_of(operation)
        costs = self._costs[operation]
        messages, sent_bytes = traffic(self._library, operation, self._layout.ranks, size)
        per_byte = max(costs.fit.seconds_per_byte, costs.least_per_byte)
        seconds = costs.fit.overhead + costs.latency * messages + per_byte * sent_bytes
        if costs.is_measured:
            seconds *= costs.fit.ratio(size)
        core_seconds = min(per_byte, costs.copy_per_byte) * sent_bytes
        return Transfer(seconds * costs.deviation, core_seconds * costs.deviation)

    def _costs_of(self, operation: str) -> _Costs:
        """Return the costs of an operation, from the most similar calibrated times.

        The most similar ones are of the same network, else of the fastest, else of one node; and
        of the same layout, else of the nearest number of ranks.
        """
        calibration, network, layout = self._calibration, self._network, self._layout
        calibrated = [
            times
            for times in calibration.collectives
            if (times.library, times.operation) == (self._library, operation)
        ]
        on_one_node = [times for times in calibrated if times.layout.nodes == 1]
        on_several = [times for times in calibrated if times.layout.nodes > 1]
        measured, substitutes = on_one_node, calibrated
        if network:
            measured = [times for times in on_several if times.network == network.name]
            if on_several and not measured:
                networks = calibration.networks
                fastest = min(
                    on_several, key=lambda times: networks[times.network].seconds_per_byte
                )
                substitutes = [times for times in on_several if times.network == fastest.network]
        if not measured and not (network and substitutes):
            raise InputError(
                "collectives",
                f"{self._library} {operation}",
                f"is not among the calibrated times for {layout}",
                "calibrate it",
            )
        base = self._nearest(measured or substitutes, layout.ranks)
        if base.layout.ranks < layout.ranks:
            ranks = f"{base.layout.ranks} ranks, not {layout.ranks}"
            self._note(f"collectives were calibrated with {ranks}")
        latency = calibrated_latency = self._latency(base.network)
        least_per_byte, copy_per_byte = 0.0, 1 / float(calibration.bytes_per_second.mean())
        if not measured:
            if network.latency_seconds is None:
                self._note(
                    f"the latency of {base.network} stands for the latency of {network.name}"
                )
            else:
                latency = network.latency_seconds
            self._note(f"{network.name} was not calibrated")
            base_network = calibration.networks.get(base.network)
            if base_network and base_network.seconds_per_byte > network.seconds_per_byte:
                self._note(f"no {operation} was calibrated on a network as fast as {network.name}")
            least_per_byte = max(network.seconds_per_byte, copy_per_byte)
        if on_one_node:
            local = self._nearest(on_one_node, layout.processes)
            copy_per_byte = fit(local, self._latency(LOCAL)).seconds_per_byte
        return _Costs(
            fit(base, calibrated_latency),
            latency,
            least_per_byte,
            copy_per_byte,
            base.deviation,
            is_measured=bool(measured) and base.layout == layout,
        )

    def _nearest(self, calibrated: list[CollectiveTimes], ranks: int) -> CollectiveTimes:
        """Return the times of the predicted layout, or of the nearest number of ranks."""
        return min(
            calibrated,
            key=lambda times: (times.layout != self._layout, abs(times.layout.ranks - ranks)),
        )

    def _latency(self, name: str) -> float:
        """Return the seconds of a message on a network; 0 if unknown."""
        network = self._calibration.networks.get(name)
        return (network.latency_seconds if network else None) or 0.0

    def _note(self, phrase: str) -> None:
        if phrase not in self.extrapolated:
            self.extrapolated.append(phrase)
