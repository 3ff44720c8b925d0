"""Ranks of PyTorch's `DataParallel`: one process divides each batch among the GPUs of its node.

Each step copies the model to all GPUs, and each computes its rows in a thread. The statistics of
batch normalisation are those of the first GPU's rows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from escala.core.errors import Unavailable
from escala.engines.torch.normalisation import synchronised
from escala.engines.torch.ranks import Ranks


class DataParallel(Ranks):
    def start(self):
        wanted, found = len(self.place.ranks), torch.cuda.device_count()
        if found < wanted:
            raise Unavailable(
                f"DataParallel needs a GPU for each of {wanted} ranks, and PyTorch finds {found}. "
                "Remedy: use ddp-gloo"
            )
        return self.place.ranks, wanted

    def wrapped(self, model, watch=None):
        if synchronised(model):
            raise Unavailable("DataParallel cannot normalise over all ranks. Remedy: use ddp-nccl")
        return nn.DataParallel(model, device_ids=[*range(len(self.place.ranks))])

    def one(self, arguments):
        *arrays, divisors = zip(*arguments, strict=True)
        return (*map(np.concatenate, arrays), divisors[0])


RANKS = DataParallel
