"""`tf.distribute.ParameterServerStrategy`: asynchronous, one copy of the weights for all ranks.

Each rank is a worker: it fetches the weights, computes the gradients of its rows, and sends the
gradients. Other ranks may have changed the weights in between, so the losses differ from those of
one process, and runs with the same seeds differ. The first process is the coordinator. It starts
the first worker and the parameter server, and all three share the cores of its rank.
"""

from __future__ import annotations

from escala.strategies.base import SERVERS, Strategy
from escala.strategies.distribute import updates_by_itself


class ParameterServer(Strategy):
    position = 7
    engine = "tensorflow.parameter_server"
    meets_by = SERVERS

    @classmethod
    def refused(cls, knobs, checkpoint_epochs):
        yield from updates_by_itself(knobs)

    @classmethod
    def waits(cls):
        return False
