"""The declaration of a strategy: how the ranks of a run are started, meet, and exchange.

A *rank* is one replica of the model. Most strategies give each a process of its own; some hold all
ranks of a node in one process. What ranks do inside a framework is the work of an engine
(`escala.engines`), which a strategy names and does not import.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from escala.strategies.place import Place

#: The timeline as a library writes it, in the run's `ranks/` folder, and the files made of it.
RAW_TIMELINE = "timeline.raw"
#: A timeline as a trace for Perfetto.
TRACE = "trace.json"
TIMELINE_FILES = ("timeline.json", TRACE)

#: How the processes of a run find each other: by addresses that they are told; through MPI; at
#: Horovod's rendezvous, which is served while they run; or as servers, which accept connections on
#: every address of their machine.
ADDRESSES, MPI, RENDEZVOUS, SERVERS = "addresses", "mpi", "rendezvous", "servers"
#: The folder of the engines, whose code is not imported here.
_ENGINES = Path(__file__).parents[1] / "engines"
#: The library by which the ranks of a program sum, where it is not known.
UNKNOWN = "unknown"
#: Variables with which processes keep freed memory, whatever its size, by engine. The first are of
#: the C library of Linux (`man 3 mallopt`), which by default gives every block of 32 MiB or more
#: back to the system. TensorFlow has an allocator of its own that keeps it.
KEEPING = {
    "torch": {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**62),
        "MALLOC_ARENA_MAX": "1",
    },
    "tensorflow": {"TF_CPU_ALLOCATOR_USE_BFC": "true"},
}


class Layouts(NamedTuple):
    """Which layouts a strategy has, and what a process holds.

    Attributes
    ----------
    one_rank, one_node : whether it has layouts of one rank, or of one node, only.
    process_per_node : whether one process holds all ranks of its node.
    """

    one_rank: bool = False
    one_node: bool = False
    process_per_node: bool = False


class Strategy:
    """A way to train with several ranks. A strategy is a subclass that has a `position`.

    Its name is that of its module's file, with `-` for `_`.
    """

    #: The name in experiments.
    name: ClassVar[str]
    #: How the workloads are trained that it runs (`escala.workloads`); follows from the others.
    trains_by: ClassVar[frozenset[str]]

    #: Where tables and figures list it: by position, and by name where several have one.
    position: ClassVar[int]
    #: The engine that trains, and its module that joins the ranks, as `tensorflow.horovod`; None
    #: for a strategy that only starts programs.
    engine: ClassVar[str | None] = None
    #: The library by which the ranks of a program sum, as `escala/hook/escala_collectives.py` names
    #: it, or `UNKNOWN`; None for a strategy that starts no programs.
    programs: ClassVar[str | None] = None
    #: How its processes find each other.
    meets_by: ClassVar[Literal["addresses", "mpi", "rendezvous", "servers"]] = ADDRESSES
    layouts: ClassVar[Layouts] = Layouts()
    #: Whether each rank holds a part of the variables only, also across nodes.
    divides_model: ClassVar[bool] = False
    #: Whether ranks that have GPUs exchange by NCCL.
    has_nccl: ClassVar[bool] = False

    def __init_subclass__(cls):
        cls.name = cls.__module__.rpartition(".")[2].replace("_", "-")
        kinds = {"steps": cls.engine, "command": cls.programs}
        # A fit is made by one process, of whatever framework.
        kinds["fit"] = cls.engine and cls.programs and cls.layouts.one_rank
        cls.trains_by = frozenset(kind for kind, trains in kinds.items() if trains)

    @classmethod
    def environment(cls, knobs: Mapping[str, Any]) -> dict[str, str]:
        """Return the environment variables its library reads, the same in every process."""
        keeps = cls.engine and knobs.get("keep_memory")
        return dict(KEEPING[cls.engine.partition(".")[0]]) if keeps else {}

    @classmethod
    def process_variables(cls, place: Place, interface: str) -> dict[str, str]:
        """Return the variables by which the program of one process finds the others.

        Parameters
        ----------
        interface : network interface that the processes exchange over.
        """
        return {}

    @classmethod
    def timeline_environment(cls, path: Path, negotiation: bool = True) -> dict[str, str]:
        """Return what makes its library write a timeline to `path`; nothing if it writes none.

        With `negotiation` the timeline also records when each rank was ready, which costs time.
        """
        return {}

    @classmethod
    def records_for(cls, probe: str) -> bool:
        """Return whether its engine has a module that records steps for a probe."""
        recorders = _ENGINES / cls.engine.partition(".")[0] / "recorders"
        return (recorders / f"{probe.replace('-', '_')}.py").is_file()

    @classmethod
    def refused(
        cls, knobs: Mapping[str, Any], checkpoint_epochs: int | None
    ) -> Iterator[tuple[str, str, str]]:
        """Yield each knob whose value its ranks cannot follow, with the reason and the remedy.

        Parameters
        ----------
        knobs : those that a run reads.
        checkpoint_epochs : epochs from one checkpoint to the next; None if none are kept.
        """
        yield from ()

    @classmethod
    def waits(cls) -> bool:
        """Return whether ranks make each step together, and wait for each other's updates."""
        return True
