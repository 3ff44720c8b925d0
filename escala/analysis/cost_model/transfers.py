"""Fit the time of a collective to measured times, and compute it for other layouts and networks.

    seconds = overhead + latency · messages + seconds_per_byte · bytes

The sizes at which a library changes its algorithm divide the sizes into pieces, each with an
overhead and seconds per byte of its own (piecewise α–β). They are fitted by least squares of
relative residuals, and are not negative. The latency is that of the network; without one it is a
part of the overhead. The overhead is what does not depend on size and ranks: for Horovod, the
negotiation and the wait for its cycle.

`seconds_per_byte` of a calibrated network holds everything that bytes cost. On another network it
is the larger one of two: that of the fastest calibrated network, on which the processor limits the
rate, and that of the other network's rate. The larger one counts because a rank transfers a part of
a message while it copies or adds another.

Two parameters do not follow all sizes: a queue or a buffer makes some of them faster or slower. So
for the layout and network that were measured, the fit is corrected at each size by what was
measured there. To other layouts and networks, only the fit is carried over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression, nnls

from escala.analysis.cost_model.calibration import LOCAL, Calibration, CollectiveTimes
from escala.analysis.cost_model.collectives import (
    ALLGATHER,
    ALLTOALL,
    Work,
    switch_points,
    work,
)
from escala.analysis.cost_model.networks import PRESETS, Network
from escala.core.errors import InputError
from escala.runtime.layout import Layout

#: A piece has two parameters, so fewer sizes than this are fitted with those of a neighbour.
_MIN_SIZES = 2
#: Fits that are kept: as many as draws times calibrated operations and networks, or they are
#: computed again for each plan.
_KEPT = 2**13


@dataclass(frozen=True)
class Fit:
    """The parameters of each piece of sizes.

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
        """Return measured seconds divided by fitted ones, interpolated between measured sizes.

        A size that is smaller or larger than all of them has the ratio of the nearest one.
        """
        return float(np.interp(np.log(size), np.log(self.sizes), self.ratios))


@dataclass(frozen=True)
class Transfer:
    """The time of a collective.

    Attributes
    ----------
    seconds : from the moment when the last rank is ready, if no rank computes meanwhile.
    core_seconds : the part of it in which a rank needs its core.
    computing_seconds : the whole time if the rank computes on this core meanwhile.
    """

    seconds: float
    core_seconds: float
    computing_seconds: float


def fit(times: CollectiveTimes, latency_seconds: float = 0.0) -> Fit:
    """Fit the measured times of a collective; several repeats count as their mean.

    Parameters
    ----------
    latency_seconds : of the network of these times.
    """
    works = [work(times.library, times.operation, times.layout, size) for size in times.sizes]
    across = times.layout.nodes > 1
    messages, bytes_sent = np.array([_part(each, across) for each in works]).T
    seconds = times.seconds.mean(axis=1)
    ends = _ends(times)
    fitted, ratios = [], np.empty(len(seconds))
    for piece in _pieces(times.sizes, ends):
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


def _part(each: Work, across: bool) -> tuple[float, float]:
    """Return messages and bytes of the link if ranks are on several nodes, else within the node.

    Those within the nodes count as a part of the link's for the layout that was measured.
    """
    if across:
        return each.link_messages, each.link_bytes
    return each.local_messages, each.local_bytes


def _ends(times: CollectiveTimes) -> np.ndarray:
    """Return the switch points between which there are enough sizes to fit two parameters."""
    ends, done = [], 0
    for end in switch_points(times.library, times.operation, times.layout.ranks):
        below = int((times.sizes < end).sum())
        if min(below - done, len(times.sizes) - below) >= _MIN_SIZES:
            ends.append(end)
            done = below
    return np.array(ends, float)


def _pieces(sizes: np.ndarray, ends: np.ndarray) -> Iterator[np.ndarray]:
    piece = np.searchsorted(ends, sizes, side="right")
    return (piece == number for number in range(len(ends) + 1))


class _Leg(NamedTuple):
    """The cost of messages between nodes, or within a node.

    Attributes
    ----------
    computing : the fit of the times while ranks compute; None if not measured.
    core : the fit of the times by which a call delays computing; None if not measured.
    seconds_per_byte : the least, whatever the fit.
    deviation : of the times that were fitted.
    measured : whether these times are those of the layout and the network that are predicted.
    """

    fit: Fit
    computing: Fit | None
    core: Fit | None
    latency_seconds: float
    seconds_per_byte: float
    deviation: float
    measured: bool

    def ratio(self, of: Fit, size: float) -> float:
        """Return the factor that corrects the seconds of one of the fits for a size."""
        return of.ratio(size) if self.measured else 1.0

    def at(self, size: float, computing: bool = False) -> tuple[float, float]:
        """Return overhead and seconds per byte for a size."""
        overhead, seconds_per_byte = (self.computing if computing else self.fit).at(size)
        return overhead, max(seconds_per_byte, self.seconds_per_byte)


def _leg(
    times: CollectiveTimes,
    calibrated_latency: float,
    latency: float,
    seconds_per_byte: float = 0.0,
    measured: bool = False,
) -> _Leg:
    return _Leg(
        *_fits(times, calibrated_latency), latency, seconds_per_byte, times.deviation, measured
    )


