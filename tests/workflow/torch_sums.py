"""One rank in `test_engines`: `python torch_sums.py PROCESS PROCESSES PORT`.

Gradients are numbers that every rank knows, so it computes by itself what their sum must be.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from escala.core.errors import Unavailable
from escala.engines.torch.ranks import DDPRanks, Sums
from escala.strategies.base import Place
from escala.strategies.knobs import all_knobs

STEPS = 6
KNOBS = {"communication_hook": "shared-memory", "bucket_cap_mb": 0.01}
#: Of the parameters. Most are larger than a bucket.
SIZES = (7, 3000, 1, 4099, 5000)
TYPES = (torch.float32,) * 4 + (torch.float64,)


class Given(nn.Module):
    """A model whose gradients are what it is called with."""

    def __init__(self):
        super().__init__()
        zeros = (torch.zeros(size, dtype=each) for size, each in zip(SIZES, TYPES, strict=True))
        self.arrays = nn.ParameterList(zeros)

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        products = zip(self.arrays, gradients, strict=True)
        return sum(torch.dot(array, gradient) for array, gradient in products)


def gradients(step: int, rank: int) -> list[torch.Tensor]:
    """Return gradients of very different sizes, whose sum depends on their order."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    return [
        torch.randn(size, generator=generator, dtype=each).exp()
        for size, each in zip(SIZES, TYPES, strict=True)
    ]


def slowed(rank: int, buckets: set[int]) -> Callable:
    """Return what a recorder may do: note each bucket. Rank 1 is late to read the next ones."""

    def watch(hook):
        def watched(state, bucket):
            buckets.add(bucket.index())

            def summed(future):
                time.sleep(0.01 * (rank == 1))
                return future.value()

            return hook(state, bucket).then(summed)

        return watched

    return watch


def check_steps(ranks: DDPRanks, rank: int, count: int) -> None:
    model, buckets = Given(), set()
    wrapped = ranks.wrap(model, slowed(rank, buckets))
    assert ranks.divides_by == 1
    for step in range(STEPS):
        # Each rank is the last one in some steps.
        time.sleep(0.02 * (step % count == rank))
        model.zero_grad()
        wrapped(gradients(step, rank)).backward()
        first, *others = (gradients(step, each) for each in range(count))
        for number, (array, total) in enumerate(zip(model.arrays, first, strict=True)):
            for other in others:
                total = total + other[number]
            assert torch.equal(array.grad, total), (step, number)
    assert len(buckets) > 2
    assert "/memfd:escala (deleted)" in Path("/proc/self/maps").read_text(), "it has no name"


def check_waiting(ranks: DDPRanks, rank: int) -> None:
    """Check that a rank that waits for others, which never come, says so."""
    sums = Sums(ranks, Given(), timedelta(seconds=0.1))
    bucket = SimpleNamespace(buffer=lambda: torch.ones(3), is_last=lambda: True)
    if rank == 0:
        try:
            sums.add(bucket)
        except TimeoutError as error:
            assert "waited 0:00:00.100000 for the gradients of rank 1 in step 1" in str(error)
        else:
            raise AssertionError("it did not wait")


def check_nodes(place: Place) -> None:
    try:
        Sums(SimpleNamespace(place=replace(place, nodes=2)), Given(), timedelta(seconds=1))
    except Unavailable as error:
        assert "one node. Remedy: communication_hook: none" in str(error)
    else:
        raise AssertionError("nodes share no memory")


def main(process: int, processes: int, port: int) -> None:
    address = f"127.0.0.1:{port}"
    place = Place(
        process=process, processes=processes, ranks=[process], node=0, nodes=1, local=process,
        processes_per_node=processes, host="localhost", cores=[], addresses=[address],
        extra_addresses=[address, address],
    )  # fmt: skip
    torch.set_num_threads(1)
    knobs = {name: each.default for name, each in all_knobs().items()} | KNOBS
    check_nodes(place)
    ranks = DDPRanks(knobs, place)
    ranks.start()
    check_steps(ranks, process, processes)
    if processes > 1:
        check_waiting(ranks, process)
    ranks.meet()
    # What still holds the ranks would let Gloo's threads run when Python has ended.
    gc.collect()
    ranks.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
