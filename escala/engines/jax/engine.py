"""The engine of JAX: functions of arrays on processors, compiled by XLA."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial, reduce
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from escala.core.errors import Unavailable
from escala.data.base import output_shape
from escala.engines.base import Engine
from escala.engines.jax import models
from escala.engines.jax.functions import Functions
from escala.engines.jax.ranks import Ranks
from escala.workloads.models import rows_at_once

#: The system's name of the threads in XLA's pool.
_POOL = "tf_XLAEigen"
#: A function that adds the results for two parts of a step's rows.
_add = jax.jit(partial(jax.tree.map, jnp.add))


class JAX(Engine):
    """A process that trains with JAX. Its group is of the class `Ranks`."""

    group: Ranks

    def start(self):
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", 1)
        # XLA's pool does not exist yet, so its size can be set; 0 leaves XLA's own choice.
        if threads := self.plan["knobs"]["threads"]["intra_op"]:
            os.environ["PJRT_NPROC"] = str(threads)
        ranks_and_world = self.group.start()
        [self._device] = jax.local_devices()
        return ranks_and_world

    def resources(self):
        threads = dict(self.plan["knobs"]["threads"])
        if threads["intra_op"]:
            names = Path("/proc/self/task").glob("*/comm")
            thread_names = (file.read_text(encoding="utf-8") for file in names)
            threads["intra_op"] = sum(name.startswith(_POOL) for name in thread_names)
        # XLA has one pool for both sorts of threads, so `inter_op` has no effect.
        return {"gpus": [], "threads": threads}

    def build(self, work, data, knobs, probe=None):
        plan, settings = self.plan, self.plan["training"]
        form = output_shape(data.description)
        self.functions = functions = Functions(work, settings)
        self.model = functions.build(data.inputs, form, knobs)
        self.optimizer = work.optimizer(settings, plan["learning_rate"], knobs)
        self.rows_at_once = rows_at_once(functions.output_form(self.model, data.inputs))
        compute = functions.make_compute(self.model)
        update = self.optimizer.apply
        self._compute, self._update = jax.jit(compute), jax.jit(update, donate_argnums=0)
        # One function computes gradients and updates, if nothing happens between both.
        self._whole_step = None
        if plan["ranks"] == plan["knobs"]["accumulation"] == 1 and not plan["knobs"]["slowdown"]:

            def whole_step(state, *rows):
                gradients, sums = compute(state[0], *rows)
                return update(state, gradients), sums

            self._whole_step = jax.jit(whole_step, donate_argnums=0)
        self._evaluate = functions.make_evaluate(self.model, self.rows_at_once)
        weights = self.model.initial_values(plan["seed"])
        zeros = [np.zeros_like(array) for array in weights]
        self.restore(weights + self.optimizer.slots * zeros)

    def step(self, inputs):
        if self._whole_step:
            result = self._whole_step(self._state, *inputs)
            self._state, (loss, hits) = jax.block_until_ready(result)
        else:
            gradients, (loss, hits) = self._compute_in_parts(inputs)
            self._apply(self.group.sum_over_ranks(gradients))
        return float(loss), float(hits)

    def step_alone(self, inputs):
        gradients, _ = self._compute_in_parts(inputs)
        self._apply(gradients)

    def _compute_in_parts(self, inputs: Sequence) -> tuple[models.Values, tuple]:
        """Return the gradients of a rank's rows, and the sums of the rows' losses and hits.

        The knob `accumulation` is the number of parts. `slowdown` makes the computation slower.
        """
        *rows, divisor = inputs
        knobs, began = self.plan["knobs"], time.perf_counter()
        size = -(-len(rows[-1]) // knobs["accumulation"])
        parts = [
            self._compute(self._state[0], *(array[start : start + size] for array in rows), divisor)
            for start in range(0, len(rows[-1]), size)
        ]
        result = reduce(_add, parts)
        if (factor := self.slowdown) > 1:
            jax.block_until_ready(result)
            time.sleep((factor - 1) * (time.perf_counter() - began))
        return result

    def _apply(self, gradients: models.Values) -> None:
        self._state = jax.block_until_ready(self._update(self._state, gradients))

    @contextmanager
    def preserve(self):
        values = self.values()
        try:
            yield
        finally:
            self.restore(values)

    def seed(self, *numbers):
        """Do nothing: a model draws no random numbers."""

    def end_epoch(self, rows):
        """Do nothing: a model is equal on all ranks after every step."""

    def evaluate(self, inputs, targets):
        return self._evaluate(self._state[0], inputs, targets)

    def weights(self):
        return [[np.array(array) for array in self._state[0]]]

    def set_weights(self, weights):
        self._state[0] = self._copy_to_device(weights)

    def values(self):
        return [np.array(array) for part in self._state for array in part]

    def restore(self, values):
        # First the model's arrays, then for each slot of the optimizer one array for each model
        # array.
        count, arrays = len(self.model.arrays), self._copy_to_device(values)
        self._state = [arrays[start : start + count] for start in range(0, len(arrays), count)]

    def _copy_to_device(self, values: Sequence[np.ndarray]) -> list[jax.Array]:
        """Return copies bound to the device; JAX would compile again for unbound arrays."""
        return [jax.device_put(value, self._device, may_alias=False) for value in values]

    def broadcast(self):
        self.restore(self.group.broadcast(self.values()))

    def about(self):
        return {
            "parameters": sum(math.prod(array.shape) for array in self.model.arrays),
            "optimizer": self.optimizer.name,
        }

    def board(self, folder):
        raise Unavailable("tensorboard: true needs another engine. Remedy: set it to false")


ENGINE = JAX
