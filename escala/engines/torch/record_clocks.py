"""Record the moments of every step of a rank; `escala.probes.clocks` lists the moments.

A communication hook is called when the last gradient of a bucket is ready, and the future that it
returns is set when the bucket is summed. DistributedDataParallel's own logging data are not used.
They have one begin and one end for all buckets of a step together, with the copies out of buckets
in between. So these data do not show how long a rank waits for the slowest rank. A process without
buckets notes when each gradient is ready. From these times the cost model computes when buckets
would be ready.

On a GPU a call only schedules work, so each moment waits for the earlier work. Buckets are not
recorded on a GPU, because this wait would prevent overlap. The exchange then counts as backward
pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch

from escala.engines.torch.arrays import list_trained
from escala.engines.torch.engine import StepFunctions
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

#: The name of all gradients together, in a step without buckets.
GRADIENTS = "gradients"


class Recorder(clocks.MomentsWriter):
    """Records when the parts of each step of one process begin and end."""

    def __init__(self, probe: clocks.Clocks, plan: Mapping, process: int, device: torch.device):
        super().__init__(probe.folder / f"rank{process}.clocks.csv")
        self._on_gpu = device.type == "cuda"
        # A step in parts has several forward passes.
        self._has_one_forward = plan["knobs"]["accumulation"] == 1
        if self._on_gpu:
            self.watch_exchange = None
        self._in_buckets = False
        self._at: dict[str, float] = {}
        self._gradient_ready: dict[str, float] = {}
        self._bucket_ready: dict[str, float] = {}
        self._bucket_summed: dict[str, float] = {}
        self._sampled: dict[str, Sample] = {}

    def watch(self, functions: StepFunctions, optimizer: torch.optim.Optimizer) -> StepFunctions:
        def model(inputs):
            if UPDATED in self._at or not self._at:
                self._begin()
            return functions.model(inputs)

        def row_losses(targets, outputs):
            losses = functions.row_losses(targets, outputs)
            self._note(FORWARD_ENDS)
            return losses

        def correct(targets, outputs):
            # A step calls `correct` when the backward pass has returned.
            self._note(BACKWARD_ENDS)
            if not self._bucket_ready:
                self._sampled[COMPUTED] = self._on_core.sample()
            return functions.correct(targets, outputs)

        def note_gradient(name, _):
            self._gradient_ready[name] = time.perf_counter()

        def begin_update(*_):
            self._sampled[SUMMED] = self._on_core.sample()
            self._note(UPDATE_BEGINS)

        if not self._in_buckets and not self._on_gpu:
            for name, tensor in list_trained(functions.model):
                tensor.register_post_accumulate_grad_hook(partial(note_gradient, name))
        optimizer.register_step_pre_hook(begin_update)
        optimizer.register_step_post_hook(lambda *_: self._note(UPDATED))
        return StepFunctions(model, row_losses, correct)

    def watch_exchange(self, hook: Callable) -> Callable:
        """Return a communication hook that also notes when each bucket is ready and summed."""
        self._in_buckets = True

        # PyTorch refuses a hook whose annotations are strings, so there are none.
        def note_bucket(state, bucket):
            name = f"bucket {bucket.index()}"

            def note_sum(future):
                self._bucket_summed[name] = time.perf_counter()
                return future.value()

            self._bucket_ready[name] = time.perf_counter()
            self._sampled[COMPUTED] = self._on_core.sample()
            return hook(state, bucket).then(note_sum)

        return note_bucket

    def _begin(self) -> None:
        self._at, self._bucket_ready, self._bucket_summed = {}, {}, {}
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
            if moment != FORWARD_ENDS or self._has_one_forward:
                yield moment, "", self._at[moment]
        # Without buckets: the time when each gradient was ready, and at last all gradients.
        gradients = self._gradient_ready | {GRADIENTS: self._at[BACKWARD_ENDS]}
        for name, ready in (self._bucket_ready or gradients).items():
            yield GRADIENT_READY, name, ready
            yield EXCHANGED, name, self._bucket_summed.get(name, ready)
            yield UPDATED, name, self._at[UPDATED]
