"""The base of the Horovod strategies: synchronous data parallelism by allreduce."""

from __future__ import annotations

from escala.strategies.base import Strategy

#: The prefix of a gradient's name in the timeline; the variable's name follows.
GRADIENT = "gradient/"
#: The suffixes of a gradient's name: for its first factor, and for the rows of a sparse gradient.
INPUTS, INDICES = "/inputs", "/indices"
#: A part of the name of a sum inside the forward pass (TensorFlow puts the layer's scope before
#: it), and the suffix of that of its gradient.
STATISTICS, BACKWARD = "statistics/", "/backward"


class Horovod(Strategy):
    engine = "tensorflow.horovod"

    @classmethod
    def environment(cls, knobs):
        autotune = {"HOROVOD_AUTOTUNE": "1"} if knobs["autotune"] else {}
        return super().environment(knobs) | autotune

    @classmethod
    def timeline_environment(cls, path, negotiation=True):
        details = {
            "HOROVOD_TIMELINE_MARK_CYCLES": "1",
            # With a warm response cache Horovod no longer logs who negotiated when.
            "HOROVOD_CACHE_CAPACITY": "0",
        }
        return {"HOROVOD_TIMELINE": str(path)} | (details if negotiation else {})


def over(library):
    """Return the variables by which Horovod exchanges control messages and data over a library."""
    return {"HOROVOD_CONTROLLER": library, "HOROVOD_CPU_OPERATIONS": library}
