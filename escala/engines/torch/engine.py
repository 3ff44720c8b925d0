"""The engine of PyTorch: modules, trained by steps that are not compiled."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import contextmanager

import torch
from torch import nn

from escala import engines
from escala.core.environment import call
from escala.core.errors import Unavailable
from escala.core.hardware import available_gpus
from escala.data.base import output_shape
from escala.engines import layers
from escala.engines.base import Engine, require_products
from escala.engines.layers import require_whole_steps
from escala.engines.torch import arrays
from escala.engines.torch import state as states
from escala.engines.torch import step as steps
from escala.engines.torch.functions import Functions
from escala.engines.torch.layers import synchronised
from escala.engines.torch.ranks import Ranks
from escala.workloads.models import rows_at_once


class Torch(Engine):
    """A process that trains with PyTorch; its group are `Ranks`."""

    group: Ranks
    recorder: steps.StepRecorder | None = None

    def start(self):
        set_threads(self.plan["knobs"]["threads"])
        set_products(self.plan["knobs"]["products"])
        self._gpus = gpus_in_use(self.plan["knobs"]["device"])
        self._device = torch.device("cuda", 0) if self._gpus else torch.device("cpu")
        return self.group.start()

    def resources(self):
        threads = {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()}
        return {"gpus": self._gpus, "threads": threads}

    def build(self, work, data, knobs, probe=None):
        plan, settings = self.plan, self.plan["training"]
        # Every process draws its own weights; the broadcast makes them equal.
        torch.manual_seed(plan["seed"] + self.place.process)
        self.functions = functions = Functions(work, settings)
        model = functions.build(data.inputs, output_shape(data.description), knobs)
        self.model = model.to(self._device)
        if settings.get("initial_weights") == layers.SEEDED:
            arrays.begin(self.model, plan["seed"])
        self._local = states.local_buffers(self.model)
        self.rows_at_once = rows_at_once(functions.output_form(self.model, data.inputs))
        self.steps_alone = not synchronised(self.model)
        if module := engines.recording(plan["strategy"], probe):
            self.recorder = module.recorder(probe, plan, self.place.process, self._device)
        watch = self.recorder and self.recorder.watched_exchange
        require_whole_steps(synchronised(self.model), plan["knobs"]["accumulation"])
        compiles = plan["knobs"]["torch_compile"]
        called = torch.compile(self.model) if compiles else self.model
        called = self.group.wrap(called, watch)
        trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = work.optimizer(trained, settings, plan["learning_rate"], knobs)
        functions.refuse_ignored(self.model, self.optimizer)
        self._state = states.State(self.model, self.optimizer)
        self._step = self._steps(called, functions)
        self._evaluate = functions.compile_evaluation(
            self.model, (*data.inputs, data.targets), torch.sum
        )
        # A process has one profiler, so that of a trace is the only one.
        self._profiled = plan["knobs"]["profiler"] and plan["instrument"] != "torch-trace"

    def _steps(self, called: nn.Module, functions: Functions) -> steps.Step:
        """Return the steps of this rank, and slow them down if the knob says so."""
        knobs = self.plan["knobs"]
        steps.slow_down(self.model, self.slowdown)
        computed = steps.Computed(called, functions.row_losses, functions.correct)
        if self.recorder:
            computed = self.recorder.watched(computed, self.optimizer)
        return steps.Step(
            computed,
            self.optimizer,
            self.group,
            self._local,
            self._device,
            knobs["accumulation"],
            normalises=bool(synchronised(self.model)),
        )

    def step(self, inputs):
        return self._step.together(inputs)

    def step_alone(self, inputs):
        self._step.by_itself(inputs)

    @contextmanager
    def preserve(self):
        self.group.divide()
        taken = self._state.snapshot()
        try:
            yield
        finally:
            self.group.divide()
            self._state.restore_snapshot(taken)

    def seed(self, *numbers):
        states.seed_random_layers(*numbers)
        if self._profiled:  # An epoch begins with it.
            self._profiler = torch.profiler.profile()
            self._profiler.start()

    @torch.no_grad()
    def end_epoch(self, rows):
        if self._local:
            self.group.agree(self._local, sum(rows))
        if self._profiled:
            self._profiler.stop()
            with tempfile.TemporaryDirectory() as folder:
                self._profiler.export_chrome_trace(f"{folder}/trace.json")

    def evaluate(self, inputs, targets):
        return self._evaluate(*inputs, targets)

    def weights(self):
        return [[*arrays.values(self.model).values()]]

    def set_weights(self, weights):
        self.group.divide()
        arrays.set_values(self.model, weights)

    def values(self):
        return self._state.values()

    def restore(self, values):
        self.group.divide()
        self._state.restore(values)

    @torch.no_grad()
    def broadcast(self):
        self.group.broadcast(self._state.tensors)

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

    PyTorch by itself lets GPUs round those of convolutions to 10 bits of mantissa.

    Parameters
    ----------
    kind : `float32`, `tensor-float-32` on GPUs, or `bfloat16` on processors.

    Raises
    ------
    Unavailable : the processor has no instructions for bfloat16. oneDNN would not use the type.
    """
    require_products(kind)
    on_gpu = "tf32" if kind == "tensor-float-32" else "ieee"
    on_processor = "bf16" if kind == "bfloat16" else "ieee"
    backends = torch.backends
    for operations in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        operations.fp32_precision = on_gpu
    for operations in (backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn):
        operations.fp32_precision = on_processor


def gpus_in_use(device: str) -> list[str]:
    """Return the identifiers of the GPUs that PyTorch uses in this process.

    Raises
    ------
    Unavailable : `device` is `gpu`, and PyTorch finds none; or what it finds has no identifier.
    """
    if not torch.cuda.is_available():
        if device == "gpu":
            raise Unavailable(
                "device: gpu, and PyTorch finds no GPU; its log in `ranks/` states why. Remedy: "
                f"set device: cpu, or install the PyTorch with CUDA: {call('install torch')}"
            )
        return []
    if not (gpus := available_gpus()):
        raise Unavailable(
            "PyTorch finds a GPU, and NVIDIA's library does not name it. Remedy: install "
            "nvidia-ml-py in the environment of PyTorch, or set device: cpu"
        )
    return [gpu.identifier for gpu in gpus]
