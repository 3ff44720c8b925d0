"""The workload `virus-cnn`: the convolutional virus classifier."""

from collections.abc import Mapping

from escala.core.errors import Unavailable
from escala.workloads import WORKLOADS


def require_plain_layers(knobs: Mapping) -> None:
    """Refuse all knob values except defaults; only TensorFlow's engine has other values."""
    for name, plain in WORKLOADS["virus-cnn"].knob_defaults.items():
        if knobs[name] != plain:
            raise Unavailable(f"{name}: {knobs[name]} needs another engine; use {name}: {plain}")
