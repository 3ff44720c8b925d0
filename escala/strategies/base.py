"""The declaration of a strategy: how the ranks of a run are started, meet, and exchange.

A *rank* is one replica of the model. Most strategies start one process for each rank; some hold all
ranks of a node in one process. An engine (`escala.engines`) does the work of ranks inside a
framework. A strategy names its engine and does not import it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from escala.core.engines import ENGINES, FOLDER
from escala.workloads import Workload

#: The file in the run's `ranks/` folder into which a library writes its timeline.
RAW_TIMELINE = "timeline.raw"
#: The files that are made from a timeline; one is a trace for Perfetto.
TRACE = "trace.json"
TIMELINE_FILES = ("timeline.json", TRACE)
#: The prefix of a gradient's name in a timeline. The variable's name follows the prefix.
GRADIENT = "gradient/"

#: How the processes of a run find each other: by addresses in the environment, through MPI, or as
#: servers. A server accepts connections on every address of its machine.
ADDRESSES, MPI, SERVERS = "addresses", "mpi", "servers"
#: Values for the library by which the ranks of a program sum: it is not known; there is none.
UNKNOWN, ALONE = "unknown", "none"


class Layouts(NamedTuple):
    """The layouts that a strategy allows, and whether one process holds the ranks of a node.

    Attributes
    ----------
    one_rank, one_node : whether it allows only layouts with one rank, or with one node.
    process_per_node : whether one process holds all ranks of its node.
    """

    one_rank: bool = False
    one_node: bool = False
    process_per_node: bool = False


class Option(NamedTuple):
    """The option of `escala try` for a strategy, and the signs of a program for that strategy.

    Attributes
    ----------
    name, help : name and help text of the option.
    variables : pattern of the names of variables by which the program finds its ranks; by default
        it matches none.
    signs : signs in the program's script, `imports PACKAGE` or `calls FUNCTION`; all must be
        present. The last sign tells most.
    """

    name: str
    help: str
    variables: str = "(?!)"
    signs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """The place of one process of a run among the others.

    Attributes
    ----------
    process, processes : the number of this process, and the count of processes.
    ranks : the ranks that this process holds.
    node, nodes : the number of its node, and the count of nodes.
    local, processes_per_node : its number on its node, and the count of processes there.
    addresses : `ADDRESS:PORT` of all processes, in order.
    extra_addresses : two more addresses on the first node.
    interface : name of the network interface by which the processes exchange.
    """

    process: int
    processes: int
    ranks: list[int]
    node: int
    nodes: int
    local: int
    processes_per_node: int
    host: str
    cores: list[int]
    addresses: list[str]
    extra_addresses: list[str]
    interface: str = ""

    @classmethod
    def of(cls, plan: dict, process: int) -> Place:
        """Return the place of a process from the entry `places` of a run's plan."""
        return cls(**plan["places"][process])


