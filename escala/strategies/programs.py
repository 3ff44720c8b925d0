"""Strategies that start programs, and how the processes of any run find each other."""

from __future__ import annotations

from escala.strategies.base import ALONE, MPI, UNKNOWN, Layouts, Option, Strategy


class OnInterface(Strategy):
    """Processes whose libraries would choose a network interface by the name of the host."""

    @classmethod
    def process_variables(cls, place, interface):
        return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}


class AtFirstProcess(OnInterface):
    """Processes that find the first one, on a port that was free."""

    @classmethod
    def process_variables(cls, place, interface):
        address, port = place.extra_addresses[0].rsplit(":", 1)
        meeting = {"MASTER_ADDR": address, "MASTER_PORT": port}
        return super().process_variables(place, interface) | meeting


class Numbered(AtFirstProcess):
    """Processes that get their place by the variables of torch.distributed.

    Its documentation names them in "Environment variable initialization".
    """

    numbers = "RANK", "WORLD_SIZE"

    @classmethod
    def process_variables(cls, place, interface):
        return super().process_variables(place, interface) | {
            "RANK": str(place.process),
            "WORLD_SIZE": str(place.processes),
            "LOCAL_RANK": str(place.local),
            "LOCAL_WORLD_SIZE": str(place.processes_per_node),
            "GROUP_RANK": str(place.node),
            "GROUP_WORLD_SIZE": str(place.nodes),
            "NODE_RANK": str(place.node),
        }


class OpenMPI(Strategy):
    """Ranks that exchange through Open MPI."""

    meets_by = MPI
    numbers = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"

    @classmethod
    def environment(cls, knobs):
        variables = super().environment(knobs)
        variables["OMPI_MCA_mpi_yield_when_idle"] = str(int(knobs["yield_when_idle"]))
        if knobs["eager_limit_mib"] is not None:
            size = str(round(knobs["eager_limit_mib"] * 2**20))
            # Messages over TCP: bytes sent at once, and bytes of each later piece.
            limits = ("eager_limit", "rndv_eager_limit", "max_send_size")
            variables |= {f"OMPI_MCA_btl_tcp_{name}": size for name in limits}
        return variables


class MPIProgram(OpenMPI, AtFirstProcess):
    """Any program whose processes find each other through MPI."""

    name = "mpi"
    title = "MPI"
    position = 9
    programs = "mpi"
    option = Option(
        "--mpi",
        "processes of MPI, such as mpi4py",
        r"OMPI_COMM_WORLD_\w+",
        signs=("imports mpi4py",),
    )

    @classmethod
    def process_variables(cls, place, interface):
        # `mpirun` sets the place of a process, `srun` does not, and programs read it.
        return super().process_variables(place, interface) | {
            "OMPI_COMM_WORLD_RANK": str(place.process),
            "OMPI_COMM_WORLD_SIZE": str(place.processes),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(place.local),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(place.processes_per_node),
            "OMPI_COMM_WORLD_NODE_RANK": str(place.local),
        }


class Processes(Numbered):
    """Plain processes of a program, which find each other by `RANK`, `MASTER_ADDR`, …."""

    name = "processes"
    title = "plain processes"
    position = 10
    programs = ALONE


class OwnLauncher(OnInterface):
    """A program that starts its ranks itself: `torchrun`, `accelerate launch`, `mp.spawn`, ….

    Escala starts one process on each node, with the cores of all ranks of the node. Placeholders of
    the command give the program its place: `{ranks_of_node}`, `{nodes}`, `{node}`, `{address}` and
    `{port}`.
    """

    name = "own-launcher"
    title = "its own launcher"
    position = 12
    programs = UNKNOWN
    option = Option(
        "--launcher",
        "the command starts its ranks itself (accelerate launch, mp.spawn, …), with "
        "{ranks_of_node} or {ranks} for their number",
        signs=("calls spawn",),
    )
    layouts = Layouts(process_per_node=True)

    @classmethod
    def process_variables(cls, place, interface):
        return super().process_variables(place, interface) | {
            # Open MPI 4 and 5 would bind ranks to the first cores of the machine, not to theirs.
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
        }
