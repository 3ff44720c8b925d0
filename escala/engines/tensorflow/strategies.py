"""Strategies of TensorFlow: one process, Horovod, and `tf.distribute`."""

from __future__ import annotations

import json
from typing import ClassVar

from escala.strategies.base import (
    SERVERS,
    UNKNOWN,
    EvaluatesInParts,
    Layouts,
    OpenMPI,
    Option,
    Strategy,
)


class Single(Strategy):
    """One process, which has nothing to synchronise."""

    name = "single"
    title = "by itself"
    position = 0
    engine = "tensorflow.ranks.Ranks"
    programs = UNKNOWN
    layouts = Layouts(one_rank=True)


class Horovod(EvaluatesInParts):
    """Synchronous data parallelism by Horovod's allreduce."""

    engine = "tensorflow.horovod.HorovodRanks"
    #: The library for control messages and data: `gloo` or `mpi`.
    carried_by: ClassVar[str]

    @classmethod
    def environment(cls, knobs):
        autotune = {"HOROVOD_AUTOTUNE": "1"} if knobs["autotune"] else {}
        library = {"HOROVOD_CONTROLLER": cls.carried_by, "HOROVOD_CPU_OPERATIONS": cls.carried_by}
        return super().environment(knobs) | autotune | library

    @classmethod
    def timeline_environment(cls, path, negotiation=True):
        details = {
            "HOROVOD_TIMELINE_MARK_CYCLES": "1",
            # With a filled response cache, Horovod does not log negotiations of single ranks.
            "HOROVOD_CACHE_CAPACITY": "0",
        }
        return {"HOROVOD_TIMELINE": str(path)} | (details if negotiation else {})


class WrappedSingle(Horovod):
    """One process that makes Horovod's calls, to show their cost without communication."""

    name = "wrapped-single"
    title = "with Horovod's calls"
    position = 1
    layouts = Layouts(one_rank=True)
    carried_by = "gloo"


class HorovodMPI(OpenMPI, Horovod):
    """Horovod with control messages and data over MPI."""

    name = "horovod-mpi"
    title = "Horovod over MPI"
    position = 2
    programs = "horovod"
    option = Option(
        "--horovod",
        "Horovod over MPI",
        r"(OMPI_COMM_WORLD|HOROVOD)_\w+",
        signs=("imports horovod",),
    )
    library = carried_by = "mpi"


class HorovodGloo(Horovod):
    """Horovod with control messages and data over Gloo, without MPI."""

    name = "horovod-gloo"
    title = "Horovod over Gloo"
    position = 3
    programs = "horovod"
    library = carried_by = "gloo"
    numbers = "HOROVOD_RANK", "HOROVOD_SIZE"

    @classmethod
    def serve_rendezvous(cls, nodes, places, here):
        from escala.engines.tensorflow import rendezvous

        return rendezvous.serve(nodes, places, here)

    @classmethod
    def process_variables(cls, place, interface):
        # The variables that `horovodrun` sets for each process that it starts.
        return {
            "HOROVOD_HOSTNAME": place.host,
            "HOROVOD_RANK": str(place.process),
            "HOROVOD_SIZE": str(place.processes),
            "HOROVOD_LOCAL_RANK": str(place.local),
            "HOROVOD_LOCAL_SIZE": str(place.processes_per_node),
            "HOROVOD_CROSS_RANK": str(place.node),
            "HOROVOD_CROSS_SIZE": str(place.nodes),
        }


class Hybrid(HorovodMPI):
    """Ranks of unequal speed. Each rank takes a part of every batch, by its speed or as stated.

    Every rank divides the loss of a row by the global number of rows. So the sum of the gradients
    equals the gradient of one process with all rows, for any fractions.
    """

    name = "hybrid"
    title = "Horovod with unequal shares"
    position = 4
    programs = None


class Distribute(Strategy):
    """Ranks whose gradients `tf.distribute` sums inside Keras's updates."""

    @classmethod
    def find_refusals(cls, knobs, checkpoint_epochs):
        if knobs.get("optimizer") == "one-pass":
            reason = (
                "does not sum the gradients of ranks by tf.distribute, which Keras's updates do"
            )
            yield "optimizer", reason, "use fused"


class Mirrored(Distribute):
    """`tf.distribute.MirroredStrategy`: the ranks of one node in one process, each on a device.

    The devices are the node's GPUs, or logical CPU devices on a node without GPUs.
    """

    name = "mirrored"
    title = "TensorFlow's MirroredStrategy"
    position = 5
    engine = "tensorflow.distribute.MirroredRanks"
    layouts = Layouts(one_node=True, process_per_node=True)


class MultiWorkerMirrored(Distribute, EvaluatesInParts):
    """`tf.distribute.MultiWorkerMirroredStrategy`: a process for each rank, sums over gRPC."""

    name = "multiworker-mirrored"
    title = "TensorFlow's MultiWorkerMirroredStrategy"
    position = 6
    engine = "tensorflow.distribute.MultiWorkerMirroredRanks"
    library = "tensorflow"
    meets_by = SERVERS


class ParameterServer(Distribute):
    """`tf.distribute.ParameterServerStrategy`: asynchronous, one copy of the weights for all ranks.

    Each rank is a worker. A worker fetches the weights, computes the gradients of its rows, and
    sends the gradients. Other ranks may change the weights in between. So the losses differ from
    the losses of one process, and runs with equal seeds differ. The first process is the
    coordinator. It starts the first worker and the parameter server, and these three share the
    cores of its rank.
    """

    name = "parameter-server"
    title = "TensorFlow's ParameterServerStrategy"
    position = 7
    engine = "tensorflow.distribute.ParameterServerRanks"
    meets_by = SERVERS

    @classmethod
    def waits(cls):
        return False


class TFConfig(Strategy):
    """A program with `tf.distribute.MultiWorkerMirroredStrategy`, which reads `TF_CONFIG`."""

    name = "tf-config"
    title = "TF_CONFIG"
    position = 11
    programs = UNKNOWN
    option = Option(
        "--tf-config",
        "TensorFlow's MultiWorkerMirroredStrategy: TF_CONFIG",
        "TF_CONFIG",
        signs=("calls MultiWorkerMirroredStrategy",),
    )
    meets_by = SERVERS

    @classmethod
    def process_variables(cls, place, interface):
        task = {"type": "worker", "index": place.process}
        return {"TF_CONFIG": json.dumps({"cluster": {"worker": place.addresses}, "task": task})}
