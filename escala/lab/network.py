"""The network of the lab: a bridge, and to each node a link whose rate can be set and measured.

A link is a pair of `veth` interfaces, `eth0` in the node and one named after the node at the
bridge. Each end sends no faster than the rate (tc's token bucket, `tbf`): what a node sends passes
its own end, and what it receives the end at the bridge, whoever it comes from.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from escala.errors import InputError
from escala.lab.state import FOLDER, Node, alone, call, require

#: Name of the bridge, and of the namespace it is in, the machine's own: jobs reach it by that.
BRIDGE = "escala"
#: Of the network that RFC 2544 sets aside for benchmarks: no machine should have it in use.
SCHEDULER = "198.18.0.1"
_SUBNET = "198.18.0.0/24"
NATIVE = "native"
MOST_NODES = 200

_NAMESPACES = Path("/run/netns")
_LINK = re.compile(r"escala-n\d+")
_RATE = re.compile(r"([1-9][0-9]{0,4})(kbit|mbit|gbit)")
_BITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}

# A bucket holds what the rate carries in a millisecond: a larger one would let a small exchange
# through at the speed of memory. A packet must fit.
_BUCKET_SECONDS, _PACKET_BYTES = 0.001, 1600
# A queue as of a switch; where it is shorter than this, TCP cannot keep a slow link busy.
_QUEUE_SECONDS, _QUEUE_BYTES = 0.02, 256 * 1024

# What Linux, and so a cluster, has unless told otherwise; a node would inherit the machine's own.
_CONGESTION = "cubic"

_IPERF_PORT = "5201"
_PINGS = 21


def address(number: int) -> str:
    """Return the IPv4 address of the node of that number, from 1."""
    return f"198.18.0.{number + 10}"


def create(nodes: Sequence[Node]) -> None:
    """Make the bridge, and the namespace and link of every node.

    Raises
    ------
    OSError : the system does not let it.
    """
    _ip(f"netns attach {BRIDGE} {os.getpid()}")
    _ip(f"link add {BRIDGE} type bridge")
    _ip(f"address add {SCHEDULER}/24 dev {BRIDGE}")
    _ip(f"link set {BRIDGE} up")
    for node in nodes:
        _ip(f"netns add {node.link}")
        _ip(f"link add {node.link} type veth peer name eth0 netns {node.link}")
        _ip(f"link set {node.link} master {BRIDGE} up")
        _ip(f"-n {node.link} address add {node.address}/24 dev eth0")
        _ip(f"-n {node.link} link set eth0 up")
        _ip(f"-n {node.link} link set lo up")
        way = f"{_SUBNET} dev eth0 scope link src {node.address}"
        _ip(f"-n {node.link} route change {way} congctl {_CONGESTION}")


def remove() -> None:
    """Remove all of it that there is."""
    for link in json.loads(_ip("-json link show")):
        if link["ifname"] == BRIDGE or _LINK.fullmatch(link["ifname"]):
            _ip(f"link delete {link['ifname']}")
    for path in [*namespaces(), *_NAMESPACES.glob(BRIDGE)]:
        _ip(f"netns delete {path.name}")
    # `ip` makes this folder, a mount of itself, for the first namespace and never removes it.
    if _NAMESPACES.is_dir() and not any(_NAMESPACES.iterdir()):
        with suppress(OSError):
            call("umount", str(_NAMESPACES))
            _NAMESPACES.rmdir()


def namespaces() -> list[Path]:
    """Return the files that stand for the nodes' namespaces."""
    found = _NAMESPACES.iterdir() if _NAMESPACES.is_dir() else ()
    return sorted(path for path in found if _LINK.fullmatch(path.name))


def inside(node: Node) -> list[str]:
    """Return the start of a command that runs in a node's network, on its cores."""
    cores = ",".join(map(str, node.cores))
    return ["nsenter", f"--net={_NAMESPACES / node.link}", "taskset", "--cpu-list", cores]


def shape(rate: str) -> None:
    """Give every link that rate, in both directions.

    Parameters
    ----------
    rate : a number and `kbit`, `mbit` or `gbit`, as `100mbit`; or `native`, as fast as it goes.

    Raises
    ------
    InputError : it is no such rate, or no lab is up.
    """
    queue = "noqueue" if rate == NATIVE else _bucket(bits_per_second(rate))
    lab = require()
    with alone(FOLDER):
        for node in lab.nodes:
            for namespace, device in _ends(node):
                _tc(f"-n {namespace} qdisc replace dev {device} root {queue}")
            # What TCP learnt of a link at another rate is not where a connection starts from.
            _ip(f"-n {node.link} tcp_metrics flush")


