"""Record the moments of every step of a rank; `escala.probes.clocks` says which.

A communication hook sees when the last gradient of each bucket is ready, and the future that it
returns when the bucket is summed. DistributedDataParallel's own logging data hold one begin and one
end for all buckets of a step together, and copying out of them is in between. So waiting for the
slowest rank could not be told from the exchange by them, and they are not used. A process without
buckets notes when each gradient is known, from which the cost model tells when buckets are.

On a GPU a call only schedules work. There each moment waits for the work before it. Buckets are not
watched, because that would keep them from overlapping, and the exchange counts as backward pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch

from escala.engines.torch.arrays import list_trained
from escala.engines.torch.engine import Computed
from escala.probes import clocks
from escala.probes.clocks import (
    BACKWARD_ENDS,
    COMPUTED,
    ENTERED,
    EXCHANGED,
    FORWARD_ENDS,
    GRADIENT_READY,
    STEP_BEGINS,
    SUMMED,
    UPDATE_BEGINS,
    UPDATED,
    Sample,
)

#: What a step without buckets has in their place: all gradients.
GRADIENTS = "gradients"


class Recorder(clocks.MomentsWriter):
    """Records when the parts of each step of one process begin and end."""

    def __init__(self, probe: clocks.Clocks, plan: Mapping, process: int, device: torch.device):
        super().__init__(probe.folder / f"rank{process}.clocks.csv")
        self._on_gpu = device.type == "cuda"
        # Otherwise a step has several forward passes.
        self._whole = plan["knobs"]["accumulation"] == 1
        if self._on_gpu:
            self.watch_exchange = None
        self._in_buckets = False
        self._at: dict[str, float] = {}
        self._known: dict[str, float] = {}
        self._ready: dict[str, float] = {}
        self._exchanged: dict[str, float] = {}
        self._sampled: dict[str, Sample] = {}

    def watch(self, computed: Computed, optimizer: torch.optim.Optimizer) -> Computed:
        def model(inputs):
            if UPDATED in self._at or not self._at:
                self._begin()
            return computed.model(inputs)

        def row_losses(targets, outputs):
            losses = computed.row_losses(targets, outputs)
            self._note(FORWARD_ENDS)
            return losses

        def correct(targets, outputs):
            # A step calls it when the backward pass has returned.
            self._note(BACKWARD_ENDS)
            if not self._ready:
                self._sampled[COMPUTED] = self._on_core.sample()
            return computed.correct(targets, outputs)

        def know(name, _):
            self._known[name] = time.perf_counter()

        def begin_update(*_):
            self._sampled[SUMMED] = self._on_core.sample()
            self._note(UPDATE_BEGINS)

        if not self._in_buckets and not self._on_gpu:
            for name, tensor in list_trained(computed.model):
                tensor.register_post_accumulate_grad_hook(partial(know, name))
        optimizer.register_step_pre_hook(begin_update)
        optimizer.register_step_post_hook(lambda *_: self._note(UPDATED))
        return Computed(model, row_losses, correct)

    def watch_exchange(self, hook: Callable) -> Callable:
        """Return a communication hook that also notes when each bucket is ready and summed."""
        self._in_buckets = True

        # PyTorch refuses the annotations of a hook that are texts.
        def note_bucket(state, bucket):
            name = f"bucket {bucket.index()}"

            def note_sum(future):
                self._exchanged[name] = time.perf_counter()
                return future.value()

            self._ready[name] = time.perf_counter()
            self._sampled[COMPUTED] = self._on_core.sample()
            return hook(state, bucket).then(note_sum)

        return note_bucket

    def _begin(self) -> None:
        self._at, self._ready, self._exchanged = {}, {}, {}
        self._note(STEP_BEGINS)
        self._sampled[ENTERED] = self._on_core.sample()

    def _note(self, moment: str) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()
        self._at[moment] = time.perf_counter()

    def samples(self, gathered: float, returned: float) -> dict[str, Sample]:
        return self._sampled

    def inside(self, gathered: float, returned: float) -> Iterator[tuple[str, str, float]]:
        for moment in (STEP_BEGINS, FORWARD_ENDS, BACKWARD_ENDS, UPDATE_BEGINS):
            if moment != FORWARD_ENDS or self._whole:
                yield moment, "", self._at[moment]
        backward = self._known | {GRADIENTS: self._at[BACKWARD_ENDS]}
        for name, ready in (self._ready or backward).items():
            yield GRADIENT_READY, name, ready
            yield EXCHANGED, name, self._exchanged.get(name, ready)
            yield UPDATED, name, self._at[UPDATED]
