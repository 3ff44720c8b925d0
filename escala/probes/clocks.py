"""Record the moments of every step of each rank, in a separate run.

Moments are seconds since the epoch. On one machine all ranks and Horovod's timeline use the same
clock: the time of day at the first step, without later corrections of it. Inside the compiled step,
a moment is read when its tensor has been computed.
"""

from __future__ import annotations

from escala.probes.base import Probe, section, value
from escala.strategies.base import RAW_TIMELINE, TIMELINE_FILES

#: The columns of `rank{r}.clocks.csv`; `tensor` is empty for a moment of the whole step.
COLUMNS = ("epoch", "step", "moment", "tensor", "seconds")
#: Moments outside the compiled step, inside it as a whole, and of each of its tensors.
GATHER_BEGINS, GATHER_ENDS, RETURNED = OUTSIDE = ("gather_begins", "gather_ends", "returned")
STEP_BEGINS = "step_begins"
GRADIENT_READY, EXCHANGED, UPDATED = TENSOR_MOMENTS = ("gradient_ready", "exchanged", "updated")


class Clocks(Probe):
    """The moments of the steps of every rank, and Horovod's timeline of them."""

    scope = "rank"
    settings = section(
        "A separate run of every gradient-trained configuration, in which each rank notes the "
        "moments of its steps, and Horovod its timeline. It splits a step into its parts.",
        enabled=False,
        steps=value(
            "integer", "Training steps that such a run makes, of one epoch.", minimum=1, default=60
        ),
    )
    products = TIMELINE_FILES
    temporary = (RAW_TIMELINE,)
    tabulated = True
    compared = True
    records_steps = True

    @classmethod
    def applies(cls, run, strategy):
        return super().applies(run, strategy) and strategy.waits()

    def environment(self, strategy):
        # The clocks record when each rank was ready.
        return strategy.timeline_environment(self.folder / RAW_TIMELINE, negotiation=False)
