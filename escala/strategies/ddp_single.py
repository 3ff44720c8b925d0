"""One process inside DistributedDataParallel: shows the wrapper's cost without communication."""

from __future__ import annotations

from escala.strategies.base import Layouts
from escala.strategies.ddp import DDP


class DDPSingle(DDP):
    position = 21
    layouts = Layouts(one_rank=True)
