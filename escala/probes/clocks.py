"""Record the moments of every step of each rank, in a separate run.

Moments are seconds since the epoch. On one machine all ranks and Horovod's timeline use the same
clock: the time of day at the first step, without later corrections of it. Inside a compiled step, a
moment is read when its tensor has been computed. Where ranks make a step by several calls, moments
between these calls are read too, and the tensors are the buckets in which gradients are summed.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterable
from pathlib import Path

from escala.probes.base import Probe, section, value
from escala.strategies.base import RAW_TIMELINE, TIMELINE_FILES

#: The columns of `rank{r}.clocks.csv`; `tensor` is empty for a moment of the whole step.
COLUMNS = ("epoch", "step", "moment", "tensor", "seconds")
#: Moments outside the step, inside it as a whole, and of each of its tensors.
GATHER_BEGINS, GATHER_ENDS, RETURNED = OUTSIDE = ("gather_begins", "gather_ends", "returned")
STEP_BEGINS = "step_begins"
#: Further moments inside a step as a whole, if it is made by several calls. If the forward pass is
#: made in parts, it has no moment.
FORWARD_ENDS, BACKWARD_ENDS, UPDATE_BEGINS = "forward_ends", "backward_ends", "update_begins"
GRADIENT_READY, EXCHANGED, UPDATED = TENSOR_MOMENTS = ("gradient_ready", "exchanged", "updated")


class Moments:
    """Writes moments of the steps of one process, with the columns `COLUMNS`, to the file `path`.

    An engine's recorder adds those inside a step. Moments are in seconds of `time.perf_counter`.
    """

    def __init__(self, path: Path):
        self._path, self._rows, self._to_epoch = path, [], to_epoch()

    def inside(self, gathered: float, returned: float) -> Iterable[tuple[str, str, float]]:
        """Return the moments inside the step just made: moment, tensor, seconds.

        It began after `gathered` and ended before `returned`.
        """
        return ()

    def note(self, epoch: int, step: int, began: float, gathered: float, returned: float) -> None:
        """Record the moments of a finished step."""
        outside = zip(OUTSIDE, ("", "", ""), (began, gathered, returned), strict=True)
        for moment, tensor, at in (*outside, *self.inside(gathered, returned)):
            self._rows.append((epoch, step, moment, tensor, at + self._to_epoch))

    def write(self) -> None:
        with open(self._path, "w", newline="") as handle:
            csv.writer(handle).writerows([COLUMNS, *self._rows])


def to_epoch() -> float:
    """Return the difference of the time of day and `time.perf_counter`, in seconds."""
    return time.time() - time.perf_counter()


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