def bits_per_second(rate: str) -> int:
    """Return a rate such as `100mbit` as a number.

    Raises
    ------
    InputError : it is none.
    """
    match = _RATE.fullmatch(rate)
    if match is None:
        raise InputError(
            "rate", rate, "is no rate", "write it as 10mbit, 100mbit or 1gbit, or say native"
        )
    return int(match[1]) * _BITS[match[2]]


def _bucket(bits: int) -> str:
    burst = max(int(bits / 8 * _BUCKET_SECONDS), 2 * _PACKET_BYTES)
    limit = max(int(bits / 8 * _QUEUE_SECONDS), _QUEUE_BYTES)
    return f"tbf rate {bits}bit burst {burst} limit {limit}"


def rates(node: Node) -> list[float | None]:
    """Return the rates that a link's ends, at the bridge and in the node, have now.

    In Mbit/s; None is native.
    """
    said = [_tc(f"-json -n {within} qdisc show dev {device}") for within, device in _ends(node)]
    return [_mbit(json.loads(queues)) for queues in said]


def _ends(node: Node) -> list[tuple[str, str]]:
    """Return namespace and name of the interfaces of a link, at the bridge and in the node."""
    return [(BRIDGE, node.link), (node.link, "eth0")]


def _mbit(queues: list[dict]) -> float | None:
    buckets = [queue["options"]["rate"] for queue in queues if queue["kind"] == "tbf"]
    return buckets[0] * 8 / 1e6 if buckets else None


def measure(source: str, target: str, seconds: int = 3) -> dict[str, float]:
    """Measure the way from one node to another, with nothing else on it.

    Parameters
    ----------
    source, target : names of nodes.
    seconds : how long `iperf3` sends.

    Returns
    -------
    `mbit_per_second`, what of TCP's payload arrives, and `latency_ms`, the median time of a ping
    there and back.

    Raises
    ------
    InputError : there are no such nodes, or no lab is up.
    OSError : nothing arrives.
    """
    lab = require()
    sender, receiver = lab.node(source), lab.node(target)
    with alone(FOLDER):
        latency = _ping(sender, receiver)
        return {"mbit_per_second": _iperf(sender, receiver, seconds), "latency_ms": latency}


def _ping(sender: Node, receiver: Node) -> float:
    options = ["-n", "-c", str(_PINGS), "-i", "0.01", "-w", "5"]
    said = call(*inside(sender), "ping", *options, receiver.address)
    return statistics.median(map(float, re.findall(r"time=([0-9.]+) ms", said)))


def _iperf(sender: Node, receiver: Node, seconds: int) -> float:
    serve = ["iperf3", "--server", "--one-off", "--forceflush", "--bind", receiver.address]
    server = subprocess.Popen(
        [*inside(receiver), *serve, "--port", _IPERF_PORT],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        # Whoever connects before it listens is refused.
        next((line for line in server.stdout if "listening" in line), None)
        send = ["iperf3", "--client", receiver.address, "--port", _IPERF_PORT, "--json"]
        # What the buckets and queues take at first is left out.
        options = ["--omit", "1", "--time", str(seconds), "--connect-timeout", "5000"]
        said = call(*inside(sender), *send, *options, timeout=seconds + 20)
    finally:
        server.kill()
        server.communicate()
    return json.loads(said)["end"]["sum_received"]["bits_per_second"] / 1e6


def is_cut(node: Node) -> bool:
    """Say whether a node's link is down."""
    [link] = json.loads(_ip(f"-json -n {BRIDGE} link show {node.link}"))
    return "UP" not in link["flags"]


def cut(name: str) -> None:
    """Take the link of a node down, at the bridge: neither other nodes nor the scheduler reach it.

    Raises
    ------
    InputError : there is no such node, or no lab is up.
    """
    _ip(f"-n {BRIDGE} link set {require().node(name).link} down")


def mend(name: str) -> None:
    """Take the link of a node up again; see `cut`."""
    _ip(f"-n {BRIDGE} link set {require().node(name).link} up")


def _ip(arguments: str) -> str:
    return call("ip", *arguments.split())


def _tc(arguments: str) -> str:
    return call("tc", *arguments.split())
