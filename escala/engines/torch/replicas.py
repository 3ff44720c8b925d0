"""Differences between the ranks of one model: running statistics and random numbers.

Parameters and variables of the optimizer are *replicated*: equal on all ranks after any step.
Buffers, such as the running statistics of batch normalisation, are *local* to a rank during an
epoch, because each rank updates them with its own rows. At the end of every epoch the ranks make
them equal again (`Ranks.agree`). Layers that normalise over the rows of all ranks (`normalisation`)
keep theirs equal after any step.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from escala.core.errors import Unavailable
from escala.engines.torch.normalisation import synchronised


def local_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the buffers that each rank updates by its own rows: those that hold floats.

    Statistics of the rows of all ranks are not among them: they are equal on all.
    """
    shared = {id(buffer) for layer in synchronised(model) for buffer in layer.buffers()}
    return [b for b in model.buffers() if b.is_floating_point() and id(b) not in shared]


def require_whole_steps(model: nn.Module, parts: int) -> None:
    """Refuse a model that normalises over all ranks if each computes its rows in several parts.

    A rank with fewer rows than parts would exchange less often than the others. `parts` is the knob
    `accumulation`.
    """
    if parts > 1 and synchronised(model):
        raise Unavailable(
            f"the model normalises over all ranks, which needs accumulation: 1, not {parts}"
        )


def seed_random_layers(*seed: int) -> None:
    """Seed what layers such as `Dropout` draw.

    So the random numbers of an epoch do not depend on earlier ones, and a resumed run draws the
    same numbers as an uninterrupted one.

    Parameters
    ----------
    seed : non-negative integers that identify the run, the process and the epoch.
    """
    [key] = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    torch.manual_seed(int(key))
