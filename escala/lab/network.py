"""Make the network of the lab: a bridge, and to each node a link with an adjustable rate.

A link is a pair of `veth` interfaces: `eth0` in the node, and an interface with the name of the
node at the bridge. Each end sends no faster than the rate (tc's token bucket, `tbf`). Data from a
node pass the end in the node. Data to a node pass the end at the bridge, whatever their source.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import statistics
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from escala.core.errors import InputError
from escala.core.readable import bits_per_second
from escala.lab.state import (
    FOLDER,
    Claim,
    Lab,
    Node,
    call,
    lock,
    read_claim,
    require_lab,
    write_claim,
)

#: The name of the bridge. The machine's own network namespace gets the same name, so that
#: `ip -n escala` reaches the bridge from a job.
BRIDGE = "escala"
#: A part of the range that RFC 2544 reserves for benchmarks. Some proxies use it too.
SUBNET = "198.18.0.0/24"
NATIVE = "native"
MOST_NODES = 200

_NAMESPACES = Path("/run/netns")

# A bucket holds the bytes of one millisecond at the rate. A larger one would let a small exchange
# through at the speed of memory. A packet must fit.
_BUCKET_SECONDS, _PACKET_BYTES = 0.001, 1600
# A queue as long as in a switch. With a shorter queue, TCP cannot keep a slow link busy.
_QUEUE_SECONDS, _QUEUE_BYTES = 0.02, 256 * 1024

# The congestion control of TCP in a node: the default of Linux, whatever this machine uses.
_CONGESTION = "cubic"

_IPERF_PORT = "5201"
_PINGS = 21

# A route with a shorter prefix is a default route, such as 0.0.0.0/1 of a VPN.
_SHORTEST_PREFIX = 8


def scheduler_address(subnet: str = SUBNET) -> str:
    """Return the IPv4 address of the bridge.

    Raises
    ------
    InputError : the subnet is not written as `198.18.0.0/24`.
    """
    return str(_network(subnet)[1])


def address(number: int, subnet: str = SUBNET) -> str:
    """Return the IPv4 address of a node by its number, from 1.

    Raises
    ------
    InputError : the subnet is not written as `198.18.0.0/24`.
    """
    return str(_network(subnet)[number + 10])


def _network(subnet: str) -> ipaddress.IPv4Network:
    try:
        network = ipaddress.IPv4Network(subnet)
    except ValueError:
        network = None
    if network is None or network.prefixlen != 24:
        raise InputError("subnet", subnet, "is not 256 IPv4 addresses", f"write it as {SUBNET}")
    return network


def refuse_taken(lab: Lab) -> None:
    """Refuse a lab whose names or addresses are in use on this machine.

    Raises
    ------
    InputError : a name or an address is in use.
    """
    links = {link["ifname"] for link in _links()}
    for name in (BRIDGE, *(node.link for node in lab.nodes)):
        is_used = {"link": name in links, "netns": (_NAMESPACES / name).exists()}
        for kind, word in (("link", "interface"), ("netns", "namespace")):
            if is_used[kind]:
                remedy = f"rename it, or remove it if nothing needs it: ip {kind} delete {name}"
                raise InputError("lab", name, f"is a network {word} that is not the lab's", remedy)
    subnet = str(_network_of(lab.scheduler))
    route = find_overlap(subnet, json.loads(_ip("-json -4 route show table all")))
    if route is not None:
        remedy = "name another range that no machine here uses, as --subnet 10.198.18.0/24"
        raise InputError("subnet", subnet, f"is in use on this machine: {route}", remedy)


def find_overlap(subnet: str, routes: Sequence[dict]) -> str | None:
    """Return the first route to addresses of a subnet, or None; default routes do not count.

    Parameters
    ----------
    routes : the output of `ip -json route`.
    """
    for route in routes:
        if route["dst"] == "default":
            continue
        addresses = ipaddress.ip_network(route["dst"])
        if addresses.prefixlen >= _SHORTEST_PREFIX and addresses.overlaps(_network(subnet)):
            return f"{addresses} by {route.get('dev', route.get('type', 'a route'))}"
    return None


def _network_of(address: str) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(f"{address}/24", strict=False)


def create(lab: Lab, mark: str) -> None:
    """Make the bridge, and the namespace and link of every node, and claim them for the lab.

    Parameters
    ----------
    lab : the lab. No interface or namespace of the machine may have its names; see `refuse_taken`.
    mark : see `Claim`.

    Raises
    ------
    OSError : the system does not allow it.
    """
    links = [BRIDGE, *(node.link for node in lab.nodes)]
    # Claimed by name before they exist, and by number after (see `Claim`).
    write_claim(Claim(mark, dict.fromkeys(links), dict.fromkeys(links)))
    _make(lab)
    numbers = {link["ifname"]: link["ifindex"] for link in _links()}
    write_claim(
        Claim(
            mark,
            {name: numbers[name] for name in links},
            {name: (_NAMESPACES / name).stat().st_ino for name in links},
        )
    )


def _make(lab: Lab) -> None:
    """Make the bridge, and the namespace and link of every node."""
    _ip(f"netns attach {BRIDGE} {os.getpid()}")
    _ip(f"link add {BRIDGE} type bridge")
    _ip(f"address add {lab.scheduler}/24 dev {BRIDGE}")
    _ip(f"link set {BRIDGE} up")
    for node in lab.nodes:
        _ip(f"netns add {node.link}")
        _ip(f"link add {node.link} type veth peer name eth0 netns {node.link}")
        _ip(f"link set {node.link} master {BRIDGE} up")
        _ip(f"-n {node.link} address add {node.address}/24 dev eth0")
        _ip(f"-n {node.link} link set eth0 up")
        _ip(f"-n {node.link} link set lo up")
        route = f"{_network_of(lab.scheduler)} dev eth0 scope link src {node.address}"
        _ip(f"-n {node.link} route change {route} congctl {_CONGESTION}")


def remove() -> None:
    """Remove the network of the lab. Networks of other owners with equal names stay."""
    claimed = read_claim()
    for link in _links():
        if claimed.has_link(link["ifname"], link["ifindex"]):
            _ip(f"link delete {link['ifname']}")
    for path in _lab_namespaces():
        _ip(f"netns delete {path.name}")
    # `ip` makes this folder, mounted on itself, for the first namespace, and never removes it.
    if claimed.namespaces and _NAMESPACES.is_dir() and not any(_NAMESPACES.iterdir()):
        with suppress(OSError):
            call("umount", str(_NAMESPACES))
            _NAMESPACES.rmdir()


def _links() -> list[dict]:
    """Return the network interfaces of this machine, as `ip` describes them."""
    return json.loads(_ip("-json link show"))


def namespaces() -> list[Path]:
    """Return the files of the nodes' namespaces."""
    return [path for path in _lab_namespaces() if path.name != BRIDGE]