class Strategy:
    """A way to train with several ranks. A strategy is a subclass with a `name` of its own.

    A subclass without a name is a base of several strategies. Everything that a strategy gives to
    ranks must stand in these classes, not in a separate function. A change of these classes makes a
    run be measured again; a change elsewhere does not (`escala.record.key`).
    """

    #: The name in experiments.
    name: ClassVar[str]
    #: How its processes train together, in words for people. By default the title is the name.
    title: ClassVar[str]
    #: Its position in tables and figures. Strategies with equal positions are listed by name.
    position: ClassVar[int] = 99
    #: The engine that trains, and the class in it that joins the ranks, such as
    #: `tensorflow.horovod.HorovodRanks`. None for a strategy that only starts programs.
    engine: ClassVar[str | None] = None
    #: For programs that it starts: the library by which their ranks sum, under its name in
    #: `escala/hook/escala_collectives.py`, or `UNKNOWN`, or `ALONE`. None if it starts no programs.
    programs: ClassVar[str | None] = None
    #: The option of `escala try` for a program of this strategy.
    option: ClassVar[Option | None] = None
    #: Variables that give a process its rank, and the number of ranks.
    numbers: ClassVar[tuple[str, str] | None] = None
    #: The library by which ranks that step together sum gradients: a key of `collectives` in the
    #: engine's `engine.yaml`. None if there is no such library.
    library: ClassVar[str | None] = None
    #: How the processes of a run find each other.
    meets_by: ClassVar[Literal["addresses", "mpi", "servers"]] = ADDRESSES
    layouts: ClassVar[Layouts] = Layouts()
    #: Whether ranks with GPUs exchange by NCCL.
    has_nccl: ClassVar[bool] = False

    def __init_subclass__(cls):
        if "name" in vars(cls):
            # A title or an option is not inherited, because two strategies must differ in both.
            cls.title, cls.option = vars(cls).get("title", cls.name), vars(cls).get("option")

    @classmethod
    def runs(cls, workload: Workload) -> bool:
        """Return whether it runs workloads of this sort; its engine may still lack the model."""
        if workload.is_program:
            return cls.programs is not None
        # A fit needs one process, without calls of a library for several processes. A strategy of
        # one rank that also starts programs gives that.
        fits = cls.programs is not None and cls.layouts.one_rank
        return cls.engine is not None and (workload.takes_steps or fits)

    @classmethod
    def environment(cls, knobs: Mapping[str, Any]) -> dict[str, str]:
        """Return the variables that its library reads, equal in every process."""
        keeps = cls.engine and knobs.get("keep_memory")
        return dict(ENGINES[cls.engine.partition(".")[0]].keep_memory) if keeps else {}

    @classmethod
    def process_variables(cls, place: Place, interface: str) -> dict[str, str]:
        """Return the variables by which the program of one process finds the others.

        Parameters
        ----------
        interface : network interface that the processes exchange over.
        """
        return {}

    @classmethod
    def serve_rendezvous(
        cls, nodes: Sequence[Any], places: Sequence[dict], here: str | None
    ) -> AbstractContextManager[dict[str, str]]:
        """Serve what processes need to find each other; yield variables for all processes.

        Parameters
        ----------
        nodes, places : of the run (`escala.runtime.layout`).
        here : the address of this machine; None means the address of the first node.
        """
        return nullcontext({})

    @classmethod
    def timeline_environment(cls, path: Path, negotiation: bool = True) -> dict[str, str]:
        """Return variables that make its library write a timeline to `path`, if it can write one.

        With `negotiation` the timeline also records when each rank was ready. This costs time.
        """
        return {}

    @classmethod
    def records_for(cls, probe: str) -> bool:
        """Return whether its engine has a module that records steps for a probe."""
        module = f"record_{probe.replace('-', '_')}.py"
        return (FOLDER / cls.engine.partition(".")[0] / module).is_file()

    @classmethod
    def find_refusals(
        cls, knobs: Mapping[str, Any], checkpoint_epochs: int | None
    ) -> Iterator[tuple[str, str, str]]:
        """Yield knob, reason and remedy for each knob whose value its ranks cannot follow.

        Parameters
        ----------
        knobs : the knobs that a run reads, with values.
        checkpoint_epochs : epochs from one checkpoint to the next; None without checkpoints.
        """
        yield from ()

    @classmethod
    def exchanges(cls, knobs: Mapping[str, Any]) -> bool:
        """Return whether ranks exchange gradients, and so end with equal weights."""
        return True

    @classmethod
    def waits(cls) -> bool:
        """Return whether ranks make each step together, and wait for each other's updates."""
        return True


class EvaluatesInParts(Strategy):
    """Processes that may divide the rows of an evaluation; otherwise the first takes all rows.

    They read the knob `evaluation`: `knobs.yaml` names this class in `read_by`.
    """


class OnInterface(Strategy):
    """Processes that are told their network interface; libraries would guess it by host name."""

    @classmethod
    def process_variables(cls, place, interface):
        return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}


class AtFirstProcess(OnInterface):
    """Processes that find the first process by its address, on a port that was free."""

    @classmethod
    def process_variables(cls, place, interface):
        address, port = place.extra_addresses[0].rsplit(":", 1)
        meeting = {"MASTER_ADDR": address, "MASTER_PORT": port}
        return super().process_variables(place, interface) | meeting


class Numbered(AtFirstProcess):
    """Processes that get their place by the variables of torch.distributed.

    "Environment variable initialization" in PyTorch's documentation lists the variables.
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
            # Messages over TCP: the most bytes sent at once, and in each later piece.
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
        # Programs read the place of a process. `mpirun` sets it, and `srun` does not.
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
    """A program that itself starts its ranks: `torchrun`, `accelerate launch`, `mp.spawn`, ….

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
            # Open MPI 4 and 5 would bind ranks to the first cores of the machine, not to the run's
            # cores.
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
        }
