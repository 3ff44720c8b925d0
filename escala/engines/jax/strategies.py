"""Strategies of JAX: one process, processes that sum by Gloo, and programs of `jax.distributed`."""

from __future__ import annotations

from escala.strategies.base import (
    UNKNOWN,
    AtFirstProcess,
    EvaluatesInParts,
    Layouts,
    Option,
    Strategy,
)


class JAX(Strategy):
    """Strategies that train models of JAX, on processors."""

    @classmethod
    def find_refusals(cls, knobs, checkpoint_epochs):
        if knobs["device"] == "gpu":
            yield "device", "is not of JAX here, which computes on processors", "use auto or cpu"
        if knobs["products"] == "bfloat16":
            yield "products", "is not supported by the engine of JAX", "use float32"
        threads = knobs["threads"]
        if "inter_op" in threads and threads["inter_op"] != threads.get("intra_op"):
            reason = "has two values, and XLA has only one pool of threads"
            yield "threads", reason, "leave inter_op out"


class JAXSingle(JAX):
    """One process of JAX, which has nothing to synchronise."""

    name = "jax-single"
    title = "JAX by itself"
    position = 30
    engine = "jax.ranks.Ranks"
    layouts = Layouts(one_rank=True)


class JAXGloo(JAX, EvaluatesInParts):
    """Processes of `jax.distributed`, whose gradients Gloo sums inside a compiled function.

    jaxlib finds Gloo's address by the name of the host, so all processes are on one node.
    """

    name = "jax-gloo"
    title = "JAX over Gloo"
    position = 31
    engine = "jax.ranks.GlooRanks"
    library = "jax-gloo"
    layouts = Layouts(one_node=True)


class JAXDistributed(AtFirstProcess):
    """Programs that call `jax.distributed.initialize`.

    JAX reads the address of the first process from `JAX_COORDINATOR_ADDRESS`. The program may give
    the numbers of processes to JAX. Otherwise JAX reads these numbers from the variables of a known
    launcher (`jax/_src/clusters/ompi_cluster.py`).
    """

    name = "jax-distributed"
    title = "JAX's processes"
    position = 32
    programs = UNKNOWN
    numbers = "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"
    option = Option(
        "--jax",
        "jax.distributed.initialize: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID",
        r"JAX_(COORDINATOR_ADDRESS|NUM_PROCESSES|PROCESS_ID)",
        signs=("imports jax", "calls initialize"),
    )

    @classmethod
    def process_variables(cls, place, interface):
        numbers = (place.process, place.processes, place.local)
        names = ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_LOCAL_PROCESS_ID")
        of_launcher = (f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK"))
        return super().process_variables(place, interface) | {
            "JAX_COORDINATOR_ADDRESS": place.extra_addresses[0],
            # By this variable JAX takes Open MPI for the launcher.
            "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{place.extra_addresses[0]}",
            **dict(zip(names, map(str, numbers), strict=True)),
            **dict(zip(of_launcher, map(str, numbers), strict=True)),
        }
