"""Fit measured times of a collective, and predict its time for other layouts and networks.

    seconds = overhead + latency · messages + seconds_per_byte · bytes

The sizes at which a library changes its algorithm divide the sizes into pieces, each with an
overhead and seconds per byte of its own (piecewise α–β), fitted by non-negative least squares of
relative residuals. The latency is that of the network; without one it is a part of the overhead.
The overhead does not depend on size and ranks: for Horovod, negotiation and the wait for its cycle.

On a network that was not calibrated, `seconds_per_byte` is the maximum of two: the fitted one of
the fastest calibrated network, where the processor limits the rate, and the inverse of the new
network's rate. It is their maximum, not their sum, because a rank transfers a part of a message
while it copies or adds another.

For a layout and network that were measured, the fit is multiplied at each size by measured divided
by fitted seconds. For others, only the fit is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression, nnls

from escala.analysis.cost_model.calibration import LOCAL, Calibration, CollectiveTimes
from escala.analysis.cost_model.collectives import switch_points, traffic
from escala.analysis.cost_model.networks import PRESETS, Network
from escala.core.errors import InputError
from escala.runtime.layout import Layout

#: A piece has two parameters, so a piece with fewer sizes is joined to its neighbour.
_MIN_SIZES = 2
#: Size of the cache of fits. A smaller one than draws times calibrated operations and networks
#: would compute fits again for each prediction.
_CACHED_FITS = 2**13


@dataclass(frozen=True)
class Fit:
    """The parameters of each piece of message sizes.

    Attributes
    ----------
    ends : bytes at which a piece ends, of shape (pieces - 1,).
    overheads : seconds, of shape (pieces,).
    seconds_per_byte : shape (pieces,).
    sizes : bytes that were measured, of shape (sizes,).
    ratios : measured seconds divided by fitted ones, of the same shape.
    """

    ends: np.ndarray
    overheads: np.ndarray
    seconds_per_byte: np.ndarray
    sizes: np.ndarray
    ratios: np.ndarray

    def at(self, size: float) -> tuple[float, float]:
        """Return overhead and seconds per byte for a size."""
        piece = np.searchsorted(self.ends, size, side="right")
        return float(self.overheads[piece]), float(self.seconds_per_byte[piece])

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


def fit(times: CollectiveTimes, latency_seconds: float = 0.0) -> Fit:
    """Fit the measured times of a collective, averaged over repeats.

    Parameters
    ----------
    latency_seconds : of the network of these times.
    """
    counted = [traffic(times.library, times.operation, times.layout, size) for size in times.sizes]
    # With several nodes, the time of messages within nodes is fitted as a part of the link's.
    fitted_traffic = slice(0, 2) if times.layout.nodes > 1 else slice(2, 4)
    messages, bytes_sent = np.array([each[fitted_traffic] for each in counted]).T
    seconds = times.seconds.mean(axis=1)
    ends = _ends(times)
    pieces = np.searchsorted(ends, times.sizes, side="right")
    fitted, ratios = [], np.empty(len(seconds))
    for number in range(len(ends) + 1):
        piece = pieces == number
        measured = seconds[piece]
        # The latency cannot take more than the whole time.
        rest = np.maximum(measured - latency_seconds * messages[piece], 0)
        columns = np.column_stack([np.ones(len(measured)), bytes_sent[piece]])
        scale = np.maximum(columns.max(axis=0) / measured.mean(), np.finfo(float).tiny)
        solution, _ = nnls(columns / scale / measured[:, None], rest / measured)
        fitted.append(solution / scale)
        # More bytes do not take less time. Times that fall with the size are noise, and averaged.
        rising = isotonic_regression(measured, weights=measured**-2.0).x
        ratios[piece] = rising / (measured - rest + columns @ fitted[-1])
    overheads, seconds_per_byte = np.array(fitted).T
    return Fit(ends, overheads, seconds_per_byte, times.sizes, ratios)


def _ends(times: CollectiveTimes) -> np.ndarray:
    """Return the switch points between which there are enough sizes to fit two parameters."""
    ends, done = [], 0
    for end in switch_points(times.library, times.operation, times.layout.ranks):
        below = int((times.sizes < end).sum())
        if min(below - done, len(times.sizes) - below) >= _MIN_SIZES:
            ends.append(end)
            done = below
    return np.array(ends, float)


@lru_cache(_CACHED_FITS)
def _fit(times: CollectiveTimes, latency: float) -> Fit:
    return fit(times, latency)


class _Leg(NamedTuple):
    """The cost of messages between nodes, or within a node.

    Attributes
    ----------
    least : lower bound of the seconds per byte.
    deviation : as of `CollectiveTimes`.
    measured : whether these times are those of the layout and the network that are predicted.
    """

    fit: Fit
    latency: float
    least: float
    deviation: float
    measured: bool

    def at(self, size: float) -> tuple[float, float]:
        """Return overhead and seconds per byte for a size."""
        overhead, seconds_per_byte = self.fit.at(size)
        return overhead, max(seconds_per_byte, self.least)


class Transfers:
    """Times of a library's collectives under one layout and network.

    Parameters
    ----------
    calibration : its repeats are averaged.
    network : between the nodes; None on one node.

    Attributes
    ----------
    extrapolated : what was not calibrated, as phrases; complete after the last call of `seconds`.
    """

    def __init__(
        self, calibration: Calibration, library: str, layout: Layout, network: Network | None
    ):
        self._calibration, self._library = calibration, library
        self._layout, self._network = layout, network
        self._legs: dict[str, tuple[_Leg | None, _Leg | None]] = {}
        self.extrapolated: list[str] = []

    def seconds(self, operation: str, size: float) -> Transfer:
        """Return the time of a collective.

        Parameters
        ----------
        size : as in `collectives.algorithm`.

        Raises
        ------
        InputError : there are no times of this library's operation.
        """
        if operation not in self._legs:
            self._legs[operation] = self._link(operation), self._local(operation)
        link, local = self._legs[operation]
        sent = traffic(self._library, operation, self._layout, size)
        parts = [(link, sent.link_messages, sent.link_bytes)] if link else []
        if sent.local_messages and not (link and link.measured):
            if local is None:
                raise self._missing(operation)
            parts.append((local, sent.local_messages, sent.local_bytes))
        copying = local.at(size)[1] if local else self._copying
        core_seconds = sum(min(leg.at(size)[1], copying) * number for leg, _, number in parts)
        seconds = _seconds(parts, size)
        # If its layout and network were measured, the first leg is the only one.
        first = parts[0][0]
        if first.measured:
            seconds *= first.fit.ratio(size)
        deviation = (link or local).deviation
        return Transfer(seconds * deviation, core_seconds * deviation)

    @property
    def _copying(self) -> float:
        """Seconds in which a core copies a byte."""
        return 1 / float(self._calibration.bytes_per_second.mean())

    def _link(self, operation: str) -> _Leg | None:
        if self._layout.nodes == 1:
            return None
        network, networks = self._network, self._calibration.networks
        across = [each for each in self._times(operation) if each.layout.nodes > 1]
        measured = [each for each in across if each.network == network.name]
        if measured:
            base = self._nearest(measured, self._layout.ranks)
            latency = network.latency_seconds or 0.0
            same = base.layout == self._layout
            return _Leg(_fit(base, latency), latency, 0.0, base.deviation, same)
        times = self._times(operation)
        if across:
            best = min(across, key=lambda each: networks[each.network].seconds_per_byte).network
            times = [each for each in across if each.network == best]
        base = self._nearest(times, self._layout.ranks)
        latency = network.latency_seconds
        if latency is None:
            self._note(f"the latency of {base.network} stands for that of {network.name}")
            latency = self._latency(base.network)
        self._note(f"{network.name} was not calibrated")
        calibrated = networks.get(base.network)
        if calibrated and calibrated.seconds_per_byte > network.seconds_per_byte:
            self._note(f"no {base.operation} was calibrated on a network as fast as {network.name}")
        least = max(network.seconds_per_byte, self._copying)
        fitted = _fit(base, self._latency(base.network))
        return _Leg(fitted, latency, least, base.deviation, False)

    def _local(self, operation: str) -> _Leg | None:
        within = [each for each in self._times(operation) if each.layout.nodes == 1]
        if not within:
            return None
        base = self._nearest(within, self._layout.processes)
        latency = self._latency(LOCAL)
        same = base.layout == self._layout
        return _Leg(_fit(base, latency), latency, 0.0, base.deviation, same)

    def _times(self, operation: str) -> list[CollectiveTimes]:
        found = [
            each
            for each in self._calibration.collectives
            if (each.library, each.operation) == (self._library, operation)
        ]
        if not found:
            raise self._missing(operation)
        return found

    def _nearest(self, times: list[CollectiveTimes], ranks: int) -> CollectiveTimes:
        """Return the times of the layout that is predicted, or of the nearest number of ranks."""
        found = min(
            times, key=lambda each: (each.layout != self._layout, abs(each.layout.ranks - ranks))
        )
        if found.layout.ranks < ranks:
            self._note(f"collectives were calibrated with {found.layout.ranks} ranks, not {ranks}")
        return found

    def _latency(self, network: str) -> float:
        known = self._calibration.networks.get(network)
        return (known.latency_seconds if known else None) or 0.0

    def _note(self, phrase: str) -> None:
        if phrase not in self.extrapolated:
            self.extrapolated.append(phrase)

    def _missing(self, operation: str) -> InputError:
        return InputError(
            "collectives",
            f"{self._library} {operation}",
            f"is not among the calibrated times for {self._layout}",
            "calibrate it",
        )


def _seconds(parts: Sequence[tuple[_Leg, float, float]], size: float) -> float:
    """Return the time of messages and bytes of several legs; only the largest overhead counts."""
    rates = [leg.at(size) for leg, *_ in parts]
    times = [
        leg.latency * messages + seconds_per_byte * sent
        for (leg, messages, sent), (_, seconds_per_byte) in zip(parts, rates, strict=True)
    ]
    return max(overhead for overhead, _ in rates) + sum(times)


def known_network(calibration: Calibration, name: str) -> Network:
    """Return a network that was calibrated, or a preset one.

    Raises
    ------
    InputError : it is neither.
    """
    networks = PRESETS | calibration.networks
    if name not in networks:
        raise InputError("network", name, "is unknown", f"choose one of {', '.join(networks)}")
    return networks[name]
