"""Train the virus CNN with PyTorch, alone or as one of several processes.

`benchmarks.peers` starts it in an environment with PyTorch and NumPy. It imports no TensorFlow.
Several processes use DistributedDataParallel over Gloo. The weights, the rows of each step, the
loss and the optimiser are those of the other programs that `benchmarks.peers` compares.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from escala.training.shards import batches, epoch_order


class VirusCNN(nn.Module):
    """The layers of `escala.workloads.virus_cnn`, for codes of shape (rows, letters)."""

    def __init__(self, weights: list[np.ndarray]):
        super().__init__()
        embedding, kernel_1, bias_1, kernel_2, bias_2, *dense = map(torch.from_numpy, weights)
        self.embedding = nn.Embedding.from_pretrained(embedding, freeze=False)
        self.convolutions = nn.Sequential(
            _convolution(kernel_1, bias_1),
            nn.ReLU(),
            nn.MaxPool1d(2),
            _convolution(kernel_2, bias_2),
            nn.ReLU(),
            nn.MaxPool1d(2),
        )
        first, second, last = (
            _dense(kernel, bias) for kernel, bias in zip(dense[::2], dense[1::2], strict=True)
        )
        self.dense = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the logits of every class, of shape (rows, classes)."""
        features = self.convolutions(self.embedding(codes).transpose(1, 2))
        # Keras flattens with the channels last.
        return self.dense(features.transpose(1, 2).flatten(1))


def _convolution(kernel: torch.Tensor, bias: torch.Tensor) -> nn.Conv1d:
    """Return a layer from Keras's kernel of shape (width, inputs, filters)."""
    width, inputs, filters = kernel.shape
    layer = nn.Conv1d(inputs, filters, width)
    layer.weight.data, layer.bias.data = kernel.permute(2, 1, 0).contiguous(), bias
    return layer


def _dense(kernel: torch.Tensor, bias: torch.Tensor) -> nn.Linear:
    """Return a layer from Keras's kernel of shape (inputs, units)."""
    layer = nn.Linear(*kernel.shape)
    layer.weight.data, layer.bias.data = kernel.T.contiguous(), bias
    return layer


class RMSprop(torch.optim.Optimizer):
    """Keras's RMSprop, which adds epsilon inside of the square root; PyTorch's adds it outside.

    Like PyTorch's, it makes each operation on all variables at once.
    """

    RHO, EPSILON = 0.9, 1e-7

    @torch.no_grad()
    def step(self) -> None:
        [group] = self.param_groups
        weights = group["params"]
        gradients = [weight.grad for weight in weights]
        if not self.state:
            for weight in weights:
                self.state[weight]["squares"] = torch.zeros_like(weight)
        squares = [self.state[weight]["squares"] for weight in weights]
        torch._foreach_mul_(squares, self.RHO)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - self.RHO)
        roots = torch._foreach_add(squares, self.EPSILON)
        torch._foreach_sqrt_(roots)
        torch._foreach_addcdiv_(weights, gradients, roots, -group["lr"])


def train(arguments: argparse.Namespace) -> dict:
    """Return the mean loss of this process's rows and the seconds of each step, by epoch."""
    rank, processes = arguments.rank, arguments.processes
    with np.load(arguments.weights) as arrays:
        model = VirusCNN([arrays[name] for name in arrays.files])
    if processes > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = RMSprop(model.parameters(), {"lr": arguments.learning_rate})
    codes, targets = np.load(arguments.codes), np.load(arguments.targets)
    losses, seconds = [], []
    for epoch in range(1, arguments.epochs + 1):
        order = epoch_order(len(codes), arguments.seed, epoch)
        order = order[: len(order) // arguments.batch * arguments.batch]
        of_steps, of_epoch = [], []
        for rows in batches(order, arguments.batch, [1 / processes] * processes):
            start = time.perf_counter()
            selected = np.sort(rows[rank])
            logits = model(torch.from_numpy(codes[selected].astype(np.int64)))
            loss = nn.functional.cross_entropy(logits, torch.from_numpy(targets[selected]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            of_epoch.append(loss.item())
            of_steps.append(time.perf_counter() - start)
        losses.append(float(np.mean(of_epoch)))
        seconds.append(of_steps)
    return {"losses": losses, "step_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name in ("codes", "targets", "weights"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    for name in ("rank", "processes", "batch", "epochs", "seed"):
        parser.add_argument(f"--{name}", required=True, type=int)
    parser.add_argument("--learning-rate", required=True, type=float)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    if arguments.processes > 1:
        dist.init_process_group("gloo", rank=arguments.rank, world_size=arguments.processes)
    print(json.dumps(train(arguments)), flush=True)
    if arguments.processes > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
