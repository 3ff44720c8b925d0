"""One process of PyTorch, which has nothing to synchronise."""

from __future__ import annotations

from escala.strategies.base import Layouts
from escala.strategies.pytorch import PyTorch


class TorchSingle(PyTorch):
    position = 20
    engine = "torch.single"
    layouts = Layouts(one_rank=True)
