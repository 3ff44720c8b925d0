"""The engine of PyTorch: modules, trained by steps that are not compiled."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from escala import engines
from escala.core.environment import call
from escala.core.errors import Unavailable
from escala.data.base import output_shape
from escala.engines import layers
from escala.engines.base import Engine, gpus_in_use, require_products
from escala.engines.layers import require_whole_steps
from escala.engines.torch import arrays
from escala.engines.torch.functions import Functions
from escala.engines.torch.layers import layers_over_ranks
from escala.engines.torch.ranks import Ranks
from escala.workloads.models import as_model_input, rows_at_once


class StepFunctions(NamedTuple):
    """The functions that a step calls: the model, the losses of rows, and their correctness.

    A probe may have a class `Recorder` in a module `record_NAME`. The method `watch` of this class
    returns functions that replace the step's functions, and may add hooks to the optimizer. The
    method `watch_exchange` returns a communication hook for DistributedDataParallel, which calls
    another hook and records the call. `watch_exchange` is None if the recorder records no exchange.
    """

    model: nn.Module
    row_losses: Callable
    correct: Callable


class Torch(Engine):
    """A process that trains with PyTorch. Its group is of the class `Ranks`."""

    group: Ranks

    def start(self):
        set_threads(self.plan["knobs"]["threads"])
        set_products(self.plan["knobs"]["products"])
        device, remedy = self.plan["knobs"]["device"], call("install torch")
        self._gpus = gpus_in_use(device, torch.cuda.is_available(), "PyTorch", remedy)
        self._device = torch.device("cuda", 0) if self._gpus else torch.device("cpu")
        return self.group.start()

    def resources(self):
        threads = {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()}
        return {"gpus": self._gpus, "threads": threads}

    def build(self, work, data, knobs, probe=None):
        plan, settings = self.plan, self.plan["training"]
        # Every process draws its own weights, and the broadcast makes the weights equal.
        torch.manual_seed(plan["seed"] + self.place.process)
        self.functions = functions = Functions(work, settings)
        model = functions.build(data.inputs, output_shape(data.description), knobs)
        self.model = model.to(self._device)
        if settings.get("initial_weights") == layers.SEEDED:
            arrays.initialise(self.model, plan["seed"])
        # Layers that normalise over all ranks have equal statistics on all ranks. Each rank updates
        # other buffers by its own rows, and the ranks average these buffers at the end of an epoch.
        normalising = layers_over_ranks(self.model)
        equal = {id(buffer) for layer in normalising for buffer in layer.buffers()}
        self._local = [
            buffer
            for buffer in self.model.buffers()
            if buffer.is_floating_point() and id(buffer) not in equal
        ]
        self.rows_at_once = rows_at_once(functions.output_form(self.model, data.inputs))
        self.steps_alone = not normalising
        if module := engines.recorder_module(plan["strategy"], probe):
            self.recorder = module.Recorder(probe, plan, self.place.process, self._device)
        watch = self.recorder and self.recorder.watch_exchange
        require_whole_steps(not self.steps_alone, plan["knobs"]["accumulation"])
        called = torch.compile(self.model) if plan["knobs"]["torch_compile"] else self.model
        called = self.group.wrap(called, watch)
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = work.optimizer(trained, settings, plan["learning_rate"], knobs)
        functions.refuse_ignored(self.model, self.optimizer)
        #: The values that the optimizer keeps after a step, from `_optimizer_values`.
        self._optimizer_form: list[tuple[torch.Tensor, str, Any]] = []
        slow_down(self.model, self.slowdown)
        self._step_functions = StepFunctions(called, functions.row_losses, functions.correct)
        if self.recorder:
            self._step_functions = self.recorder.watch(self._step_functions, self.optimizer)
        self._evaluate = functions.compile_evaluation(
            self.model, (*data.inputs, data.targets), torch.sum
        )
        # A process can have only one profiler, and the probe `torch-trace` has its own.
        self._profiled = plan["knobs"]["profiler"] and plan["instrument"] != "torch-trace"

    def step(self, inputs):
        return self._make_step(inputs, self.group.divides_by, self.group.sum_over_ranks)

    def step_alone(self, inputs):
        self._make_step(inputs, 1, None, alone=True)

    def _make_step(
        self, inputs: tuple, scale: int, total: Callable | None, alone: bool = False
    ) -> tuple[float, float]:
        """Make a step; return this rank's sums of losses and of hits.

        The gradients are of the sum of the losses ÷ divisor. After the last part of the rows,
        gradients are summed over all ranks, unless the rank is `alone`. Gradients are multiplied by
        `scale`, because the exchange divides by `scale`. `total` sums over ranks for layers that
        normalise over all ranks.
        """
        *values, divisor = inputs
        model, row_losses, correct = self._step_functions
        tensors = [torch.from_numpy(array) for array in values]
        if self._gpus:
            tensors = [tensor.to(self._device, non_blocking=True) for tensor in tensors]
        factor, rows = scale / float(divisor), len(values[-1])
        self.optimizer.zero_grad()
        # A rank without rows does not change its buffers.
        has_rows = not self._local or values[-1].any()
        saved = [] if has_rows else [buffer.clone() for buffer in self._local]
        # With fewer rows than parts, every row is one part.
        size, sums = -(-rows // self.plan["knobs"]["accumulation"]), []
        for start in range(0, rows, size):
            exchanges = start + size >= rows and not alone
            with nullcontext() if exchanges else self.group.alone():
                *part, targets, weights = (tensor[start : start + size] for tensor in tensors)
                with nullcontext() if self.steps_alone else layers.over_ranks(weights, total):
                    outputs = model(as_model_input(part))
                    losses = torch.dot(weights, row_losses(targets, outputs))
                    (losses * factor).backward()
                with torch.no_grad():
                    sums.append((losses.detach(), torch.dot(weights, correct(targets, outputs))))
        loss, hits = (sum(parts) for parts in zip(*sums, strict=True))
        for buffer, value in zip(self._local, saved, strict=False):
            buffer.copy_(value)
        self.optimizer.step()
        return loss.item(), hits.item()

    @contextmanager
    def preserve(self):
        self.group.reshard()
        saved = [tensor.detach().clone() for tensor in self._tensors()]
        optimizer_state = copy.deepcopy(self.optimizer.state_dict())
        try:
            yield
        finally:
            self.group.reshard()
            # PyTorch's optimizers make their tensors in the first step. A resumed run makes steps
            # to warm up, so `restore` knows which values it must set.
            self._optimizer_form = [*self._optimizer_values()]
            with torch.no_grad():
                for tensor, value in zip(self._tensors(), saved, strict=True):
                    tensor.copy_(value)
            self.optimizer.load_state_dict(optimizer_state)

    def _tensors(self) -> list[torch.Tensor]:
        """Return the tensors of the model that a step may change."""
        return [*self.model.parameters(), *self.model.buffers()]

    def _optimizer_values(self) -> Iterator[tuple[torch.Tensor, str, Any]]:
        """Yield parameter, name and value for each value that the optimizer keeps."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                for key, value in sorted(self.optimizer.state.get(parameter, {}).items()):
                    if value is not None:
                        yield parameter, key, value

    def seed(self, *numbers):
        # An epoch does not depend on earlier epochs, so a resumed run draws the same numbers.
        [key] = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
        torch.manual_seed(int(key))
        if self._profiled:  # An epoch begins with `seed`, and ends with `end_epoch`.
            self._profiler = torch.profiler.profile()
            self._profiler.start()

    @torch.no_grad()
    def end_epoch(self, rows):
        if self._local:
            self.group.average_buffers(self._local, sum(rows))
        if self._profiled:
            self._profiler.stop()
            with tempfile.TemporaryDirectory() as folder:
                self._profiler.export_chrome_trace(f"{folder}/trace.json")

    def evaluate(self, inputs, targets):
        return self._evaluate(*inputs, targets)

    def weights(self):
        return [[*arrays.values(self.model).values()]]

    def set_weights(self, weights):
        self.group.reshard()
        arrays.set_values(self.model, weights)

    def values(self):
        kept = [value for _, _, value in self._optimizer_values()]
        for value in kept:
            if not isinstance(value, torch.Tensor | int | float):
                raise Unavailable(
                    f"the optimizer {type(self.optimizer).__name__} keeps a {type(value).__name__},"
                    " which no checkpoint holds. Remedy: set checkpoint_epochs: null"
                )
        return [arrays.as_array(value) for value in (*self._tensors(), *kept)]

    @torch.no_grad()
    def restore(self, values):
        self.group.reshard()
        tensors = self._tensors()
        for tensor, value in zip(tensors, values[: len(tensors)], strict=True):
            arrays.fill(tensor, torch.from_numpy(value))
        of_optimizer = values[len(tensors) :]
        for (parameter, key, like), value in zip(self._optimizer_form, of_optimizer, strict=True):
            if isinstance(like, torch.Tensor):
                value = arrays.distribute_like(like, torch.from_numpy(np.array(value)))
            else:
                value = type(like)(value)
            self.optimizer.state[parameter][key] = value

    @torch.no_grad()
    def broadcast(self):
        self.group.broadcast(self._tensors())

    def about(self):
        return {
            "parameters": arrays.parameters(self.model),
            "optimizer": type(self.optimizer).__name__,
        }

    def board(self, folder):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise Unavailable(
                "tensorboard: true, and the environment of PyTorch has no package tensorboard. "
                "Remedy: set tensorboard: false, or install it there"
            ) from None
        board = SummaryWriter(str(folder))

        def write(step: int, numbers: Mapping[str, float]) -> None:
            for name, value in numbers.items():
                board.add_scalar(name, value, step)
            board.flush()

        return write