def _lab_namespaces() -> list[Path]:
    """Return the files of the lab's namespaces: the namespaces of the nodes, and `BRIDGE`."""
    claimed = read_claim()
    paths = [path for name in claimed.namespaces if (path := _NAMESPACES / name).exists()]
    return [path for path in paths if claimed.has_namespace(path.name, path.stat().st_ino)]


def inside(node: Node) -> list[str]:
    """Return the start of a command line whose program runs in a node's network, on its cores."""
    cores = ",".join(map(str, node.cores))
    return ["nsenter", f"--net={_NAMESPACES / node.link}", "taskset", "--cpu-list", cores]


def shape(rate: str) -> None:
    """Set the rate of every link, in both directions.

    Parameters
    ----------
    rate : a number and `kbit`, `mbit` or `gbit`, such as `100mbit`; or `native`, without a limit.

    Raises
    ------
    InputError : `rate` is not a rate, or no lab is up.
    """
    queue = "noqueue"
    if rate != NATIVE:
        bits = bits_per_second(rate)
        burst = max(int(bits / 8 * _BUCKET_SECONDS), 2 * _PACKET_BYTES)
        limit = max(int(bits / 8 * _QUEUE_SECONDS), _QUEUE_BYTES)
        queue = f"tbf rate {bits}bit burst {burst} limit {limit}"
    lab = require_lab()
    with lock(FOLDER):
        for node in lab.nodes:
            for namespace, device in _ends(node):
                _tc(f"-n {namespace} qdisc replace dev {device} root {queue}")
            # A new connection must not use TCP's metrics from another rate.
            _ip(f"-n {node.link} tcp_metrics flush")


