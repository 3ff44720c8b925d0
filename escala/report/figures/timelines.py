"""Provide helpers of the figures of a Horovod timeline."""

from __future__ import annotations

import pandas as pd

from escala.probes.timeline import FAMILIES, OTHER, repair
from escala.report.figures import OfRun
from escala.report.figures.common import palette

COLOURS = palette([*FAMILIES, OTHER])


def read(shown: OfRun) -> list[dict]:
    """Return the events of a run's timeline; none if it left no timeline."""
    return repair(shown.file) if shown.file else []


def short(tensor: str, letters: int = 44) -> str:
    """Shorten a tensor's name at its start, which is the same for all tensors of a model."""
    return tensor if len(tensor) <= letters else "…" + tensor[1 - letters :]


def spans(phases: pd.DataFrame) -> list[tuple[float, float]]:
    """Return intervals as (start, length), in seconds."""
    return list(
        zip(phases["start_seconds"], phases["end_seconds"] - phases["start_seconds"], strict=True)
    )
