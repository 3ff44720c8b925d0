"""Variables by which the processes of a program find each other."""

from __future__ import annotations


def interface_variables(interface):
    """Return the interface of PyTorch's libraries, or they choose one by the host's name."""
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}


def meeting_variables(place, interface):
    """Return the variables by which a process finds the first one, on a port that was free."""
    address, port = place.extra_addresses[0].rsplit(":", 1)
    return {"MASTER_ADDR": address, "MASTER_PORT": port} | interface_variables(interface)


def torchrun_variables(place, interface):
    """Return the place of a process and the variables by which it finds the others.

    They are those of torch.distributed, "Environment variable initialization".
    """
    return meeting_variables(place, interface) | {
        "RANK": str(place.process),
        "WORLD_SIZE": str(place.processes),
        "LOCAL_RANK": str(place.local),
        "LOCAL_WORLD_SIZE": str(place.processes_per_node),
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": str(place.nodes),
        "NODE_RANK": str(place.node),
    }
