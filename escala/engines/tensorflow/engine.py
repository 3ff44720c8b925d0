"""The engine of TensorFlow: models of Keras, trained by compiled steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice

import tensorflow as tf

from escala import engines
from escala.data.base import output_shape
from escala.engines import layers
from escala.engines.base import Engine, MadeStep, RankRows, gpus_in_use, require_products
from escala.engines.layers import require_whole_steps
from escala.engines.tensorflow.fast.dense import DenseLayers
from escala.engines.tensorflow.functions import Functions
from escala.engines.tensorflow.layers import (
    initialise,
    layers_over_ranks,
    seed_random_layers,
    use_generators,
)
from escala.engines.tensorflow.ranks import Ranks
from escala.engines.tensorflow.step import (
    accumulate,
    average,
    local_variables,
    make_compute,
    slow_down,
    train_step,
)
from escala.workloads.models import rows_at_once


class TensorFlow(Engine):
    """A process that trains with TensorFlow. Its group is of the class `Ranks`."""

    group: Ranks

    def start(self):
        set_threads(self.plan["knobs"]["threads"])
        set_products(self.plan["knobs"]["products"])
        ranks_and_world = self.group.start()
        has_gpus = bool(tf.config.list_physical_devices("GPU"))
        remedy = "uv sync --extra gpu --extra horovod"
        self._gpus = gpus_in_use(self.plan["knobs"]["device"], has_gpus, "TensorFlow", remedy)
        return ranks_and_world

    def resources(self):
        threads = tf.config.threading
        return {
            "gpus": self._gpus,
            "threads": {
                "intra_op": threads.get_intra_op_parallelism_threads(),
                "inter_op": threads.get_inter_op_parallelism_threads(),
            },
        }

    def build(self, work, data, knobs, probe=None):
        plan, settings, group = self.plan, self.plan["training"], self.group
        # A step alone is the step of a single rank.
        alone = Ranks(plan["knobs"], self.place)

        def compute_for(kinds: Mapping, total: Callable) -> Callable:
            compute = make_compute(self.model, self.functions, kinds, self._local, total)
            compute = accumulate(compute, plan["knobs"]["accumulation"])
            return slow_down(compute, self.slowdown)

        with group.scope():
            # Every process draws its own weights, and the broadcast makes the weights equal.
            tf.keras.utils.set_random_seed(plan["seed"] + self.place.process)
            use_generators()
            self.functions = functions = Functions(work, settings)
            self.model = functions.build(data.inputs, output_shape(data.description), knobs)
            if settings.get("initial_weights") == layers.SEEDED:
                initialise(self.model, plan["seed"])
            self.optimizer = work.optimizer(settings, plan["learning_rate"], knobs)
            functions.refuse_ignored(self.model, self.optimizer)
            normalises = bool(layers_over_ranks(self.model))
            require_whole_steps(normalises, plan["knobs"]["accumulation"])
            self.steps_alone = group.reads_clock and not normalises
            self._dense = dense = DenseLayers(self.model, self.optimizer, plan, group)
            self._local = local_variables(self.model)
            compute = compute_for(dense.kinds, group.sum_over_ranks)

            def compute_with_others(*arguments):
                dense.begin_step(tf.shape(arguments[0])[0])
                return compute(*arguments)

            exchange = partial(group.exchange, sums=dense.sums) if dense.sums else group.exchange
            if module := engines.recorder_module(plan["strategy"], probe):
                path = probe.folder / f"rank{self.place.process}.clocks.csv"
                variables = self.model.trainable_variables
                self.recorder = module.Recorder(path, variables, group.reads_clock)
            # A probe observes single steps.
            self._at_once = 1 if probe else plan["knobs"]["steps_per_call"]
            self._steps = {
                n: train_step(dense, group, data, compute_with_others, exchange, self.recorder, n)
                for n in {1, self._at_once}
            }
            compute_alone = compute_for({}, alone.sum_over_ranks)
            self._step_alone = train_step(dense, group, data, compute_alone, alone.exchange)
            specs = *data.inputs, data.targets
            self._evaluate = functions.compile_evaluation(self.model, specs, tf.reduce_sum)
            self.rows_at_once = rows_at_once(functions.output_form(self.model))

    def make_steps(self, steps, gather):
        ranks = self.group.driven
        began = time.perf_counter()
        for call in group_steps(steps, self._at_once):
            inputs, count = gather(call, ranks), len(call)
            gathered = time.perf_counter()
            sums = self._steps[count](inputs)
            made = time.perf_counter()
            moments = began, began + (gathered - began) / count, began + (made - began) / count
            for number, step in enumerate(call):
                rows = [step[rank] for rank in ranks]
                yield MadeStep(rows, moments, sums[number], sums[count + number])
            began = time.perf_counter()
        self.group.join()

    def warm_up(self, step, gather):
        for count in {1, self._at_once}:
            for _ in self.make_steps([step] * count, gather):
                pass

    def step_alone(self, inputs):
        self._step_alone([inputs])

    @contextmanager
    def preserve(self):
        changed = [*self._variables, *self._dense.local]
        saved = [variable.numpy() for variable in changed]
        try:
            yield
        finally:
            for variable, value in zip(changed, saved, strict=True):
                variable.assign(value)

    def seed(self, *numbers):
        seed_random_layers(self.model, *numbers)

    def end_epoch(self, rows):
        self._dense.wait()
        average(self._local, rows, self.group)

    def evaluate(self, inputs, targets):
        return self._evaluate(*inputs, targets)

    def weights(self):
        return self.group.weights(self.model.variables)

    def set_weights(self, weights):
        for variable, value in zip(self.model.variables, weights, strict=True):
            variable.assign(value)

    def values(self):
        # A rank updates some rows of a shared kernel, and its optimizer has variables only for
        # these rows. The variables are gathered, so a checkpoint equals the checkpoint of a run
        # without shared kernels.
        values = [variable.numpy() for variable in self.model.variables]
        for number, variable in enumerate(self.optimizer.variables):
            if variable.ref() in self._dense.parts:
                variable = self.group.gather(variable, f"optimizer/{number}")
            values.append(variable.numpy())
        return values

    def restore(self, values):
        for variable, value in zip(self._variables, values, strict=True):
            part = self._dense.parts.get(variable.ref())
            variable.assign(value[part.rows] if part else value)
        self._dense.place()

    def broadcast(self):
        # The optimizer's variables for rows of a shared kernel are not sent: each rank has built or
        # restored its own.
        parts = self._dense.parts
        self.group.broadcast([v for v in self._variables if v.ref() not in parts])
        self._dense.place()

    @property
    def _variables(self) -> list[tf.Variable]:
        return [*self.model.variables, *self.optimizer.variables]

    def about(self):
        return {
            "parameters": self.model.count_params(),
            "optimizer": type(self.optimizer).__name__,
            "dense_exchange": {
                layer.name: exchange for layer, exchange in self._dense.exchanges.items()
            },
        }

    def board(self, folder):
        summary = tf.summary.create_file_writer(str(folder))

        def write(step: int, numbers: Mapping[str, float]) -> None:
            with summary.as_default(step=step):
                for name, value in numbers.items():
                    tf.summary.scalar(name, value)
            summary.flush()

        return write


ENGINE = TensorFlow


def group_steps(steps: Iterable[RankRows], at_once: int) -> Iterator[list[RankRows]]:
    """Yield the steps of each call, in order: `at_once` steps, or a single step.

    In a call of several steps, a rank has an equal number of rows in all steps, and at least one
    row. All ranks group the steps equally, because each rank knows the rows of all ranks.
    """
    remaining = iter(steps)
    while group := list(islice(remaining, at_once)):
        sizes = {tuple(map(len, step)) for step in group}
        if len(group) == at_once and len(sizes) == 1 and min(*sizes):
            yield group
        else:
            yield from ([step] for step in group)


def set_threads(threads: dict[str, int]) -> None:
    """Size TensorFlow's thread pools, before it uses any."""
    tf.config.threading.set_intra_op_parallelism_threads(threads["intra_op"])
    tf.config.threading.set_inter_op_parallelism_threads(threads["inter_op"])


def set_products(kind: str) -> None:
    """Set the type of matrix products and convolutions in graphs that are compiled later.

    For `bfloat16` TensorFlow rewrites the graphs. It casts the factors of these operations to
    bfloat16 and the results back to float32, and oneDNN computes with special instructions of the
    processor. For `tensor-float-32` a GPU rounds the factors to 10 bits of mantissa. This is
    TensorFlow's default. On processors it changes nothing.

    Parameters
    ----------
    kind : `float32`, `tensor-float-32` or `bfloat16`.

    Raises
    ------
    Unavailable : the processor has no instructions for bfloat16, and oneDNN would emulate bfloat16.
    """
    require_products(kind)
    tf.config.experimental.enable_tensor_float_32_execution(kind == "tensor-float-32")
    if kind == "bfloat16":
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": True})
