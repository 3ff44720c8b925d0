"""The base of the strategies whose models are of PyTorch."""

from __future__ import annotations

from escala.strategies.base import Strategy


class PyTorch(Strategy):
    """A strategy of the engine `torch`."""
