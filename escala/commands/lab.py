"""Run a SLURM cluster on this machine, to measure over links of a selected rate.

It needs root on Linux, and names other missing requirements. SLURM's own commands (sinfo, squeue,
sbatch) work while the lab is up. Logs of its daemons are in /run/escala-lab/log.
"""

from __future__ import annotations

import argparse
from functools import partial

from escala.core.arguments import Parser, subcommands
from escala.lab import cluster, daemons, network
from escala.lab.state import require_lab

say = partial(print, flush=True)
EXAMPLES = """\
examples:
  escala lab up --nodes 2      nodes n1 and n2, each on cores of its own
  escala lab shape 100mbit     every link, in both directions
  escala lab measure           rate and latency of the links, by iperf3 and ping
  escala run --profile profiles/lab TARGET
  escala lab down              remove everything
"""


def add(parser: Parser) -> None:
    command = subcommands(parser)
    up = command("up", _up, "start the lab, and wait until its nodes are idle")
    up.add_argument(
        "--nodes", type=int, default=2, metavar="N", help="number of nodes (default: 2)"
    )
    up.add_argument(
        "--cores-per-node",
        type=int,
        metavar="C",
        help="default: the nodes divide the cores of this machine, with one each at least; they "
        "share cores if there are too few",
    )
    up.add_argument(
        "--subnet",
        default=network.SUBNET,
        metavar="N.N.N.0/24",
        help=f"256 IPv4 addresses that nothing else here uses (default: {network.SUBNET})",
    )
    command("status", _status, "show the state of each node and its link; fails if no lab is up")
    command("down", _remove, "end its jobs and daemons, and remove the lab, also an incomplete one")
    shape = command("shape", _shape, "set the rate of every link, in both directions")
    shape.add_argument("rate", help="10mbit, 100mbit, 1gbit, … or native: without a limit")
    measure = command("measure", _measure, "measure rate and latency from one node to another")
    measure.add_argument("source", nargs="?", default="n1", help="a node (default: n1)")
    measure.add_argument("target", nargs="?", default="n2", help="another node (default: n2)")
    for name, run, text in (
        ("cut", network.cut, "take the link of a node down"),
        ("mend", network.mend, "take the link of a node up again"),
        (
            "stop-node",
            lambda node: daemons.stop_node(require_lab().node(node)),
            "stop a node's slurmd",
        ),
        (
            "start-node",
            lambda node: daemons.start_node(require_lab().node(node)),
            "start a node again",
        ),
    ):
        fault = command(name, lambda arguments, run=run: run(arguments.node), text)
        fault.add_argument("node", help="name of the node, such as n2")
    command(
        "restart-scheduler",
        lambda arguments: daemons.restart_scheduler(),
        "stop slurmctld and start it again",
    )


def run(arguments: argparse.Namespace) -> int | None:
    cluster.require_machine()
    return arguments.command(arguments)


def _up(arguments: argparse.Namespace) -> None:
    cluster.up(arguments.nodes, arguments.cores_per_node, say, arguments.subnet)
    _status(arguments)


def _status(arguments: argparse.Namespace) -> None:
    row = "{:6}{:14}{:>8}{:>12}  {:12}{:10}{}".format
    states = cluster.status()
    say(row("node", "address", "cores", "memory", "state", "slurmd", "link"))
    for state in states:
        node, cores = state.node, ",".join(map(str, state.node.cores))
        daemon = "runs" if state.daemon else "stopped"
        memory = f"{node.memory_mib} MiB"
        say(row(node.name, node.address, cores, memory, state.state, daemon, _link(state)))
    shared = cluster.shared_cores([state.node for state in states])
    if shared:
        cores = ", ".join(map(str, shared))
        say(f"oversubscribed: nodes share the cores {cores}; times are not those of real nodes")


def _link(state: cluster.State) -> str:
    """Return the description of a link, with one rate if both ends have equal rates."""
    rates = ["native" if rate is None else f"{rate:g} Mbit/s" for rate in state.rates]
    return "cut" if state.cut else " and ".join(dict.fromkeys(rates))


def _remove(arguments: argparse.Namespace) -> None:
    cluster.down()
    say("The lab is down: no part of one remains.")


def _shape(arguments: argparse.Namespace) -> None:
    network.shape(arguments.rate)
    say(f"links: {arguments.rate}")


def _measure(arguments: argparse.Namespace) -> None:
    link = network.measure(arguments.source, arguments.target)
    say(
        f"{arguments.source} to {arguments.target}: {link['mbit_per_second']:.4g} Mbit/s, "
        f"{link['latency_ms']:.3g} ms round trip"
    )