def rates(node: Node) -> list[float | None]:
    """Return the rates of a link at the bridge and in the node, in Mbit/s; None: native."""
    mbit_per_second = []
    for namespace, device in _ends(node):
        queues = json.loads(_tc(f"-json -n {namespace} qdisc show dev {device}"))
        bytes_per_second = [q["options"]["rate"] for q in queues if q["kind"] == "tbf"]
        mbit_per_second.append(bytes_per_second[0] * 8 / 1e6 if bytes_per_second else None)
    return mbit_per_second


def _ends(node: Node) -> list[tuple[str, str]]:
    """Return namespace and name of the interfaces of a link, at the bridge and in the node."""
    return [(BRIDGE, node.link), (node.link, "eth0")]


def measure(source: str, target: str, seconds: int = 3) -> dict[str, float]:
    """Measure rate and latency from one node to another. No other traffic may be on the links.

    Parameters
    ----------
    source, target : names of nodes.
    seconds : time for which `iperf3` sends.

    Returns
    -------
    `mbit_per_second`, the rate at which TCP's payload arrives, and `latency_ms`, the median
    round-trip time of a ping.

    Raises
    ------
    InputError : a node does not exist, or no lab is up.
    OSError : no data arrive.
    """
    lab = require_lab()
    sender, receiver = lab.node(source), lab.node(target)
    with lock(FOLDER):
        options = ["-n", "-c", str(_PINGS), "-i", "0.01", "-w", "5"]
        pings = call(*inside(sender), "ping", *options, receiver.address)
        latency = statistics.median(map(float, re.findall(r"time=([0-9.]+) ms", pings)))
        serve = ["iperf3", "--server", "--one-off", "--forceflush", "--bind", receiver.address]
        server = subprocess.Popen(
            [*inside(receiver), *serve, "--port", _IPERF_PORT],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            # A connection is refused before the server listens.
            next((line for line in server.stdout if "listening" in line), None)
            send = ["iperf3", "--client", receiver.address, "--port", _IPERF_PORT, "--json"]
            # The time in which buckets and queues fill is left out.
            options = ["--omit", "1", "--time", str(seconds), "--connect-timeout", "5000"]
            result = call(*inside(sender), *send, *options, timeout=seconds + 20)
        finally:
            server.kill()
            server.communicate()
    rate = json.loads(result)["end"]["sum_received"]["bits_per_second"]
    return {"mbit_per_second": rate / 1e6, "latency_ms": latency}


def is_cut(node: Node) -> bool:
    """Return whether a node's link is down."""
    [link] = json.loads(_ip(f"-json -n {BRIDGE} link show {node.link}"))
    return "UP" not in link["flags"]


def cut(name: str) -> None:
    """Take the link of a node down at the bridge: neither nodes nor the scheduler reach the node.

    Raises
    ------
    InputError : there is no such node, or no lab is up.
    """
    _ip(f"-n {BRIDGE} link set {require_lab().node(name).link} down")


def mend(name: str) -> None:
    """Take the link of a node up again; see `cut`."""
    _ip(f"-n {BRIDGE} link set {require_lab().node(name).link} up")


def _ip(arguments: str) -> str:
    return call("ip", *arguments.split())


def _tc(arguments: str) -> str:
    return call("tc", *arguments.split())