@lru_cache(_KEPT)
def _fits(times: CollectiveTimes, latency: float) -> tuple[Fit, Fit | None, Fit | None]:
    """Return the first three attributes of a `_Leg`."""
    computing = core = None
    if times.computing_seconds is not None:
        computing = fit(replace(times, seconds=times.computing_seconds), latency)
    if times.core_seconds is not None:
        core = fit(replace(times, seconds=times.core_seconds))
    return fit(times, latency), computing, core


class Transfers:
    """Times of a library's collectives under one layout and network.

    Parameters
    ----------
    calibration : repeats count as their mean.
    network : between the nodes; None on one node.

    Attributes
    ----------
    extrapolated : what was not calibrated, as phrases; complete after the last call of `seconds`.
    """

    def __init__(
        self,
        calibration: Calibration,
        library: str,
        layout: Layout,
        network: Network | None,
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
        each = work(self._library, operation, self._layout, size)
        parts = [(link, each.link_messages, each.link_bytes)] if link else []
        if each.local_messages and not (link and link.measured):
            if local is None:
                raise self._missing(operation)
            parts.append((local, each.local_messages, each.local_bytes))
        core = local.at(size)[1] if local else self._seconds_per_byte_of_core
        core_seconds = sum(min(leg.at(size)[1], core) * sent for leg, _, sent in parts)
        # If its layout and network were measured, the first leg is the only one.
        first = parts[0][0]
        seconds = _seconds(parts, size) * first.ratio(first.fit, size)
        computing = seconds + core_seconds
        if all(leg.computing for leg, *_ in parts):
            computing = _seconds(parts, size, computing=True) * first.ratio(first.computing, size)
            computing = max(computing, seconds)
        if all(leg.core for leg, *_ in parts):
            overheads, rates = zip(*(leg.core.at(size) for leg, *_ in parts), strict=True)
            of_bytes = sum(rate * sent for rate, (*_, sent) in zip(rates, parts, strict=True))
            core_seconds = (max(overheads) + of_bytes) * first.ratio(first.core, size)
            core_seconds = min(core_seconds, computing)
        deviation = (link or local).deviation
        return Transfer(seconds * deviation, core_seconds * deviation, computing * deviation)

    @property
    def _seconds_per_byte_of_core(self) -> float:
        return 1 / float(self._calibration.bytes_per_second.mean())

    def _link(self, operation: str) -> _Leg | None:
        if self._layout.nodes == 1:
            return None
        of_link = [each for each in self._times(operation) if each.layout.nodes > 1]
        own = [each for each in of_link if each.network == self._network.name]
        if own:
            chosen = self._nearest(own, self._layout.ranks)
            latency = self._network.latency_seconds or 0.0
            return _leg(chosen, latency, latency, measured=chosen.layout == self._layout)
        times = self._fastest(of_link) or self._times(operation)
        base = self._nearest(times, self._layout.ranks)
        own_latency = self._latency(base.network)
        latency = self._network.latency_seconds
        if latency is None:
            self._note(f"the latency of {base.network} stands for that of {self._network.name}")
            latency = own_latency
        least = max(self._network.seconds_per_byte, self._seconds_per_byte_of_core)
        self._note(f"{self._network.name} was not calibrated")
        calibrated = self._calibration.networks.get(base.network)
        if calibrated and calibrated.seconds_per_byte > self._network.seconds_per_byte:
            self._note(
                f"no {base.operation} was calibrated on a network as fast as {self._network.name}"
            )
        return _leg(base, own_latency, latency, least)

    def _local(self, operation: str) -> _Leg | None:
        within = [each for each in self._times(operation) if each.layout.nodes == 1]
        if not within:
            return None
        chosen = self._nearest(within, self._layout.processes)
        latency = self._latency(LOCAL)
        return _leg(chosen, latency, latency, measured=chosen.layout == self._layout)

    def _times(self, operation: str) -> list[CollectiveTimes]:
        of_library = [
            each
            for each in self._calibration.collectives
            if (each.library, each.operation) == (self._library, operation)
        ]
        if not of_library and operation == ALLTOALL:
            self._note("the time of a byte in an allgather stands for that in an all-to-all")
            return self._times(ALLGATHER)
        if not of_library:
            raise self._missing(operation)
        return of_library

    def _nearest(self, times: list[CollectiveTimes], ranks: int) -> CollectiveTimes:
        """Return the times of the layout that is predicted, or of the nearest number of ranks."""
        chosen = min(
            times,
            key=lambda each: (each.layout != self._layout, abs(each.layout.ranks - ranks)),
        )
        if chosen.layout.ranks < ranks:
            self._note(f"collectives were calibrated with {chosen.layout.ranks} ranks, not {ranks}")
        return chosen

    def _fastest(self, times: list[CollectiveTimes]) -> list[CollectiveTimes]:
        """Return the times of the network with the highest rate."""
        if not times:
            return []
        networks = self._calibration.networks
        best = min(times, key=lambda each: networks[each.network].seconds_per_byte).network
        return [each for each in times if each.network == best]

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


def _seconds(
    parts: Sequence[tuple[_Leg, float, float]], size: float, computing: bool = False
) -> float:
    """Return the time of messages and bytes of several legs, which have one overhead in common."""
    overheads, times = zip(
        *(
            (overhead, leg.latency_seconds * messages + seconds_per_byte * sent)
            for leg, messages, sent in parts
            for overhead, seconds_per_byte in [leg.at(size, computing)]
        ),
        strict=True,
    )
    return max(overheads) + sum(times)


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
