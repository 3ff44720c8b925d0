"""PyTorch's `DataParallel`: one process a node, which divides each batch among the node's GPUs."""

from __future__ import annotations

from escala.strategies.base import Layouts
from escala.strategies.pytorch import PyTorch


class DataParallel(PyTorch):
    position = 25
    engine = "torch.data_parallel"
    layouts = Layouts(one_node=True, process_per_node=True)

    @classmethod
    def refused(cls, knobs, checkpoint_epochs):
        if knobs["weighting"] != "rows":
            yield (
                "weighting",
                "cannot be followed: DataParallel divides the rows itself",
                "use rows",
            )