ENGINE = Torch


def set_threads(threads: dict[str, int]) -> None:
    """Size PyTorch's thread pools, before it uses any; 0 leaves its own choice."""
    if threads["intra_op"]:
        torch.set_num_threads(threads["intra_op"])
    if threads["inter_op"]:
        torch.set_num_interop_threads(threads["inter_op"])


def set_products(kind: str) -> None:
    """Choose the type in which matrix products and convolutions round their factors.

    By default, PyTorch lets GPUs round the factors of convolutions to 10 bits of mantissa.

    Parameters
    ----------
    kind : `float32`, `tensor-float-32` on GPUs, or `bfloat16` on processors.

    Raises
    ------
    Unavailable : the processor lacks bfloat16, and oneDNN would not use this type.
    """
    require_products(kind)
    on_gpu = "tf32" if kind == "tensor-float-32" else "ieee"
    on_processor = "bf16" if kind == "bfloat16" else "ieee"
    backends = torch.backends
    for operations in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        operations.fp32_precision = on_gpu
    for operations in (backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn):
        operations.fp32_precision = on_processor


def slow_down(model: nn.Module, factor: float) -> None:
    """Let a model take `factor` times as long for forward and backward passes, by sleep.

    The core is free during a sleep. In the backward pass the model sleeps before each gradient is
    complete, so that each exchange begins as late as on a slower processor.
    """
    if factor == 1:
        return
    since = [0.0]

    def begin(*_: object) -> None:
        since[0] = time.perf_counter()

    def sleep(*_: object) -> None:
        time.sleep((factor - 1) * (time.perf_counter() - since[0]))
        begin()

    model.register_forward_pre_hook(begin)
    model.register_forward_hook(sleep)
    for parameter in filter(lambda weight: weight.requires_grad, model.parameters()):
        parameter.register_hook(sleep)
