"""Describe networks by their rate and latency."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of payload and of a whole frame on Ethernet: of 1500 bytes, IPv4, TCP and its timestamps
#: take 20 + 20 + 12 (RFC 791, RFC 9293, RFC 7323); preamble, header, check sequence and gap add
#: 8 + 14 + 4 + 12 (IEEE 802.3).
_PAYLOAD, _FRAME = 1500 - 52, 1500 + 38


@dataclass(frozen=True)
class Network:
    """The link of a node.

    Attributes
    ----------
    bits_per_second : rate of the payload, in each direction; None if nothing limits it.
    latency_seconds : time of the smallest message between two ranks; None if unknown.
    source : what gives these values.
    """

    name: str
    bits_per_second: float | None
    latency_seconds: float | None
    source: str

    @property
    def seconds_per_byte(self) -> float:
        return 8 / self.bits_per_second if self.bits_per_second else 0.0


def payload(bits_per_second: float) -> float:
    """Return the rate of the payload of TCP on an Ethernet of some rate."""
    return bits_per_second * _PAYLOAD / _FRAME


#: Networks of a known rate. Their latency is unknown: that of a calibrated network is used.
PRESETS = {
    network.name: network
    for network in (
        Network("100mbit", payload(100e6), None, "IEEE 802.3u, TCP payload"),
        Network("1gbit", payload(1e9), None, "IEEE 802.3ab, TCP payload"),
        Network("10gbit", payload(10e9), None, "IEEE 802.3ae, TCP payload"),
        # 8 of 10 bits are data.
        Network("infiniband-40gbit", 40e9 * 8 / 10, None, "InfiniBand QDR 4x, 8b/10b code"),
    )
}
